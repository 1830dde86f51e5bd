"""RabbitMQ's operators and the RabbitMQ Broker as pods on real nodes: their own manifests with local images."""

from __future__ import annotations

import base64
import re
import shutil
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from string import Template

import yaml

from eventing.local.manifests import LOADER
from kube.certificates import key_pairs
from kube.certificates.components import Component
from localcluster.cluster import LocalCluster
from localcluster.knative import install, pod_install
from localcluster.knative.install import EVENTING, Manifest
from localcluster.nodes import images
from localcluster.programs import build
from localcluster.rabbitmq import server_image
from localcluster.servers import ROOT

NAMESPACE = "rabbitmq-system"
BROKER = "knative.dev/eventing-rabbitmq"
OPERATORS = {
    "cluster-operator": "github.com/rabbitmq/cluster-operator/v2",
    "messaging-topology-operator": "github.com/rabbitmq/messaging-topology-operator",
}
"""The Go module of each program, which contains its manifests."""
NAME = "localhost/rabbitmq/{}:local"
BUILT = re.compile(rf"ko://{re.escape(BROKER)}/cmd/([\w/]+)|rabbitmqoperator/([\w-]+):latest")
"""Matches an import path that stands for an image, as `ko` expects it, or a published image of the operators."""
NOT_ROOT = 65532
MANAGER = "/manager"
"""The path of the program in the operators' published images."""
CERTIFICATE, ASKED_AT = "webhook-server-cert", f"webhook-service.{NAMESPACE}.svc"
"""The Secret that cert-manager would fill for the topology operator's webhook, and the webhook's host name."""
WHOSE = Component("topology-operator", timedelta(days=365))
BASE = ROOT / "manifests" / "base"
COMPONENTS = ("certificates/deployment", "admission", "certificates", "plain", "rabbitmq")
"""The components of the overlay `plain`, with another broker."""
SMALL = {
    "target": {"kind": "Trigger"},
    "patch": "- {op: add, path: /metadata/annotations/rabbitmq.eventing.knative.dev~1cpu-request, value: 5m}",
}
"""Lowers the dispatchers' CPU request of 50m, since 28 of them exceed what one two-core node has left."""
CLUSTER = Path(__file__).with_name("cluster.yaml")
SECONDS = 180


def archives(folder: Path) -> list[Path]:
    """Write the images of all programs into a directory; return the archives, including that of the RabbitMQ server."""
    folder.mkdir(parents=True)
    found = {
        "ingress": build.servers(build.RABBITMQ) / "ingress",
        "dispatcher": build.servers(build.RABBITMQ) / "dispatcher",
        "controller-broker": build.servers(build.RABBITMQ_CONTROLLER) / "broker",
        "webhook-broker": build.servers(build.RABBITMQ_WEBHOOK) / "broker",
        **{name: build.servers(build.RABBITMQ_OPERATORS) / name for name in OPERATORS},
    }
    written = [images.write(_image(name, program), folder / f"{name}.tar") for name, program in found.items()]
    return [*written, server_image.archive()]


def _image(name: str, program: Path) -> images.Image:
    links = (MANAGER,) if name in OPERATORS else ()
    return images.Image(NAME.format(name), program, (f"/bin/{program.name}",), links, user=NOT_ROOT)


def apply(cluster: LocalCluster) -> None:
    """Install everything on a cluster with Knative; the pods start once nodes that have their images exist."""
    for half in install.halves(manifests(cluster)):
        install.apply(cluster, half)


def await_ready(cluster: LocalCluster) -> None:
    """Return when all Deployments are available."""
    for namespace in (NAMESPACE, EVENTING.namespace):
        limit = f"--timeout={SECONDS}s"
        cluster.kubectl("wait", "deployment", "--all", "-n", namespace, "--for=condition=Available", limit)


def manifests(cluster: LocalCluster) -> list[Manifest]:
    """Return all manifests, with local image names and with what cert-manager would have added."""
    texts = [
        *(_kustomized(cluster, module) for module in OPERATORS.values()),
        *(file.read_text() for file in sorted((build.module_folder("rabbitmq", BROKER) / "config/broker").iterdir())),
    ]
    return [*_certified(item for text in texts for item in yaml.load_all(_named(text), Loader=LOADER) if item)]


def _kustomized(cluster: LocalCluster, module: str) -> str:
    folder = build.module_folder("rabbitmq_operators", module) / "config" / "installation"
    return cluster.kubectl("kustomize", folder).stdout


def _named(text: str) -> str:
    """Use the local image names; do not pull at each start, since no registry has these images."""
    named = BUILT.sub(lambda match: NAME.format((match[1] or match[2]).replace("/", "-")), text)
    return named.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")


def _certified(items: Iterable[Manifest]) -> Iterable[Manifest]:
    """Add the certificate of the topology operator's webhook, and set its CA in the webhook's configuration."""
    now = datetime.now(timezone.utc)
    authority = key_pairs.new_authority(WHOSE, now)
    pair = key_pairs.new_serving(authority, [ASKED_AT], WHOSE, now)
    yield {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": CERTIFICATE, "namespace": NAMESPACE},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": pair.certificate, "tls.key": pair.key},
    }
    trusted = base64.b64encode(authority.certificate.encode()).decode()
    for item in items:
        for webhook in item.get("webhooks", []):
            if webhook["clientConfig"]["service"]["namespace"] == NAMESPACE:
                webhook["clientConfig"]["caBundle"] = trusted
        yield item


def provide(cluster: LocalCluster, disk: Path) -> None:
    """Create the RabbitmqCluster of the product's Broker, with its data in a directory that all nodes can read."""
    disk.mkdir(mode=0o700)
    shutil.chown(disk, server_image.USER)
    text = Template(CLUSTER.read_text()).substitute(folder=disk, image=server_image.IMAGE)
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)


def overlay(folder: Path) -> Path:
    """Write the overlay of a user without Knative Serving, for two nodes with two cores each; return its directory."""
    return pod_install.overlay(folder, COMPONENTS, BASE, patches=[SMALL])
