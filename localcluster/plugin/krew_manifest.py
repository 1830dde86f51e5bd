"""Writes the manifest from which krew installs the archives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import yaml

from localcluster.plugin.archives import PROGRAM
from localcluster.plugin.libraries import Platform
from localcluster.servers import ROOT

SOURCE = "deploy/krew/maintenance.yaml"


def write_manifest(version: str, url: str, archives: Mapping[Platform, Path], directory: Path) -> Path:
    """Fill the manifest `SOURCE` with the version and the archives; write it to `directory`, and return its path.

    In: the URL of the directory from which users download the archives.
    """
    manifest = yaml.safe_load((ROOT / SOURCE).read_text())
    manifest["spec"]["version"] = f"v{version}"
    manifest["spec"]["platforms"] = [
        {
            "selector": {"matchLabels": {"os": platform.os, "arch": platform.architecture}},
            "uri": f"{url.rstrip('/')}/{archive.name}",
            "sha256": hashlib.sha256(archive.read_bytes()).hexdigest(),
            "bin": PROGRAM,
        }
        for platform, archive in archives.items()
    ]
    path = directory / Path(SOURCE).name
    path.write_text(yaml.safe_dump(manifest, sort_keys=False, width=1000))
    return path
