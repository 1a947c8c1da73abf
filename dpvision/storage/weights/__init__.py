"""Weights of public networks by name: which there are, where they come from, and the downloaded files.

registry.py   the networks: source, pinned revision, digest, licence, what they were trained on, input and features
store.py      the folder $DPVISION_HOME/weights: a verified file and a record for each network
download.py   one file over HTTP: resumed, bounded, never trusted
hub.py        the same through huggingface_hub, if it is installed

Only safetensors files are accepted. A file gets its name only after its digest and its format have been verified, so an
incomplete or wrong file is never used.
"""

from dpvision.storage.weights.registry import NETWORKS, PublicWeights, entry_of, is_name
from dpvision.storage.weights.store import (
    Fetched,
    Record,
    declared,
    describe,
    find,
    get,
    identify,
    network_at_hand,
    path_of,
    record_of,
    resolve,
)

__all__ = [
    "NETWORKS",
    "Fetched",
    "PublicWeights",
    "Record",
    "declared",
    "describe",
    "entry_of",
    "find",
    "get",
    "identify",
    "is_name",
    "network_at_hand",
    "path_of",
    "record_of",
    "resolve",
]
