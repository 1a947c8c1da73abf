"""Tasks: the losses of labels and grades are functions of one image, unknown labels have no part in them."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from dpvision.core.certify import certify
from dpvision.core.clipping import Flat
from dpvision.data.dataset import UNKNOWN
from dpvision.errors import DPVisionError
from dpvision.models import build
from dpvision.models.tasks import Task, grade_losses, label_losses
from dpvision.private.engine import ClippedSum

SHAPE = (1, 8, 8)


def _images(count: int, seed: int = 0) -> Tensor:
    return torch.rand(count, *SHAPE, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def test_a_loss_of_labels_is_the_sum_over_the_known_ones() -> None:
    outputs = torch.tensor([[2.0, -1.0, 0.5], [2.0, -1.0, 0.5], [9.0, 9.0, 9.0]])
    targets = torch.tensor([[1, 0, 1], [1, UNKNOWN, 0], [UNKNOWN] * 3])
    each = F.binary_cross_entropy_with_logits(outputs, targets.clamp(min=0).float(), reduction="none")
    losses = label_losses(outputs, targets)
    assert torch.allclose(losses, torch.stack([each[0].sum(), each[1, 0] + each[1, 2], torch.tensor(0.0)]))


def test_grades_ask_a_binary_question_for_each_threshold() -> None:
    outputs, targets = torch.randn(5, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 3, 3])
    above = torch.tensor([[0, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 1], [1, 1, 1]]).float()
    expected = F.binary_cross_entropy_with_logits(outputs, above, reduction="none").sum(1)
    assert torch.allclose(grade_losses(outputs, targets), expected)
    one_hot = F.one_hot(targets, 4).float()  # the form of mixed labels
    assert torch.allclose(grade_losses(outputs, one_hot), expected)
    mixed = 0.3 * one_hot[:1] + 0.7 * one_hot[3:4]
    assert torch.allclose(
        grade_losses(outputs[:1], mixed),
        F.binary_cross_entropy_with_logits(outputs[0], torch.full((3,), 0.7), reduction="sum"),
    )


@pytest.mark.parametrize("kind", ["classes", "labels", "grades"])
def test_chances_and_answers(kind: str) -> None:
    task = Task(kind, 4)
    outputs = torch.randn(200, task.outputs, generator=torch.Generator().manual_seed(1)).double() * 3
    chances = task.chances(outputs)
    assert chances.shape == (200, 4) and bool((chances >= 0).all())
    answers = task.answers(chances)
    if kind == "labels":
        assert torch.equal(answers, (outputs > 0).long())
        return
    assert torch.allclose(chances.sum(1), torch.ones(200).double()) and set(answers.tolist()) == {0, 1, 2, 3}
    if kind == "grades":  # half of the probability is at or below the median, and half at or above it
        at_most, at_least = (
            (chances * (torch.arange(4) <= answers[:, None])).sum(1),
            (chances * (torch.arange(4) >= answers[:, None])).sum(1),
        )
        assert bool((at_most >= 0.5 - 1e-9).all()) and bool((at_least >= 0.5 - 1e-9).all())


@pytest.mark.parametrize("kind", ["labels", "grades"])
def test_a_unit_alone_decides_its_contribution(kind: str) -> None:
    """With an unknown, hostile or absent neighbour, the sum differs by exactly that neighbour's own bounded part."""
    task = Task(kind, 5)
    model = build("linear", SHAPE, classes=task.outputs, seed=0)
    engine, images = ClippedSum(model, task.losses, clip=0.1, one_view=True), _images(8)
    targets = task.draw_targets(8, torch.Generator().manual_seed(0))
    base = engine(images, targets, [1] * 8)
    rows = [torch.full_like(targets[:1], value) for value in ((1, 0, UNKNOWN) if kind == "labels" else (0, 4))]
    for extra, row in zip((_images(1, 9), _images(1, 9) * torch.nan, _images(1, 9) * 1e6), [rows[0]] * 3, strict=True):
        for target in (row, *rows[1:]):
            alone = engine(extra, target, [1])
            assert float(alone.norm()) <= 0.1 * (1 + 1e-6)
            both = engine(torch.cat([extra, images]), torch.cat([target, targets]), [1] * 9)
            assert torch.equal(both, base + alone)
    if kind == "labels":
        assert not engine(_images(1, 9), rows[2], [1]).any()  # all unknown: nothing


def _divided_by_known(outputs: Tensor, targets: Tensor) -> Tensor:
    """The planted bug: the divisor is the private number of known labels in the batch."""
    return label_losses(outputs, targets) * 10 / (targets >= 0).sum().clamp(min=1)


def _masked_by_others(outputs: Tensor, targets: Tensor) -> Tensor:
    """The planted bug: a label that anyone in the batch does not know is masked for everyone."""
    shared = torch.where((targets >= 0).all(0), targets, UNKNOWN)
    return label_losses(outputs, shared)


@pytest.mark.parametrize("loss", [_divided_by_known, _masked_by_others])
def test_the_certificate_finds_a_mask_that_reaches_others(loss: object) -> None:
    task = Task("labels", 5)
    model = build("linear", SHAPE, classes=5, seed=0)

    def engine(model: torch.nn.Module, loss: object, **options: object) -> ClippedSum:
        return ClippedSum(model, loss, physical=64, **options)  # type: ignore[arg-type]

    options = {"engine": engine, "style": Flat(0.05), "targets": task.draw_targets}
    certify(copy.deepcopy(model), task.losses, SHAPE, 5, **options)  # type: ignore[arg-type]
    with pytest.raises(DPVisionError):
        certify(model, loss, SHAPE, 5, **options)  # type: ignore[arg-type]


def test_drawn_targets_have_known_and_unknown_labels() -> None:
    for labels in (1, 2, 10):
        targets = Task("labels", labels).draw_targets(64, torch.Generator().manual_seed(0))
        assert targets.shape == (64, labels) and set(np.unique(targets)) == {-1, 0, 1}
        assert bool((targets[7] == UNKNOWN).all()) and bool((targets[0] >= 0).any())
