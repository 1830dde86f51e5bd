"""Which features a CPU model has, by the tables in models.json, and which models are always obsolete (OSV-30, OSV-34).

`python -m localcluster.cpumap` makes the file, of the CPU map of libvirt, which it names with its licence.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("models.json")
ALWAYS_OBSOLETE = frozenset(
    (
        *("486", "Conroe", "athlon", "core2duo", "coreduo", "kvm32", "kvm64", "n270"),
        *("pentium", "pentium2", "pentium3", "pentiumpro", "phenom", "qemu32", "qemu64"),
    )
)
"""Models that no node is labelled with, whatever HyperConverged says."""


def features_of(model: str) -> frozenset[str] | None:
    """The features of a model; None for one that is in no table. Names are case-sensitive."""
    features = _tables().get(model)
    return None if features is None else frozenset(features.split())


@cache
def _tables() -> dict[str, str]:
    """Model → its features in one text; read at first need, once."""
    tables: dict[str, str] = json.loads(FILE.read_text())["models"]
    return tables
