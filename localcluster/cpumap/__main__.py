"""Generates kube/cpu_labels/models.json, the features of each x86 CPU model, from libvirt's CPU map.

The map is in libvirt's source below `src/cpu_map`, and in Debian's package `libvirt0`:

    apt-get download libvirt0 && dpkg-deb -x libvirt0_*.deb libvirt
    python -m localcluster.cpumap libvirt/usr/share/libvirt/cpu_map 9.0.0

libvirt's license is LGPL-2.1-or-later. The generated file contains no copy of libvirt's files, only the names of CPU
models and their features.
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
    """Return the sorted features of each x86 CPU model in a directory of libvirt's CPU map, by model name."""
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
    """Return the features of a CPU model and of its base models.

    The model does not include features that libvirt added to it or removed from it in a later version; libvirt lists
    such features in each guest's definition.
    """
    features = {
        feature.attrib["name"]
        for feature in models[name].findall("feature")
        if not {"added", "removed"} & set(feature.attrib)
    }
    return features.union(*(_collect_features(base.attrib["name"], models) for base in models[name].findall("model")))


def format_models(features_by_model: dict[str, list[str]], version: str) -> str:
    """Return the content of models.json, with one CPU model per line."""
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
