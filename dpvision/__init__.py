"""Differentially private image learning: private images in, a classifier and its proof out."""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"

# Name -> module. Loaded on first use, so that `import dpvision` costs nothing.
_HOMES = {
    "Budget": "dpvision.core.events",
    "Composed": "dpvision.core.events",
    "ClassScheduled": "dpvision.core.events",
    "Config": "dpvision.settings.training",
    "DPVisionError": "dpvision.errors",
    "Gaussian": "dpvision.core.events",
    "PoissonGaussian": "dpvision.core.events",
    "PrivacyWarning": "dpvision.errors",
    "PrivateImageClassifier": "dpvision.estimators",
    "PrivateRelease": "dpvision.estimators",
    "account_of": "dpvision.estimators",
}

__all__ = ["__version__", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        from importlib import import_module

        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'dpvision' has no attribute {name!r}")
