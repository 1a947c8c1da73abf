"""What the operator may see of a step, and nobody else."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

# Called with (losses of the images, norms of the units' gradients, bound); for the operator's eyes.
Watch = Callable[[Tensor, Tensor, float], None]


class Seen:
    """Tallies for the operator's own log: they depend on private data, are not noised, and must never be released."""

    def __init__(self) -> None:
        self.images = 0  # since the start
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0

    def __call__(self, losses: Tensor, norms: Tensor, bound: float) -> None:
        self.images += len(losses)
        self._losses += float(losses.nansum())
        self._images += len(losses)
        self._units += len(norms)
        self._clipped += int((norms > bound).sum())

    def flush(self) -> dict[str, float]:
        images, units = self._images, self._units
        tally = {
            "units": units,
            "images": images,
            "mean_loss": self._losses / images if images else 0.0,
            "clipped_share": self._clipped / units if units else 0.0,
        }
        self._losses, self._images, self._units, self._clipped = 0.0, 0, 0, 0
        return tally
