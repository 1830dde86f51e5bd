"""Writes kustomize overlays with a custom set of components, as an administrator would write them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import yaml

from localcluster.components.selection import (
    ADMISSION,
    CERTIFICATES,
    DEFAULT_COMPONENTS,
    OPT_IN_COMPONENTS,
    Components,
)

OPTIONAL_COMPONENTS = (ADMISSION, CERTIFICATES)
"""Default components that the overlays list under `components`; `maintenance` is in the overlays' resources."""
COMPACT_COMPONENT = "compact"


def ensure_overlay(base_overlay: Path, components: Components, new_directory: Path) -> Path:
    """Return an overlay's directory: `base_overlay` for the default components, else a new one with `components`."""
    if set(components) == set(DEFAULT_COMPONENTS):
        return base_overlay
    new_directory.mkdir(parents=True, exist_ok=True)
    content = yaml.safe_load((base_overlay / "kustomization.yaml").read_text())
    kustomization = {
        **content,
        "resources": [_resolve_resource(new_directory, base_overlay / path) for path in content["resources"]],
        "components": [
            make_relative(new_directory, base_overlay / path)
            for path in select_components(content["components"], components)
        ],
    }
    (new_directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    return new_directory


def select_components(base_components: list[str], components: Components) -> list[str]:
    """Return the paths of the kustomize components that an overlay needs for these components of the product.

    Each opt-in component is inserted before each path of `certificates`. In an overlay with `compact`, where one
    process serves all functions, each opt-in component is inserted only once, before `compact`.
    """
    opt_in = [
        component
        for component in OPT_IN_COMPONENTS
        if component in components and not any(_is_component_path(component, path) for path in base_components)
    ]
    anchor = (
        COMPACT_COMPONENT
        if any(_is_component_path(COMPACT_COMPONENT, path) for path in base_components)
        else CERTIFICATES
    )
    excluded = [component for component in OPTIONAL_COMPONENTS if component not in components]
    selected = []
    for path in base_components:
        if _is_component_path(anchor, path):
            selected += [path.replace(f"/{anchor}", f"/{component}") for component in opt_in]
        if not any(_is_component_path(component, path) for component in excluded):
            selected.append(path)
    return selected


def _is_component_path(component: str, path: str) -> bool:
    return path.split("/components/")[1].split("/")[0] == component


def _resolve_resource(directory: Path, path: Path) -> str:
    """Return the overlay's entry for a resource; copy a file, because kustomize rejects files outside the overlay."""
    return Path(shutil.copy(path, directory)).name if path.is_file() else make_relative(directory, path)


def make_relative(directory: Path, path: Path) -> str:
    """Return the path relative to the overlay's directory, because kustomize rejects absolute paths."""
    return os.path.relpath(path.resolve(), directory.resolve())
