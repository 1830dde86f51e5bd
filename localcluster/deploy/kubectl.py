"""Runs kubectl with the current kubeconfig, and finds and renders overlays."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.deploy.preflight import PLACEHOLDER_IMAGE, set_default_namespace
from localcluster.errors import LocalClusterError
from localcluster.programs import build
from localcluster.servers import ROOT

OVERLAYS_DIR = ROOT / "manifests" / "overlays"


def find_overlay(overlay: str) -> Path:
    """Return an overlay's directory. Raises `LocalClusterError`, which lists the shipped overlays, if none exists.

    The function expands a leading `~`, which a shell does not expand inside `OVERLAY=`.
    """
    for folder in (OVERLAYS_DIR / overlay, Path(os.path.expanduser(overlay))):
        if overlay and (folder / "kustomization.yaml").is_file():
            return folder
    shipped = ", ".join(sorted(entry.parent.name for entry in OVERLAYS_DIR.glob("*/kustomization.yaml")))
    raise LocalClusterError(
        f"OVERLAY={overlay}: no kustomization.yaml found: use a directory that contains one, or one of {shipped}"
    )


@dataclass(frozen=True)
class Kubectl:
    """A kubectl program with the current kubeconfig. If kubectl fails, most methods raise `LocalClusterError`."""

    program: str

    @classmethod
    def find(cls) -> Kubectl:
        """Find kubectl on PATH, or else the kubectl from `make build`, and check that the API server responds."""
        built = build.get_target_dir() / "kubectl"
        program = shutil.which("kubectl") or (str(built) if built.is_file() else "")
        if not program:
            raise LocalClusterError("kubectl not found on PATH: install it, or build it with `make build`")
        kubectl = cls(program)
        probe = kubectl.run("get", "--raw", "/readyz", "--request-timeout=10s", check=False)
        if probe.returncode:
            raise LocalClusterError(f"the API server does not respond: {probe.stderr.strip()}; check KUBECONFIG")
        return kubectl

    def run(self, *arguments: str, stdin: str = "", check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run kubectl and return its output; if `check` is false, a failure raises no error."""
        done = subprocess.run([self.program, *arguments], input=stdin, capture_output=True, text=True, check=False)
        if check and done.returncode:
            raise LocalClusterError(f"{' '.join(arguments)}: {done.stderr.strip()}")
        return done

    def show(self, *arguments: str, stdin: str = "") -> bool:
        """Run kubectl with its output on the terminal; return whether kubectl succeeded."""
        return subprocess.run([self.program, *arguments], input=stdin, text=True, check=False).returncode == 0

    def get_raw(self, path: str) -> Mapping[str, Any]:
        """Return the API server's response to a GET of this path, or {} if the response is NotFound."""
        done = self.run("get", "--raw", path, check=False)
        if done.returncode == 0:
            response: Mapping[str, Any] = json.loads(done.stdout)
            return response
        if "NotFound" in done.stderr:
            return {}
        raise LocalClusterError(f"cannot get {path}: {done.stderr.strip()}")

    def render(self, folder: Path, image: str = "") -> str:
        """Render an overlay as YAML; `image`, if given, replaces the placeholder image."""
        if not image:
            return self.run("kustomize", str(folder)).stdout
        name, _, tag = image.rpartition(":")
        with tempfile.TemporaryDirectory() as directory:
            # Kustomize requires a relative path, whose ".." must not pass a symbolic link.
            resource = os.path.relpath(os.path.realpath(folder), os.path.realpath(directory))
            images = [{"name": PLACEHOLDER_IMAGE, "newName": name, "newTag": tag}]
            overlay = {"resources": [resource], "images": images}
            (Path(directory) / "kustomization.yaml").write_text(json.dumps(overlay))
            return self.run("kustomize", directory).stdout

    def parse(self, rendered: str) -> list[Mapping[str, Any]]:
        """Parse rendered YAML; objects without a namespace get the current context's namespace."""
        viewed = self.run("config", "view", "--minify", "-o", "jsonpath={.contexts[0].context.namespace}", check=False)
        return set_default_namespace(list(yaml.load_all(rendered, Loader=YAML_LOADER)), viewed.stdout or "default")
