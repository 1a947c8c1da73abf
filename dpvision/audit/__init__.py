"""Audits: what an attack that was run shows about epsilon, from below. The accountants bound it from above.

bound.py            a lower bound on epsilon from an attack's scores, and an estimate
hierarchical.py     an attack on hierarchical sampling, with the paper's noise and with ours
"""

from dpvision.audit.bound import Bound, Estimate, estimate, lower_bound
from dpvision.audit.hierarchical import PAPER, Attack, Setting, attack, paper_sigma, scheduled, setting, sound_sigma

__all__ = [
    "PAPER",
    "Attack",
    "Bound",
    "Estimate",
    "Setting",
    "attack",
    "estimate",
    "lower_bound",
    "paper_sigma",
    "scheduled",
    "setting",
    "sound_sigma",
]
