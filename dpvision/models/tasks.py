"""What a model answers about an image: one of several classes, several labels, or a grade.

    classes   one of k classes           k outputs, softmax
    labels    any of k labels            k outputs, a sigmoid each; a label may be unknown (-1)
    grades    one of k ordered classes   k - 1 outputs, a sigmoid each: the chance that the grade is above 0, 1, ...

Formal guarantee of the losses: the loss of an image is a function of its own outputs and targets. Unknown labels are
masked inside it, and it is a sum over all declared labels: it is never divided by the number of labels that are known,
in this image or in a batch. So a unit's gradient depends on that unit alone, and is clipped like any other.

Grades are cumulative links (McCullagh 1980): a binary question for each threshold. The chances of the thresholds are
made to fall before they are read, so that the chances of the grades are not negative and sum to 1.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.data.dataset import UNKNOWN


def class_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return one cross-entropy per image; targets are classes or distributions over the classes."""
    return F.cross_entropy(outputs, targets, reduction="none")


def label_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the binary cross-entropies of an image's known labels; targets are 1, 0, or -1 for unknown."""
    losses = F.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0).to(outputs.dtype), reduction="none")
    return torch.where(targets >= 0, losses, torch.zeros_like(losses)).sum(1)


def grade_losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """Return the sum of the binary cross-entropies of the thresholds; targets are grades or distributions over them."""
    if targets.is_floating_point():
        above = targets.flip(1).cumsum(1).flip(1)[:, 1:]
    else:
        above = targets.unsqueeze(1) > torch.arange(outputs.shape[1], device=targets.device)
    return F.binary_cross_entropy_with_logits(outputs, above.to(outputs.dtype), reduction="none").sum(1)


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "classes": class_losses,
    "labels": label_losses,
    "grades": grade_losses,
}


@dataclass(frozen=True)
class Task:
    """A kind of answer, and the number of declared classes, labels or grades."""

    kind: str
    classes: int

    @property
    def outputs(self) -> int:
        """The number of outputs of a model."""
        return self.classes - 1 if self.kind == "grades" else self.classes

    @property
    def losses(self) -> Callable[[Tensor, Tensor], Tensor]:
        """The function from outputs and targets to one loss per image."""
        return LOSSES[self.kind]

    def chances(self, outputs: Tensor) -> Tensor:
        """Return the probability of each class, label or grade, (N, classes)."""
        if self.kind == "classes":
            return outputs.softmax(1)
        chances = outputs.sigmoid()
        if self.kind == "labels":
            return chances
        falling = [chances[:, :1]]
        for threshold in range(1, self.outputs):
            falling.append(torch.minimum(falling[-1], chances[:, threshold : threshold + 1]))
        return torch.cat([1 - falling[0], *(a - b for a, b in pairwise(falling)), falling[-1]], 1)

    def answers(self, chances: Tensor) -> Tensor:
        """Return the most likely class, (N,); the median grade, (N,); or 1 for each label above 1/2, (N, labels)."""
        if self.kind == "classes":
            return chances.argmax(1)
        if self.kind == "labels":
            return (chances > 0.5).long()
        return (chances.cumsum(1)[:, :-1] < 0.5).sum(1)

    def blank_targets(self, count: int) -> Tensor:
        """Return targets of the right shape for images that only take up space."""
        return torch.zeros((count, self.classes) if self.kind == "labels" else (count,), dtype=torch.int64)

    def draw_targets(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw targets for random images. Of labels, a quarter are unknown, and all of every eighth image."""
        if self.kind != "labels":
            return torch.randint(0, self.classes, (count,), generator=generator)
        targets = torch.randint(0, 2, (count, self.classes), generator=generator)
        places = torch.arange(count).unsqueeze(1) + torch.arange(self.classes)
        targets[places % 4 == 3] = UNKNOWN
        targets[torch.arange(count) % 8 == 7] = UNKNOWN
        return targets
