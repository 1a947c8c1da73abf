"""A stand-in accelerator for tests: two devices of type "standin", compiled and registered with torch on first import.

It computes what the CPU computes, to the same bits, in the manner of a GPU: the host cannot read its memory, devices are
not mixed, fresh memory is NaN, copies may arrive late, and kernels, copies and waits are counted. Tests that need it
start with `standin = pytest.importorskip("tests.standin")`, or use the fixture `device` (tests/conftest.py).

    import                  does not make it torch's accelerator: `--device auto` stays on the CPU in this process, but
                            inside `available()`. Import it before the first backward pass of the process: torch starts
                            the threads of its devices then, and never again.
    asked(bits=10)          options, for the time of a context (options.py)
    counts(), reset()       what the device did since the last reset
    torch.standin           what torch.cuda is to CUDA: synchronize, mem_get_info, max_memory_allocated, manual_seed ...
    python -m tests.standin -m dpvision train ... --device standin
                            a whole run on it, in a process where it is the accelerator; STANDIN="bits=10,late=1" sets
                            options. torchrun: `torchrun --nproc-per-node 2 -m tests.standin -m dpvision ...`
"""

from __future__ import annotations

import atexit
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from tests.standin import module
from tests.standin.build import CannotBuild, build
from tests.standin.options import OPTIONS, asked, describe

__all__ = ["OPTIONS", "CannotBuild", "asked", "available", "counts", "describe", "reset", "settle"]


def counts() -> dict[str, Any]:
    """Return what the device did since `reset`.

    `kernels` and `waits` of the host are counted by name; `to_device`, `bytes_to_device`, `to_host`, `bytes_to_host` are
    copies; `hazards` are copies whose pinned source was overwritten too early.
    """
    return dict(json.loads(torch.ops.standin.counts()))


def reset() -> None:
    """Count from zero; the peak of memory becomes what is in use."""
    torch.ops.standin.reset()


def settle() -> None:
    """Let all late copies arrive, without counting it as a wait."""
    torch.ops.standin.settle()


@contextmanager
def available() -> Iterator[None]:
    """Make it this process's accelerator for the time of the context, for `--device auto` and torch.accelerator."""
    before, module.available = module.available, True
    try:
        yield
    finally:
        module.available = before


def _register() -> None:
    if not hasattr(torch, "standin"):  # else an earlier import has failed below
        torch.ops.load_library(str(build()))
        torch.utils.rename_privateuse1_backend("standin")
        torch._register_device_module("standin", module.StandIn("torch.standin"))
        torch.ops.standin.register_hooks()
        torch.utils.generate_methods_for_privateuse1_backend(for_tensor=True, for_module=True, for_storage=True)
        nn.Module._apply = _keeping_ties(nn.Module._apply)  # type: ignore[method-assign]
        # Threads of the device may still free Python objects, which aborts an interpreter that is about to end.
        atexit.register(time.sleep, 0.1)
    try:
        torch.ones(1, device="standin", requires_grad=True).sum().backward()
    except RuntimeError as exc:
        if "device_ready_queues_" not in str(exc):
            raise
        raise CannotBuild("tests.standin must be imported before the first backward pass of the process") from None
    reset()


def _keeping_ties(apply: Callable[..., nn.Module]) -> Callable[..., nn.Module]:
    """Wrap nn.Module._apply: a module that moves keeps its parameters, and the ties among them, as with CUDA.

    torch's own list of devices for which it does this does not include PrivateUse1; swapping is its way for the others.
    """

    def moving(self: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> nn.Module:
        if torch.__future__.get_swap_module_params_on_conversion() or not _moves(self, fn):
            return apply(self, fn, recurse)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            return apply(self, fn, recurse)
        finally:
            torch.__future__.set_swap_module_params_on_conversion(False)

    return moving


def _moves(module: nn.Module, fn: Callable[[torch.Tensor], torch.Tensor]) -> bool:
    """Return whether `fn` moves tensors of this module to the stand-in, or away from it."""
    if any(tensor.device.type == "standin" for tensor in (*module.parameters(), *module.buffers())):
        return True
    return fn(torch.empty(0)).device.type == "standin"


_register()
