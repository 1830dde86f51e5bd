"""The manifests as rendered by kustomize, and Knative's CRDs from its Go modules."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from eventing.local.manifests import LOADER
from localcluster.programs import build
from tests.sources import steps_of

Manifest = dict[str, Any]
ROOT = Path(__file__).parents[2]
MANIFESTS = ROOT / "manifests"
OVERLAYS = sorted(file.parent.name for file in MANIFESTS.glob("overlays/*/kustomization.yaml"))
STEPWISE = "operator"
"""The overlay from which the stepwise install files are generated; it is incomplete without them."""
INSTALLS = [name for name in OVERLAYS if name != STEPWISE]
WITH_CERTIFICATES = ("compact", "kafka", "knative", "mutex", "plain", "rabbitmq")
"""Overlays that renew certificates, each in a separate process.

The others are `func`, which consists of one Service, and those for another namespace and another account.
"""
WITH_MUTEX = "mutex"
OPTED = {WITH_MUTEX: ("mutex",), "hyperconverged": ("virtualization", "cpu_labels")}
"""Overlay → its optional components."""
FOLDERS = [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in INSTALLS)]
"""Directories that `kubectl apply -k` installs."""
SPARING = "--openapi-patch=false"
"""Option of `kubectl apply` that skips the schemas: the same patches take a fifth of the work."""

ALWAYS_SENT = "poddisruptionbudget.policy/"
"""Prefix of a PodDisruptionBudget in the output of `kubectl apply`.

kubectl sends its selector at each apply, because the field has the patch strategy `replace`. The server changes
nothing.
"""

CONFINED = {
    "runAsNonRoot": True,
    "readOnlyRootFilesystem": True,
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "seccompProfile": {"type": "RuntimeDefault"},
}
"""The security context of every container."""

KNATIVE = (
    ("knative", "knative.dev/eventing", "config/core/resources"),
    ("knative", "knative.dev/eventing", "config/channels/in-memory-channel/resources"),
    ("serving", "knative.dev/serving", "config/core/300-resources"),
)
"""Go module of this repository, Knative's Go module, and the directory of its CRDs."""
RABBITMQ = ("rabbitmq", "knative.dev/eventing-rabbitmq", "config/broker/300-rabbitmqbrokerconfig.yaml")
"""The same for the CRD that the RabbitMQ Broker adds. The Kafka Broker needs only those of Eventing."""


@cache
def text(folder: Path) -> str:
    """Return the rendered directory as YAML."""
    command = [str(build.servers() / "kubectl"), "kustomize", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rendered(folder: Path) -> list[Manifest]:
    """Return the objects of a rendered directory, as a copy that the caller may change."""
    objects: list[Manifest] = json.loads(_as_json(folder))
    return objects


@cache
def _as_json(folder: Path) -> str:
    """Return the objects as JSON, which is parsed hundreds of times faster than thousands of lines of YAML."""
    return json.dumps(list(yaml.load_all(text(folder), Loader=LOADER)))


def overlay(name: str) -> list[Manifest]:
    """Return the objects of one overlay."""
    return rendered(MANIFESTS / "overlays" / name)


def of_kind(objects: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    """Return the objects of these kinds."""
    return [item for item in objects if item["kind"] in kinds]


def identity(item: Manifest) -> tuple[str, str, str, str]:
    """Return the fields that identify an object in a cluster."""
    metadata = item["metadata"]
    return item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"]


def pod_specs(objects: Iterable[Manifest]) -> dict[str, Manifest]:
    """Return the pod specs of functions and PodSource by the name of their workload."""
    makers = [item for item in objects if "template" in item.get("spec", {})]
    return {item["metadata"]["name"]: item["spec"]["template"] for item in makers}


def knative_crds() -> list[Path]:
    """Return Knative's CRD files, downloaded by the Go toolchain that builds the servers."""
    folders = [build.module_folder(ours, theirs) / place for ours, theirs, place in KNATIVE]
    return [*(file for folder in folders for file in sorted(folder.glob("*.yaml"))), rabbitmq_crd()]


def rabbitmq_crd() -> Path:
    """Return the CRD file of the RabbitMQ Broker's configuration."""
    ours, theirs, place = RABBITMQ
    return build.module_folder(ours, theirs) / place


def opted_steps(name: str) -> set[str]:
    """Return the steps of an overlay's optional components."""
    return {step for wing in OPTED.get(name, ()) for step in steps_of(wing)}


def sent(applied: str) -> list[str]:
    """Return the lines of `kubectl apply` for objects that were sent to the server, except `ALWAYS_SENT`."""
    lines = applied.splitlines()
    return [line for line in lines if not line.endswith(" unchanged") and not line.startswith(ALWAYS_SENT)]
