"""Settings that the tests of baselines share: small ones that release every kind of vector."""

from __future__ import annotations

from typing import Any

_FEW = {"steps": 2, "batch": 8, "hidden": 6, "code": 2}
SETTINGS: dict[str, dict[str, Any]] = {
    "merf": {"method": "merf", "size": 8, **_FEW},
    "merf, balanced": {"method": "merf", "size": 7, "length": 0.1, "balanced": True, "unit": True, **_FEW},
    "hermite": {"method": "hermite", "order": 3, "products": 4, "unit": True, **_FEW},
    "hermite, three together": {"method": "hermite", "order": 2, "together": 3, "products": 3, "scale": 3.0, **_FEW},
    "hermite, sums alone": {"method": "hermite", "order": 5, "rho": 0.9, "products": 0, "balanced": True, **_FEW},
    "p3gm": {"method": "p3gm", "latent": 3, "unit": True},
    "p3gm, shared, repeated": {"method": "p3gm", "latent": 2, "shared": True, "repeats": 2, "nonnegative": True},
    "p3gm, some components": {"method": "p3gm", "latent": 3, "components": 2, "rounds": 2},
    "p3gm, a network": {"method": "p3gm", "latent": 3, "steps": 2, "hidden": 4, "clip": 0.3},
}
RELEASES = {"p3gm": 2, "p3gm, shared, repeated": 4, "p3gm, some components": 4, "p3gm, a network": 4}
