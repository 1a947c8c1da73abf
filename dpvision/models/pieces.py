"""A function of images in pieces of one size on torch's threads: the same bits for an image in any batch."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor


def in_pieces(function: Callable[[Tensor], Tensor], x: Tensor, *, size: int) -> Tensor:
    """function(x) for `size` images at a time, the last ones filled up with blanks, each piece on one thread.

    Kernels, and with them the last bits, are chosen by the size of a batch and the number of threads: here they are
    always the same. Small operations are also faster side by side than split. An exported graph has no pieces.
    """
    if torch.compiler.is_exporting():
        return function(x)
    threads, graph = torch.get_num_threads(), torch.is_grad_enabled()

    def one(piece: Tensor) -> Tensor:
        torch.set_num_threads(1)
        with torch.set_grad_enabled(graph):  # a thread has a mode of its own
            filled = x.new_zeros(size, *x.shape[1:])  # also laid out in memory in one way, whatever x is
            filled[: len(piece)] = piece
            return function(filled)[: len(piece)]

    pieces = x.split(size)
    try:
        if threads == 1 or len(pieces) == 1 or x.device.type != "cpu":
            found = [one(piece) for piece in pieces]
        else:
            with ThreadPoolExecutor(threads) as pool:
                found = list(pool.map(one, pieces))
    finally:
        torch.set_num_threads(threads)
    return torch.cat(found)
