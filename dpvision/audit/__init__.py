"""Audits: lower bounds on epsilon from attacks that are run, and the geometry of the loss at given weights.

replay.py             runs a mechanism, such as your own, on data and on a neighbour, and compares every call
recording.py          records what reaches the noise and what is public
bounds.py             lower bounds, tests of a claimed curve delta(epsilon), and the verdict of all tests
canaries.py           white-box canaries: their score, and its distribution if the claim is true
training_canaries.py  canaries in private training
release_canaries.py   canaries in released rows, moments and published methods
one_run.py            a lower bound from the canaries of one run (private/training/canaries.py)
membership.py         membership attacks on runs and releases: loss threshold and LiRA
shadow_models.py      the shadow models that LiRA compares a run's model with
inversion.py          images reconstructed from released rows
audit_file.py         reads and writes the sections of audit.json
hierarchical.py       an attack on hierarchical sampling, with the paper's noise and with sound noise
geometry.py           sharpness and gradients at a model's weights, and rules for writing the results
hessian.py            largest eigenvalues and trace of the Hessian of a loss
gradient_plane.py     gradients of single images in the plane of two mean gradients
pictures.py           plots of ROC curves, eigenvalues and gradients
"""

from typing import Any

# Public name -> module. Modules are imported on first use, so that reading a file of audits is fast.
_PUBLIC = {
    **dict.fromkeys(("Bound", "Estimate", "estimate", "lower_bound"), "bounds"),
    **dict.fromkeys(("PAPER", "Attack", "Setting", "attack", "paper_sigma", "scheduled", "setting"), "hierarchical"),
    "sound_sigma": "hierarchical",
}

__all__ = sorted(_PUBLIC)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        return getattr(import_module(f"dpvision.audit.{_PUBLIC[name]}"), name)
    raise AttributeError(f"module 'dpvision.audit' has no attribute {name!r}")
