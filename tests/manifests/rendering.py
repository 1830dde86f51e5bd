"""What kustomize makes of our folders, and Knative's own CRDs, from its Go modules."""

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
"""The overlay that the stepwise install files are made of; it is not whole without them."""
INSTALLS = [name for name in OVERLAYS if name != STEPWISE]
WITH_CERTIFICATES = ("compact", "kafka", "knative", "mutex", "plain", "rabbitmq")
"""Those that renew certificates, in a process of its own each. Without are what func deploys, which is one Service, and
what is made for a namespace and an account of somebody else."""
WITH_MUTEX = "mutex"
OPTED = {WITH_MUTEX: ("mutex",), "hyperconverged": ("virtualization", "cpu_labels")}
"""Overlay → the opt-in wings that it has."""
FOLDERS = [MANIFESTS / "base", *(MANIFESTS / "overlays" / name for name in INSTALLS)]
"""What `kubectl apply -k` takes."""
SPARING = "--openapi-patch=false"
"""Spares `kubectl apply` the schema of every kind: it makes the same patches at a fifth of the work."""

ALWAYS_SENT = "poddisruptionbudget.policy/"
"""kubectl sends a budget's selector at each apply, since its patch is one that replaces; the server changes nothing."""

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
"""Our Go module, Knative's, and where in that its CRDs are."""
RABBITMQ = ("rabbitmq", "knative.dev/eventing-rabbitmq", "config/broker/300-rabbitmqbrokerconfig.yaml")
"""The same for what the RabbitMQ Broker adds. The Kafka Broker needs none beside those of Eventing."""


@cache
def text(folder: Path) -> str:
    """The rendered folder as YAML."""
    command = [str(build.servers() / "kubectl"), "kustomize", str(folder)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def rendered(folder: Path) -> list[Manifest]:
    """The objects of a rendered folder, the caller's own."""
    objects: list[Manifest] = json.loads(_as_json(folder))
    return objects


@cache
def _as_json(folder: Path) -> str:
    """What is read hundreds of times faster than YAML of thousands of lines."""
    return json.dumps(list(yaml.load_all(text(folder), Loader=LOADER)))


def overlay(name: str) -> list[Manifest]:
    """The objects of one overlay."""
    return rendered(MANIFESTS / "overlays" / name)


def of_kind(objects: Iterable[Manifest], *kinds: str) -> list[Manifest]:
    """Those of some kinds."""
    return [item for item in objects if item["kind"] in kinds]


def identity(item: Manifest) -> tuple[str, str, str, str]:
    """What no two objects of a cluster share."""
    metadata = item["metadata"]
    return item["apiVersion"], item["kind"], metadata.get("namespace", ""), metadata["name"]


def pod_specs(objects: Iterable[Manifest]) -> dict[str, Manifest]:
    """Pod spec by name of what makes the pods: functions and PodSource."""
    makers = [item for item in objects if "template" in item.get("spec", {})]
    return {item["metadata"]["name"]: item["spec"]["template"] for item in makers}


def knative_crds() -> list[Path]:
    """CRD files of Knative, fetched by the Go toolchain that builds the servers."""
    folders = [build.module_folder(ours, theirs) / place for ours, theirs, place in KNATIVE]
    return [*(file for folder in folders for file in sorted(folder.glob("*.yaml"))), rabbitmq_crd()]


def rabbitmq_crd() -> Path:
    """The CRD file of the RabbitMQ Broker's configuration."""
    ours, theirs, place = RABBITMQ
    return build.module_folder(ours, theirs) / place


def opted_steps(name: str) -> set[str]:
    """The steps of the opt-in wings that an overlay has."""
    return {step for wing in OPTED.get(name, ()) for step in steps_of(wing)}


def sent(applied: str) -> list[str]:
    """Give the lines of what `kubectl apply` has sent to the server, of what it says; not of `ALWAYS_SENT`."""
    lines = applied.splitlines()
    return [line for line in lines if not line.endswith(" unchanged") and not line.startswith(ALWAYS_SENT)]
