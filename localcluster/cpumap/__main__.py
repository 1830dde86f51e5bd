"""Generates kube/cpu_labels/models.json, the features of each x86 CPU model, from libvirt's CPU map.

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

from kube.cpu_labels.capabilities import MODELS_FILE
from localcluster.errors import LocalClusterError

SOURCE_TEMPLATE = "libvirt {version}, src/cpu_map/x86_*.xml, LGPL-2.1-or-later, https://libvirt.org"


def parse_models(directory: Path) -> dict[str, list[str]]:
    """Return the sorted features of every x86 model in the map's directory."""
    elements = [
        model
        for file in sorted(directory.glob("x86_*.xml"))
        for model in ElementTree.parse(file).getroot().findall("model")  # noqa: S314 - a file of the distribution
    ]
    if not elements:
        raise LocalClusterError(
            f"directory {directory} has no x86_*.xml file with a model: pass libvirt's directory cpu_map"
        )
    models = {model.attrib["name"]: model for model in elements}
    return {name: sorted(_collect_features(name, models)) for name in sorted(models)}


def _collect_features(name: str, models: dict[str, ElementTree.Element]) -> set[str]:
    """Return the features of a model and of its base models.

    Features that libvirt later added to a model or removed from it are listed per guest, so they are not part of the
    model.
    """
    features = {
        feature.attrib["name"]
        for feature in models[name].findall("feature")
        if not {"added", "removed"} & set(feature.attrib)
    }
    return features.union(*(_collect_features(base.attrib["name"], models) for base in models[name].findall("model")))


def format_models(features_by_model: dict[str, list[str]], version: str) -> str:
    """Return the file's content, one model per line."""
    lines = [f"  {json.dumps(name)}: {json.dumps(' '.join(features))}" for name, features in features_by_model.items()]
    source = json.dumps(SOURCE_TEMPLATE.format(version=version))
    return f'{{"source": {source}, "models": {{\n' + ",\n".join(lines) + "\n}}\n"


def main() -> None:
    """Write `models.json` into the package `kube.cpu_labels`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("directory", type=Path, help="libvirt's directory cpu_map")
    parser.add_argument("version", help="libvirt's version, which the generated file states")
    arguments = parser.parse_args()
    MODELS_FILE.write_text(format_models(parse_models(arguments.directory), arguments.version))


if __name__ == "__main__":
    main()
