"""Generates kube/cpu/models.json, the features of each x86 CPU model, from libvirt's CPU map.

The map is in libvirt's source below `src/cpu_map`, and in Debian's package `libvirt0`:

    apt-get download libvirt0 && dpkg-deb -x libvirt0_*.deb libvirt
    python -m localcluster.cpumap libvirt/usr/share/libvirt/cpu_map 9.0.0

libvirt is under LGPL-2.1-or-later. The generated file copies none of its files; it lists only the names of models and
their features.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from xml.etree import ElementTree

from kube.cpu.models import FILE
from localcluster.errors import LocalClusterError

SOURCE = "libvirt {version}, src/cpu_map/x86_*.xml, LGPL-2.1-or-later, https://libvirt.org"


def models(folder: Path) -> dict[str, list[str]]:
    """Return the sorted features of every x86 model in the map's directory."""
    found = [
        model
        for file in sorted(folder.glob("x86_*.xml"))
        for model in ElementTree.parse(file).getroot().findall("model")  # noqa: S314 - a file of the distribution
    ]
    if not found:
        raise LocalClusterError(f"{folder} has no x86_*.xml with a model: name libvirt's folder cpu_map")
    known = {model.attrib["name"]: model for model in found}
    return {name: sorted(_features(name, known)) for name in sorted(known)}


def _features(name: str, known: dict[str, ElementTree.Element]) -> set[str]:
    """Return the features of a model and of its base models.

    Features that libvirt later added to a model or removed from it are listed per guest, so they are not part of the
    model.
    """
    own = {
        each.attrib["name"] for each in known[name].findall("feature") if not {"added", "removed"} & set(each.attrib)
    }
    return own.union(*(_features(base.attrib["name"], known) for base in known[name].findall("model")))


def text(found: dict[str, list[str]], version: str) -> str:
    """Return the file's content, one model per line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(' '.join(features))}" for name, features in found.items()]
    source = json.dumps(SOURCE.format(version=version))
    return f'{{"source": {source}, "models": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    """Write `models.json` into the package `kube.cpu`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="libvirt's folder cpu_map")
    parser.add_argument("version", help="libvirt's version, which the file names")
    chosen = parser.parse_args()
    FILE.write_text(text(models(chosen.folder), chosen.version))


if __name__ == "__main__":
    main()
