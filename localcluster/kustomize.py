"""Renders directories with kustomize, and writes YAML files for the generators that start from the result."""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml

from localcluster.programs import build


def render_directory(directory: Path) -> str:
    """Return the objects of a kustomization as YAML. Raises `CalledProcessError` if kustomize rejects it."""
    command = [str(build.ensure_programs() / "kubectl"), "kustomize", str(directory)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


class BlockDumper(yaml.SafeDumper):
    """Writes texts of several lines as block scalars, and no anchors, which a part of a file would lack."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True: values that occur twice are written twice."""
        return True


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


BlockDumper.add_representer(str, _represent_text)
