"""The model whose features are averaged over the views of an image in which the class is the same.

    none        the image as it is
    mirror      the image and its mirror image
    rotations   the four rotations by right angles, each with its mirror image

The average is taken inside the features of each image, before they are bounded, so it changes no sensitivity. Each such
model has a name of its own, which names its dictionary of patches and its cached features too: features of different
symmetries are never mixed up.
"""

from __future__ import annotations

from dpvision.errors import ConfigError

SYMMETRIES = ("none", "mirror", "rotations")
_PATCHES = {"none": "{0}-plain", "mirror": "{0}", "rotations": "{0}-rotations"}
_OF_PATCHES = ("patches-256", "patches-1024", "patches-pyramid", "patches-coarse")
FAMILIES: tuple[dict[str, str], ...] = (
    *({symmetry: name.format(base) for symmetry, name in _PATCHES.items()} for base in _OF_PATCHES),
    {"none": "scatter-linear", "mirror": "scatter-linear-mirrored"},
    {"none": "scatter-linear-centred", "mirror": "scatter-linear-mirrored-centred"},
    {"none": "scatter-cnn", "mirror": "scatter-cnn-mirrored"},
)


def with_symmetry(model: str, symmetry: str | None) -> str:
    """Return the name of the model of the same family that has this symmetry; without one, the model itself."""
    if symmetry is None:
        return model
    base, at, side = model.partition("@")
    base = "patches-1024" if base == "patches" else base
    family = next((names for names in FAMILIES if base in names.values()), {})
    if symmetry not in family:
        known = f"It has {' and '.join(family)}." if family else "Patches and scattering have some."
        raise ConfigError(
            f"symmetry is {symmetry!r}: there is no {base} with it. {known} Fix: leave --symmetry out, or use "
            "--model patches-1024 or another model that has it."
        )
    return family[symmetry] + at + side
