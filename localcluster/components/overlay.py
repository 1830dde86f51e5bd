"""Overlays with a custom set of components, written as an administrator would write them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from localcluster.components.selection import ADMISSION, CERTIFICATES, DEFAULT, FOREIGN, Wings

LEFT_OUT = (ADMISSION, CERTIFICATES)
"""Components that the overlays include as kustomize components; `maintenance` is the rest of an overlay."""
COMPACT = "compact"


def folder_of(shipped: Path, wings: Wings, fresh: Path) -> Path:
    """Return an overlay's directory with these components: the shipped one for the default set, else a new one."""
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
    """Return the kustomize components of an overlay for these components of the product.

    Each opt-in component is added next to each entry of `certificates`. In an overlay with `compact`, where one process
    serves all functions, it is added once, before `compact`.
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
    """Return the resource's entry; a file is copied, since kustomize only reads files below the overlay's directory."""
    return Path(shutil.copy(path, folder)).name if path.is_file() else relative(folder, path)


def relative(folder: Path, path: Path) -> str:
    """Return a path relative to the overlay's directory, since kustomize only accepts relative paths."""
    return os.path.relpath(path.resolve(), folder.resolve())
