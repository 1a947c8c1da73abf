"""Views: what a private image becomes before its gradient is taken. Each view is made of one unit and public images.

coins.py          random numbers that belong to one unit alone
augment.py        operations by name: shift, cutout, colour, resized_crop, autoaugment (8-bit: eight_bit.py)
mixing.py         mixup and cutmix inside one image's pool
views.py          K views of each image, with their targets
"""

from dpvision.core.unit_random import UnitRandom
from dpvision.views.augment import OPERATIONS, Augment
from dpvision.views.views import Views

__all__ = ["OPERATIONS", "Augment", "UnitRandom", "Views"]
