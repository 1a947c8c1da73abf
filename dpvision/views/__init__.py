"""Views: augmented or mixed versions of a private image. Each view depends on one unit and on public images only.

augment.py        augmentations by name: crops, flips and cutout
colour.py         colour jitter and conversion to grey
autoaugment.py    AutoAugment's policy
eight_bit.py      operations on 8-bit images, with the same results as Pillow's
views.py          K views of each image with their targets, some of them mixed within the image's own pool
"""

from dpvision.core.unit_random import UnitRandom
from dpvision.views.augment import OPERATIONS, Augment
from dpvision.views.views import Views

__all__ = ["OPERATIONS", "Augment", "UnitRandom", "Views"]
