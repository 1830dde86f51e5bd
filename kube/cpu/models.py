"""CPU models: their features according to models.json, and the models that are always obsolete (OSV-30, OSV-34).

`python -m localcluster.cpumap` generates the file from libvirt's CPU map. The file names its source and licence.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

MODELS_FILE = Path(__file__).with_name("models.json")
ALWAYS_OBSOLETE_MODELS = frozenset(
    (
        *("486", "Conroe", "athlon", "core2duo", "coreduo", "kvm32", "kvm64", "n270"),
        *("pentium", "pentium2", "pentium3", "pentiumpro", "phenom", "qemu32", "qemu64"),
    )
)
"""Models for which no node gets a label, whatever HyperConverged specifies."""


def get_model_features(model: str) -> frozenset[str] | None:
    """Return the features of a model, None if the model is unknown. Names are case-sensitive."""
    features = _load_features_by_model().get(model)
    return None if features is None else frozenset(features.split())


@cache
def _load_features_by_model() -> dict[str, str]:
    """Return a mapping from model to the model's features in one string; the file is read once, at the first call."""
    features_by_model: dict[str, str] = json.loads(MODELS_FILE.read_text())["models"]
    return features_by_model
