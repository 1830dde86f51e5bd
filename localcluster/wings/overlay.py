"""An overlay with other wings than the shipped one has, as an administrator would write it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from localcluster.wings.choice import ADMISSION, CERTIFICATES, DEFAULT, MUTEX, Wings

LEFT_OUT = (ADMISSION, CERTIFICATES)
"""Wings that are a component of the overlays. What `maintenance` needs is the rest of them."""


def folder_of(shipped: Path, wings: Wings, fresh: Path) -> Path:
    """Give the folder of an overlay with these wings: the shipped one if it has just these, else one made now."""
    if set(wings) == set(DEFAULT):
        return shipped
    fresh.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load((shipped / "kustomization.yaml").read_text())
    written = {
        **content,
        "resources": [_from(fresh, shipped / path) for path in content["resources"]],
        "components": [_from(fresh, shipped / path) for path in components(content["components"], wings)],
    }
    (fresh / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return fresh


def components(shipped: list[str], wings: Wings) -> list[str]:
    """Give the components of an overlay for these wings: those of the mutex each beside its like of `certificates`."""
    found = []
    for path in shipped:
        if not any(path.split("/components/")[1].split("/")[0] == wing for wing in LEFT_OUT if wing not in wings):
            found.append(path)
        if MUTEX in wings and f"/{CERTIFICATES}" in path:
            found.append(path.replace(f"/{CERTIFICATES}", f"/{MUTEX}"))
    return found


def _from(folder: Path, path: Path) -> str:
    """Kustomize takes relative paths alone."""
    up: Any = Path(*[".."] * (len(folder.resolve().parts) - 1))
    return str(up / path.resolve().relative_to("/"))
