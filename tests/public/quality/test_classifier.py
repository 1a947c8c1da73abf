"""CAS: real digits give a better classifier than noise, and a missing class is named."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from dpvision.errors import ConfigError, DataError
from dpvision.public.quality.classifier import (
    ClassifierSettings,
    LabelledImages,
    choose_batch,
    classification_accuracy_score,
    compute_logits,
    train_classifier,
)
from tests.public.quality.sets import CLASSES, digits, noise, part

QUICK = ClassifierSettings(model="small-cnn", steps=60, batch=32)


def test_real_images_have_a_better_score_than_noise() -> None:
    real, test = digits()
    good = classification_accuracy_score(real, test, classes=CLASSES, settings=QUICK)
    bad = classification_accuracy_score(noise(real), test, classes=CLASSES, settings=QUICK)
    assert good > 0.85 and bad < 0.3


def test_labels_that_are_wrong_have_a_score_like_chance() -> None:
    real, test = digits()
    shuffled = replace(real, labels=np.random.default_rng(0).permutation(real.labels))
    assert classification_accuracy_score(shuffled, test, classes=CLASSES, settings=QUICK) < 0.35


def test_a_seed_gives_the_same_network() -> None:
    real = part(digits()[0], slice(0, 100))
    short = replace(QUICK, steps=4)
    one, other, third = (
        compute_logits(train_classifier(real, training, classes=10), real)
        for training in (short, short, replace(short, seed=1))
    )
    assert torch.equal(one, other) and not torch.equal(one, third)


def test_every_pass_sees_every_image_once() -> None:
    drawn = np.concatenate([choose_batch(step, count=10, batch=4, seed=0) for step in range(5)])
    assert sorted(drawn[:10]) == sorted(drawn[10:]) == list(range(10))
    assert drawn[:10].tolist() != drawn[10:].tolist()


def test_invalid_images_and_settings_are_named() -> None:
    real, test = digits()
    without = real.labels != 7
    fewer = LabelledImages("drawn.npz", real.images[without], real.labels[without])
    with pytest.raises(DataError, match=r"drawn.npz: has no image of class 7.*Fix"):
        classification_accuracy_score(fewer, test, classes=CLASSES)
    with pytest.raises(DataError, match="label 9 is not one of 9 classes"):
        classification_accuracy_score(real, test, classes=CLASSES[:9])
    with pytest.raises(ConfigError, match="2 images need one label each"):
        LabelledImages("x", real.images[:2], real.labels)
    with pytest.raises(ConfigError, match="the loss is"):
        train_classifier(real, replace(QUICK, lr=1e30), classes=10)
    with pytest.raises(ConfigError, match="at least one step"):
        ClassifierSettings(steps=0)
