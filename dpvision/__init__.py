"""Differentially private image learning: train a classifier or publish features, with a proven bound on what leaks."""

from __future__ import annotations

from typing import Any

__version__ = "0.2.0"

# Public name -> (module, name in it). Modules are imported on first use, so that `import dpvision` is fast.
_PUBLIC = {
    "Budget": ("dpvision.core.events", "Budget"),
    "ClassScheduled": ("dpvision.core.events", "ClassScheduled"),
    "ClippedSum": ("dpvision.private.engine", "ClippedSum"),
    "Composed": ("dpvision.core.events", "Composed"),
    "Config": ("dpvision.settings.training", "Config"),
    "DPVisionError": ("dpvision.errors", "DPVisionError"),
    "Gaussian": ("dpvision.core.events", "Gaussian"),
    "PoissonGaussian": ("dpvision.core.events", "PoissonGaussian"),
    "PrivacyWarning": ("dpvision.errors", "PrivacyWarning"),
    "PrivateImageClassifier": ("dpvision.estimators", "PrivateImageClassifier"),
    "PrivateRelease": ("dpvision.estimators", "PrivateRelease"),
    "Release": ("dpvision.settings.release", "Release"),
    "Views": ("dpvision.views", "Views"),
    "account_of": ("dpvision.estimators", "account_of"),
    "certify": ("dpvision.core.certify", "certify"),
    "epsilon": ("dpvision.core.accountant", "epsilon"),
    "fit_head": ("dpvision.private.statistics", "fit_head"),
    "load_data": ("dpvision.data", "load"),
    "load_model": ("dpvision.released.model", "load_model"),
    "lower_bound": ("dpvision.audit", "lower_bound"),
    "plan": ("dpvision.settings.plan", "plan"),
}

__all__ = ["__version__", *sorted(_PUBLIC)]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        from importlib import import_module

        module, attribute = _PUBLIC[name]
        return getattr(import_module(module), attribute)
    raise AttributeError(f"module 'dpvision' has no attribute {name!r}")
