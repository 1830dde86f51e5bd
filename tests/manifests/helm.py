"""Runs Helm with the chart in charts/node-maintenance."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.access import NAMESPACE
from localcluster.chart.conditions import BOOLEANS, Combination
from localcluster.chart.templates import CHART_DIR, KEEP_ANNOTATION
from localcluster.deploy.preflight import SIGNING_SECRET
from localcluster.processes import GO_ENV
from localcluster.programs import build
from tests.manifests.documented_commands import read_commands
from tests.manifests.rendering import ROOT, Manifest, get_identity

RELEASE = "node-maintenance"
IMAGE_NAME, IMAGE_TAG = "registry.example/nodemaintenance", "v1"
Values = Mapping[str, Any]
IMAGE_VALUES: Values = {"image": {"repository": IMAGE_NAME, "tag": IMAGE_TAG}}
HOOK_ANNOTATION = "helm.sh/hook"


def run_helm(
    *arguments: str | Path, values: Values | None = None, kubeconfig: Path | None = None, check: bool = True
) -> subprocess.CompletedProcess[str]:
    """Run Helm in the repository with these chart values, and with a separate directory for Helm's own files.

    Raises `AssertionError` with Helm's output if it fails, unless `check` is false.
    """
    home = build.get_cache_dir() / "helm-home"
    environment = {
        **{name: value for name, value in os.environ.items() if name != "KUBECONFIG"},
        **GO_ENV,
        **{f"HELM_{kind}_HOME": str(home / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")},
        "KUBECONFIG": str(kubeconfig or os.devnull),
    }
    options = ["--values", "-"] if values is not None else []
    command = [build.ensure_programs(build.HELM) / "helm", *arguments, *options]
    stdin = json.dumps(values) if values is not None else None
    done = subprocess.run(command, input=stdin, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    assert not check or done.returncode == 0, done.stderr or done.stdout
    return done


def read_documented_arguments(heading: str, subcommand: str) -> list[str]:
    """Return the arguments of the Helm command with this subcommand below a heading of docs/helm.md."""
    commands = [command for command in read_commands("helm.md", heading) if command.startswith(f"helm {subcommand} ")]
    (command,) = commands
    return shlex.split(command)[1:]


def render_release(values: Values) -> list[Manifest]:
    """Render the chart like `helm install`, but without a cluster, and return all objects."""
    return parse_manifests(run_helm("template", RELEASE, CHART_DIR, "--namespace", NAMESPACE, values=values).stdout)


def parse_manifests(text: str) -> list[Manifest]:
    """Return the Kubernetes objects in Helm's output."""
    documents = yaml.load_all(text, Loader=YAML_LOADER)
    return [document for document in documents if document is not None]


def normalize(objects: list[Manifest]) -> dict[tuple[str, str, str, str], Manifest]:
    """Return the objects by identity, without Helm's additions.

    These are the hooks of `helm test` and `helm uninstall`, the annotation of kept objects, and the Secret `signing`,
    which `make deploy` creates for an overlay.
    """
    found = {}
    for manifest in objects:
        annotations = manifest["metadata"].get("annotations", {})
        if HOOK_ANNOTATION in annotations or (manifest["kind"], manifest["metadata"]["name"]) == (
            "Secret",
            SIGNING_SECRET,
        ):
            continue
        if annotations.pop(KEEP_ANNOTATION, None) and not annotations:
            del manifest["metadata"]["annotations"]
        assert get_identity(manifest) not in found, f"the chart contains {get_identity(manifest)} twice"
        found[get_identity(manifest)] = manifest
    return found


def build_values(combination: Combination) -> dict[str, Any]:
    """Return the chart values for a combination of options, with the tests' image."""
    values: dict[str, Any] = {**IMAGE_VALUES}
    for path, text in combination.items():
        *parents, name = path.split(".")
        target = values
        for parent in parents:
            target = target.setdefault(parent, {})
        target[name] = text == "true" if text in BOOLEANS else text
    return values
