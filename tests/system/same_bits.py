"""Digests of what small runs, releases and public trainings compute: the same before and after a change of the house.

    python -m tests.system.same_bits before.json        # on the code as it was
    python -m tests.system.same_bits after.json --against before.json

Noise is fixed by a test key, and the digest of the package's own source, which names the noise too, by a constant: so
equal digests mean that every draw, sum and step is the same. Digests depend on the machine and on the versions of
torch and numpy, so they are compared on one machine and not kept.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file

# Where the digest of the package's source is computed, now and in earlier layouts.
SOURCES = ("dpvision.storage.home", "dpvision.storage.software", "dpvision.private.training.state")

PRIVATE = "--epsilon 3 --n 160 --batch 40 --steps 4 --budget 1000 --classes a,b,c,d"
NETWORK = "--model wrn-10-1 --physical 64"
ASSISTED = f"train DATA {PRIVATE} --model small-cnn --public PUBLIC --public-batch 16"

# Name -> command; DATA and the like are files that `write_data` makes, and earlier results by their name.
RUNS = {
    "linear": f"train DATA {PRIVATE}",
    "digits": "train digits --epsilon 3 --steps 5",
    "persons": "train PERSONS --epsilon 3 --n 60 --batch 20 --steps 4 --unit person --classes a,b,c,d",
    "dp-sgd": f"train DATA {PRIVATE} --recipe dp-sgd {NETWORK}",
    "self-aug": f"train DATA {PRIVATE} --recipe self-aug --k-base 4 {NETWORK}",
    "dp-mix-self": f"train DATA {PRIVATE} --recipe dp-mix-self --k-base 3 --k-self 3 {NETWORK}",
    "dp-mix-diff": f"train DATA {PRIVATE} --recipe dp-mix-diff --k-base 3 --k-self 3 --k-diff 2 --public PUBLIC {NETWORK}",
    "cutmix": f"train DATA {PRIVATE} --model small-cnn --k-base 3 --k-self 2 --mix cutmix --augment autoaugment,jitter,cutout",
    "per-layer": f"train DATA {PRIVATE} --model tanh-cnn --clip-style per-layer",
    "automatic": f"train DATA {PRIVATE} --model vit-tiny --clip-style automatic",
    "scatter": f"train DATA {PRIVATE} --recipe scatter-linear --final-noise 1",
    "patches": f"train DATA {PRIVATE} --recipe patches",
    "canaries": f"train DATA {PRIVATE} --model small-cnn --canaries 20",
    "phases": f"train DATA {PRIVATE} --model wrn-10-1 --physical 64 --probe-steps 2 --probe-lr 1",
    "weights": f"{ASSISTED} --assist weights --k-base 2 --augment crop,flip",
    "dope": f"{ASSISTED} --assist dope",
    "mirror": f"{ASSISTED} --assist mirror",
    "adadps": f"{ASSISTED} --assist adadps",
    "moments": "release DATA --epsilon 1 --n 160 --classes a,b,c,d --encoder pixels --rows 200",
    "neuromix": "release DATA --epsilon 1 --n 160 --classes a,b,c,d --encoder pixels --recipe neuromix --rows 100",
    "neuromix-hs": "release DATA --epsilon 1 --n 160 --class-counts 40,40,40,40 --classes a,b,c,d --encoder pixels --recipe neuromix-hs --drawn 2 --rows 100",
    "class-schedule": "release DATA --epsilon 1 --n 160 --class-counts 40,40,40,40 --classes a,b,c,d --encoder scatter-linear --recipe class-schedule --rows 100",
    "dpmix": "release DATA --epsilon 1 --n 160 --classes a,b,c,d --recipe dpmix --rows 100",
    "warm": "warm PUBLIC --model wrn-10-1 --batch 16 --steps 6 --optimiser sam",
    "pretrain": "pretrain --model wrn-10-1 --process dead-leaves-mixed --size 16 --count 40 --batch 16 --steps 3 --hidden 32",
    "edm": "synth fit PUBLIC --size tiny --steps 4 --batch 8",
    "guide": "synth guide EDM PUBLIC --samples 24 --extractor-steps 3 --steps 3 --batch 8 --width 8",
    "sample": "synth sample EDM --guide GUIDE --count 8 --batch 4 --steps 4",
    "from-warm": f"train DATA {PRIVATE} --model wrn-10-1 --physical 64 --pretrained WARM",
}  # fmt: skip


def write_data(folder: Path) -> dict[str, str]:
    """A private data set, the same with persons, and a public one: random images."""
    rng = np.random.default_rng(0)

    def split(name: str, count: int) -> dict[str, np.ndarray]:
        images = rng.integers(0, 256, (count, 16, 16, 3), dtype=np.uint8)
        return {f"{name}_images": images, f"{name}_labels": np.arange(count) % 4}

    arrays = split("train", 160) | split("test", 40)
    np.savez(folder / "data.npz", **arrays)
    arrays = split("train", 160) | split("test", 40)
    persons = {"train_persons": np.arange(160) % 60, "test_persons": 100 + np.arange(40)}
    np.savez(folder / "persons.npz", **arrays, **persons)
    np.savez(folder / "public.npz", **split("train", 48))
    return {
        "DATA": str(folder / "data.npz"),
        "PERSONS": str(folder / "persons.npz"),
        "PUBLIC": str(folder / "public.npz"),
        "WARM": str(folder / "warm" / "weights.safetensors"),
        "EDM": str(folder / "edm"),
        "GUIDE": str(folder / "guide"),
    }


def digest(out: Path) -> str:
    """Of all tensors that a command wrote for release, by name; of an .npz file, of its arrays."""
    hasher = hashlib.blake2b(digest_size=12)
    files = [out] if out.is_file() else sorted(p for p in out.glob("*.safetensors"))
    if not files:
        return "nothing was written"
    for path in files:
        tensors = dict(np.load(path)) if path.suffix == ".npz" else load_file(path)
        for name, values in sorted(tensors.items()):
            hasher.update(f"{path.name} {name} {values.dtype} {values.shape}".encode() + values.tobytes())
    return hasher.hexdigest()


def run(folder: Path, name: str, words: list[str]) -> str:
    out = folder / (f"{name}.npz" if name == "sample" else name)
    env = os.environ | {"DPVISION_TEST_KEY": "same bits", "DPVISION_HOME": str(folder / f"home-{name}")}
    env |= {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.system.same_bits", "--one", *words, "--out", str(out)]
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    if done.returncode:
        return f"exit {done.returncode}: {done.stderr.strip()[-300:]}"
    return digest(out)


def one(words: list[str]) -> None:
    """The command line, in a process in which the package's source has a fixed name."""
    for name in SOURCES:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, "source"):
            module.source = lambda *_, **__: "the same source"
            break
    from dpvision.cli import main

    sys.argv = ["dpvision", *words]
    main()


def main() -> int:
    if sys.argv[1:2] == ["--one"]:
        one(sys.argv[2:])
        return 0
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path, help="JSON file of the digests")
    parser.add_argument("--against", type=Path, help="digests to compare with")
    parser.add_argument("--only", help="names with commas between")
    given = parser.parse_args()
    before = json.loads(given.against.read_text()) if given.against else {}
    results, different = {}, []
    with tempfile.TemporaryDirectory() as made:
        places = write_data(Path(made))
        for name, command in RUNS.items():
            if given.only and name not in given.only.split(","):
                continue
            began = time.monotonic()
            results[name] = run(Path(made), name, [places.get(word, word) for word in command.split()])
            same = "" if name not in before else "same" if results[name] == before[name] else f"WAS {before[name]}"
            different += [name] if same.startswith("WAS") else []
            print(f"{name:16} {results[name]} {time.monotonic() - began:5.1f} s {same}", flush=True)
    given.out.write_text(json.dumps(results, indent=1) + "\n")
    return 1 if different or any(v.startswith("exit") for v in results.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
