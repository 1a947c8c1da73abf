"""Audits: what an attack that was run shows about epsilon, from below, and what the loss looks like around weights.

replay.py             a mechanism on data and on a neighbour, compared call by call: `compare` is for one's own, too
recording.py          all that reaches the noise, and all that is public; mixture_coins.py the same coins for mixtures
neighbours.py         records that break mechanisms
noise_checks.py       the law of noise; sampler_checks.py who takes part; accountant_checks.py epsilon that is too low
bound.py              a lower bound on epsilon from an attack's scores, and an estimate; accountants bound it from above
profile.py            is a whole claimed curve delta(epsilon) false? and the verdict of all tests
canaries.py           white-box canaries: their score, and its law where the claim is true
training_canaries.py  in private training; release_canaries.py in released rows, moments and private heads
one_run.py            a bound from the canaries that one run carries (../carried.py)
membership.py         loss threshold and LiRA; shadow_models.py trains the models that LiRA compares a run's model with
auditing.py           what can be tested of a run; auditing_release.py of a release; findings.py: audit.json
hierarchical.py       an attack on hierarchical sampling, with the paper's noise and with ours
lanczos.py            largest eigenvalues of a matrix that is known by its products
hessian.py            those of the loss, and its trace
gradient_plane.py     gradients of single images in the plane of two mean gradients
dynamics.py           loss, accuracy and gradient norms of several data sets along a training
subject.py            a network at its weights and the images it is looked at with
geometry.py           all of this measured, and written where it may be; geometry_pictures.py draws it

Attacks that need nothing but arrays and a module are in ../measures: losses of members (membership.py), and images from
released rows (inversion.py, the only inversion that there is). What is here runs them on runs and releases.
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
