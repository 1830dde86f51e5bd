"""Renders manifests with kustomize, and installs Knative's CRDs from Knative's Go modules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import YAML_LOADER
from localcluster.cluster import LocalCluster
from localcluster.programs import build
from tests.sources import list_steps

Manifest = dict[str, Any]
ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(file.parent.name for file in MANIFESTS.glob("overlays/*/kustomization.yaml"))
STEPWISE_OVERLAY = "operator"
"""The overlay from which the last file of the stepwise install is generated; it is not a complete install."""
INSTALL_OVERLAYS = [name for name in OVERLAYS if name != STEPWISE_OVERLAY]
CERTIFICATES_OVERLAYS = ("compact", "kafka", "knative", "mutex", "plain", "rabbitmq")
"""Overlays with the function `renew-certificates`, which always runs in a separate process.

The overlay `func` has only one Service, and other overlays have a different namespace and ServiceAccount.
"""
MUTEX_OVERLAY = "mutex"
OPTIONAL_COMPONENTS = {MUTEX_OVERLAY: ("mutex",), "hyperconverged": ("virtualization", "cpu_labels")}
"""Map from overlay to its optional components; an overlay that is not listed has none."""
INSTALL_DIRS = [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in INSTALL_OVERLAYS)]
"""Directories that a user installs with `kubectl apply -k`."""
SHARED_LABEL = "nodemaintenance.dev/shared"
"""Label of objects that other products also use, and that an uninstall therefore keeps."""
SKIP_SCHEMA_OPTION = "--openapi-patch=false"
"""Option of `kubectl apply` that skips OpenAPI schemas, and reduces CPU time to a fifth with equal patches."""

ALWAYS_SENT_PREFIX = "poddisruptionbudget.policy/"
"""Output prefix of `kubectl apply` for a PodDisruptionBudget.

kubectl sends the PDB's selector on every apply, because this field has the patch strategy `replace`. The API server
then changes nothing.
"""

SECURITY_CONTEXT = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of every container."""

KNATIVE_CRD_DIRS = (
    ("knative", "knative.dev/eventing", "config/core/resources"),
    ("knative", "knative.dev/eventing", "config/channels/in-memory-channel/resources"),
    ("serving", "knative.dev/serving", "config/core/300-resources"),
)
"""Map from directory of CRDs to Go module in this repository, Knative's Go module, and path within that module."""
RABBITMQ_CRD_FILE = ("rabbitmq", "knative.dev/eventing-rabbitmq", "config/broker/300-rabbitmqbrokerconfig.yaml")
"""Go module in this repository, Knative's Go module, and path of the CRD that the RabbitMQ Broker needs."""


@cache
def render_yaml(folder: Path) -> str:
    """Render a directory with kustomize, and return the YAML output."""
    command = [str(build.ensure_programs() / "kubectl"), "kustomize", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def render(folder: Path) -> list[Manifest]:
    """Render a directory, and return its objects as a copy that the caller may modify."""
    objects: list[Manifest] = json.loads(_render_json(folder))
    return objects


@cache
def _render_json(folder: Path) -> str:
    """Render a directory, and return its objects as JSON, which is parsed hundreds of times faster than YAML."""
    return json.dumps(list(yaml.load_all(render_yaml(folder), Loader=YAML_LOADER)))


def render_overlay(name: str) -> list[Manifest]:
    """Render an overlay, and return its objects."""
    return render(MANIFESTS / "overlays" / name)


def filter_by_kind(objects: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    """Return the objects of these kinds."""
    return [manifest for manifest in objects if manifest["kind"] in kinds]


def get_identity(manifest: Manifest) -> tuple[str, str, str, str]:
    """Return the fields that identify an object in a cluster: API version, kind, namespace and name."""
    metadata = manifest["metadata"]
    return manifest["apiVersion"], manifest["kind"], metadata.get("namespace", ""), metadata["name"]


def list_rights(objects: list[Manifest]) -> set[tuple[str, str, str, str]]:
    """Return the permissions in all roles as tuples (namespace, API group, resource, verb)."""
    return {
        (manifest["metadata"].get("namespace", ""), group, resource, verb)
        for manifest in objects
        for rule in manifest.get("rules", [])
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def get_pod_templates(objects: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return a map from workload name to pod template for the functions and PodSource."""
    workloads = [manifest for manifest in objects if "template" in manifest.get("spec", {})]
    return {manifest["metadata"]["name"]: manifest["spec"]["template"] for manifest in workloads}


def fetch_knative_crds() -> list[Path]:
    """Return the files of Knative's CRDs; the Go toolchain for the servers downloads them."""
    folders = [
        build.download_program_module(package, module) / subdirectory
        for package, module, subdirectory in KNATIVE_CRD_DIRS
    ]
    return [*(file for folder in folders for file in sorted(folder.glob("*.yaml"))), fetch_rabbitmq_crd()]


def install_knative_crds(cluster: LocalCluster) -> None:
    """Apply Knative's CRDs, without its controllers, and wait until they are Established."""
    files = [argument for file in fetch_knative_crds() for argument in ("-f", str(file))]
    cluster.kubectl("apply", "--server-side", *files)
    cluster.wait_for_crds()


def fetch_rabbitmq_crd() -> Path:
    """Return the file of the CRD for the RabbitMQ Broker's configuration."""
    package, module, path_in_module = RABBITMQ_CRD_FILE
    return build.download_program_module(package, module) / path_in_module


def list_optional_steps(name: str) -> set[str]:
    """Return the names of the functions in an overlay's optional components."""
    return {step for component in OPTIONAL_COMPONENTS.get(name, ()) for step in list_steps(component)}


def list_changed_objects(output: str) -> list[str]:
    """Return the lines of `kubectl apply` about changed objects, except those with `ALWAYS_SENT_PREFIX`."""
    lines = output.splitlines()
    return [line for line in lines if not line.endswith(" unchanged") and not line.startswith(ALWAYS_SENT_PREFIX)]
