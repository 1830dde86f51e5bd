"""Renders directories with kustomize, and writes YAML files for the generators that process the rendered objects."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from localcluster.programs import build


def render_directory(directory: Path) -> str:
    """Render a kustomization as YAML. Raises `CalledProcessError` if kustomize rejects the kustomization."""
    command = [str(build.ensure_programs() / "kubectl"), "kustomize", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class BlockDumper(yaml.SafeDumper):
    """A YAML dumper that writes multi-line strings as block scalars, and repeats values instead of using aliases."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True, so that a value that occurs twice is written twice and each document is complete."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


BlockDumper.add_representer(str, _represent_text)
