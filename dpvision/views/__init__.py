"""Views: what a private image becomes before its gradient is taken. Each view depends on one unit and on public images.

augment.py        operations by name: crops, flips, cutout; colour.py, autoaugment.py (on bytes: eight_bit.py)
views.py          K views of each image with their targets, some of them mixed within the image's own pool
"""

from dpvision.core.unit_random import UnitRandom
from dpvision.views.augment import OPERATIONS, Augment
from dpvision.views.views import Views

__all__ = ["OPERATIONS", "Augment", "UnitRandom", "Views"]
