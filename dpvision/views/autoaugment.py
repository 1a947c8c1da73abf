"""AutoAugment's policy for CIFAR-10, which applies one of 25 pairs of operations to each view (Cubuk et al. 2018).

For each view, one of the 25 sub-policies is drawn, and each of its two operations is applied with its own probability.
Levels are interpreted as in the authors' released code, at any image size:

    ShearX, ShearY               0.03 * level, with a random sign
    TranslateX, TranslateY       level / 32 of the side, truncated to whole pixels, with a random sign
    Rotate                       3 * level degrees, with a random sign
    Solarize                     threshold 256 - 25.6 * level, rounded up
    Posterize                    4 - 0.4 * level bits, rounded up (the paper's range is 4 to 8 bits)
    Color, Contrast, Brightness, Sharpness       factor 0.1 + 0.18 * level
    AutoContrast, Equalize, Invert               no level

Pixels are converted to bytes, and the operations match Pillow's (eight_bit.py). Pixels from outside the image are grey
(128), whereas the authors' code uses the data set's mean colour or black. If no operation is applied, an image that was
converted from bytes is unchanged, bit for bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from dpvision.core.unit_random import UnitRandom
from dpvision.models.device import send
from dpvision.views import eight_bit
from dpvision.views.colour import require_colours

LEVELS = 11  # 0 to 10
Step = tuple[str, float, int]

POLICY: tuple[tuple[Step, Step], ...] = (
    (("Invert", 0.1, 7), ("Contrast", 0.2, 6)),
    (("Rotate", 0.7, 2), ("TranslateX", 0.3, 9)),
    (("Sharpness", 0.8, 1), ("Sharpness", 0.9, 3)),
    (("ShearY", 0.5, 8), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.5, 8), ("Equalize", 0.9, 2)),
    (("ShearY", 0.2, 7), ("Posterize", 0.3, 7)),
    (("Color", 0.4, 3), ("Brightness", 0.6, 7)),
    (("Sharpness", 0.3, 9), ("Brightness", 0.7, 9)),
    (("Equalize", 0.6, 5), ("Equalize", 0.5, 1)),
    (("Contrast", 0.6, 7), ("Sharpness", 0.6, 5)),
    (("Color", 0.7, 7), ("TranslateX", 0.5, 8)),
    (("Equalize", 0.3, 7), ("AutoContrast", 0.4, 8)),
    (("TranslateY", 0.4, 3), ("Sharpness", 0.2, 6)),
    (("Brightness", 0.9, 6), ("Color", 0.2, 8)),
    (("Solarize", 0.5, 2), ("Invert", 0.0, 3)),
    (("Equalize", 0.2, 0), ("AutoContrast", 0.6, 0)),
    (("Equalize", 0.2, 8), ("Equalize", 0.6, 4)),
    (("Color", 0.9, 9), ("Equalize", 0.6, 6)),
    (("AutoContrast", 0.8, 4), ("Solarize", 0.2, 8)),
    (("Brightness", 0.1, 3), ("Color", 0.7, 0)),
    (("Solarize", 0.4, 5), ("AutoContrast", 0.9, 3)),
    (("TranslateY", 0.9, 9), ("TranslateY", 0.7, 9)),
    (("AutoContrast", 0.9, 2), ("Solarize", 0.8, 3)),
    (("Equalize", 0.8, 8), ("Invert", 0.1, 3)),
    (("TranslateY", 0.7, 9), ("AutoContrast", 0.9, 1)),
)

Matrix = tuple[float, float, float, float, float, float]
# (8-bit images, their levels, whether their signs are negative) -> 8-bit images
Operation = Callable[[Tensor, Tensor, Tensor], Tensor]


def autoaugment(images: Tensor, rng: UnitRandom, views: int) -> Tensor:
    """Transform each view by its own sub-policy: (B, 1 or views, C, H, W) -> (B, views, C, H, W)."""
    require_colours(images)
    pair = rng.integers(len(POLICY), views).flatten()
    uniform = rng.uniform(views, 2).flatten(0, 1)
    negative = (rng.uniform(views, 2) < 0.5).flatten(0, 1)
    numbers, probabilities, levels = _tables()
    out = eight_bit.to_bytes(images).expand(-1, views, -1, -1, -1).flatten(0, 1).contiguous()
    for turn in range(2):
        applied = uniform[:, turn] < probabilities[pair, turn]
        for number, operate in enumerate(OPERATIONS.values()):
            rows = torch.nonzero(applied & (numbers[pair, turn] == number)).squeeze(1)
            if len(rows):
                level, sign, selected = levels[pair[rows], turn], negative[rows, turn], send(rows, out.device)
                out[selected] = operate(out[selected], level, sign)
    return eight_bit.to_floats(out, images.dtype).unflatten(0, (-1, views))


@cache
def _tables() -> tuple[Tensor, Tensor, Tensor]:
    """Return the policy as (25, 2) tensors: the index of each operation, its probability and its level."""
    numbers = {name: number for number, name in enumerate(OPERATIONS)}
    operations = [[numbers[name] for name, _, _ in pair] for pair in POLICY]
    probabilities = [[probability for _, probability, _ in pair] for pair in POLICY]
    levels = [[level for _, _, level in pair] for pair in POLICY]
    return torch.tensor(operations), torch.tensor(probabilities, dtype=torch.float64), torch.tensor(levels)


def _geometric(matrix: Callable[[float, int, int], Matrix]) -> Operation:
    """Return an affine operation, given its matrix as a function of (signed level, height, width)."""

    def operate(images: Tensor, level: Tensor, negative: Tensor) -> Tensor:
        height, width = images.shape[2:]
        table = [[matrix(sign * number, height, width) for number in range(LEVELS)] for sign in (1, -1)]
        return eight_bit.affine(images, torch.tensor(table, dtype=torch.float64)[negative.long(), level])

    return operate


def _enhancing(enhance: Callable[[Tensor, Tensor], Tensor]) -> Operation:
    """Return one of ImageEnhance's operations, with factor 0.1 + 0.18 level."""
    factors = torch.tensor([level * 1.8 / 10 + 0.1 for level in range(LEVELS)], dtype=torch.float64)
    return lambda images, level, negative: enhance(images, factors[level])


def _rotation(level: float, height: int, width: int) -> Matrix:
    """Return the matrix of Image.rotate: about the centre, counter-clockwise for positive degrees."""
    angle = -math.radians(3 * level % 360.0)
    cosine, sine = round(math.cos(angle), 15), round(math.sin(angle), 15)
    x, y = width / 2, height / 2
    return cosine, sine, -cosine * x + sine * -y + x, -sine, cosine, sine * x - cosine * y + y


def _shift(level: float, side: int) -> float:
    return float(math.trunc(level * side / 32))


# Thresholds, and number of remaining bits, by level.
_SOLARIZE = torch.tensor([256 - int(level * 256 / 10) for level in range(LEVELS)])
_POSTERIZE = torch.tensor([4 - int(level * 4 / 10) for level in range(LEVELS)])

OPERATIONS: dict[str, Operation] = {
    "ShearX": _geometric(lambda level, height, width: (1, level * 0.3 / 10, 0, 0, 1, 0)),
    "ShearY": _geometric(lambda level, height, width: (1, 0, 0, level * 0.3 / 10, 1, 0)),
    "TranslateX": _geometric(lambda level, height, width: (1, 0, _shift(level, width), 0, 1, 0)),
    "TranslateY": _geometric(lambda level, height, width: (1, 0, 0, 0, 1, _shift(level, height))),
    "Rotate": _geometric(_rotation),
    "AutoContrast": lambda images, level, negative: eight_bit.autocontrast(images),
    "Invert": lambda images, level, negative: eight_bit.invert(images),
    "Equalize": lambda images, level, negative: eight_bit.equalize(images),
    "Solarize": lambda images, level, negative: eight_bit.solarize(images, _SOLARIZE[level]),
    "Posterize": lambda images, level, negative: eight_bit.posterize(images, _POSTERIZE[level]),
    "Contrast": _enhancing(eight_bit.contrast),
    "Color": _enhancing(eight_bit.colour),
    "Brightness": _enhancing(eight_bit.brightness),
    "Sharpness": _enhancing(eight_bit.sharpness),
}
