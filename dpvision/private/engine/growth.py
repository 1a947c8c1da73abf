"""Which axes are the images: seen in two forward passes over blank images, over two of them and over four.

An axis that belongs to the images grows with their number; one that happens to be as long does not. In the pass over
four, the second image is not a number, and its trace shows whether rows lie in the order of the images. No private
image is looked at: a run that is refused here is refused by the model and the shapes alone.
"""

from __future__ import annotations

import torch
from torch import Tensor

from dpvision.errors import UnsafeLayer

FEW, MANY = 2, 4
MARKED = 1  # the image that is not a number


class Growth:
    """What the two passes showed."""

    def __init__(self) -> None:
        self.clear()

    def clear(self) -> None:
        self._rows: dict[int, list[tuple[str, int]]] = {FEW: [], MANY: []}
        self._calls: dict[int, list[tuple[str, list[int]]]] = {FEW: [], MANY: []}

    def note_rows(self, images: int, what: str, tensor: Tensor) -> None:
        """A rule takes the first axis of this tensor for the images, with the same number of rows for each."""
        self._rows[images].append((what, len(tensor)))
        if images == MANY and tensor.is_floating_point() and tensor.numel():
            marked = tensor.detach().reshape(images, -1).isnan().any(1).tolist()
            if any(m for image, m in enumerate(marked) if image != MARKED):
                raise UnsafeLayer(
                    f"{what}: its input for an image differs when other images are in the batch, or does not have the "
                    "rows of each image one after the other along its first axis. Fix: let every layer before it work "
                    "on each image alone, and keep the batch as the first axis."
                )

    def note_call(self, images: int, name: str, sizes: list[int]) -> None:
        """A function was called with tensors whose first axes are this long (0: not a tensor, or no axis)."""
        self._calls[images].append((name, sizes))

    def require_images_first(self) -> None:
        """After both passes: every axis that a rule took for the images has grown with them."""
        for (what, few), (other, many) in zip(self._rows[FEW], self._rows[MANY], strict=False):
            if what == other and few * MANY != many * FEW:
                raise not_first(what)

    def of_call(self, number: int, name: str) -> list[bool]:
        """Which first axes of the call of this number are the images."""
        calls = [self._calls[images][number : number + 1] for images in (FEW, MANY)]
        if not all(calls) or any(call[0][0] != name for call in calls) or len({len(call[0][1]) for call in calls}) > 1:
            raise UnsafeLayer(
                f"{name}: the model does not call the same functions in every pass. Fix: a forward pass that does not "
                "depend on the images or on how many there are."
            )
        return [few > 0 and few * MANY == many * FEW for few, many in zip(calls[0][0][1], calls[1][0][1], strict=True)]


def not_first(what: str) -> UnsafeLayer:
    return UnsafeLayer(
        f"{what}: its input does not have the images along its first axis, so no gradient can be told apart by "
        "image. Fix: keep the batch as the first axis."
    )


def blank_images(images: int, like: Tensor) -> Tensor:
    """Images of one grey in the shape of `like`; of many, one is not a number. Indices are zeros.

    Not black: a model that keeps something of its first batch keeps a trace of the grey, which `certify` sees.
    """
    blank = torch.zeros((images, *like.shape[1:]), dtype=like.dtype, device=like.device)
    if blank.is_floating_point():
        blank.fill_(0.5)
        if images == MANY:
            blank[MARKED] = torch.nan
    return blank
