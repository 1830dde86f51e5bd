"""An overlay with other wings than the shipped one has, as an administrator would write it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from localcluster.wings.choice import ADMISSION, CERTIFICATES, DEFAULT, FOREIGN, Wings

LEFT_OUT = (ADMISSION, CERTIFICATES)
"""Wings that are a component of the overlays. What `maintenance` needs is the rest of them."""
COMPACT = "compact"


def folder_of(shipped: Path, wings: Wings, fresh: Path) -> Path:
    """Give the folder of an overlay with these wings: the shipped one if it has just these, else one made now."""
    if set(wings) == set(DEFAULT):
        return shipped
    fresh.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load((shipped / "kustomization.yaml").read_text())
    written = {
        **content,
        "resources": [_resource(fresh, shipped / path) for path in content["resources"]],
        "components": [relative(fresh, shipped / path) for path in components(content["components"], wings)],
    }
    (fresh / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return fresh


def components(shipped: list[str], wings: Wings) -> list[str]:
    """Give the components of an overlay for these wings.

    An opt-in one comes beside its like of `certificates`, and alone, before `compact`, where one process serves all.
    """
    opted = [wing for wing in FOREIGN if wing in wings and not any(_is_of(wing, path) for path in shipped)]
    beside = COMPACT if any(_is_of(COMPACT, path) for path in shipped) else CERTIFICATES
    found = []
    for path in shipped:
        if _is_of(beside, path):
            found += [path.replace(f"/{beside}", f"/{wing}") for wing in opted]
        if not any(_is_of(wing, path) for wing in LEFT_OUT if wing not in wings):
            found.append(path)
    return found


def _is_of(part: str, path: str) -> bool:
    return path.split("/components/")[1].split("/")[0] == part


def _resource(folder: Path, path: Path) -> str:
    """Kustomize takes files from below a folder alone: one of the overlay's own is copied."""
    return Path(shutil.copy(path, folder)).name if path.is_file() else relative(folder, path)


def relative(folder: Path, path: Path) -> str:
    """Give a path as an overlay in that folder names it: kustomize takes relative ones alone."""
    return os.path.relpath(path.resolve(), folder.resolve())
