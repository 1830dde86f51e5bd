"""RabbitMQ's operators and the RabbitMQ Broker as pods on real nodes: their own YAML with other names of images."""

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
from kube.certificates import issuing
from kube.certificates.components import Component
from localcluster.cluster import LocalCluster
from localcluster.knative import install, shipped
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
"""Program → its module, which holds its manifests."""
NAME = "localhost/rabbitmq/{}:local"
BUILT = re.compile(rf"ko://{re.escape(BROKER)}/cmd/([\w/]+)|rabbitmqoperator/([\w-]+):latest")
"""Where a program is in its module, in the place of an image's name, and images that are published."""
NOT_ROOT = 65532
MANAGER = "/manager"
"""What the operators' images call their program."""
CERTIFICATE, ASKED_AT = "webhook-server-cert", f"webhook-service.{NAMESPACE}.svc"
"""The Secret that cert-manager would fill for the topology operator's webhook, and that one's name."""
WHOSE = Component("topology-operator", timedelta(days=365))
BASE = ROOT / "manifests" / "base"
COMPONENTS = ("certificates/deployment", "admission", "certificates", "plain", "rabbitmq")
"""Those of the overlay `plain`, with another broker."""
SMALL = {
    "target": {"kind": "Trigger"},
    "patch": "- {op: add, path: /metadata/annotations/rabbitmq.eventing.knative.dev~1cpu-request, value: 5m}",
}
"""A dispatcher asks for a twentieth of a core, and there are 28: more than one node of two cores has left."""
CLUSTER = Path(__file__).with_name("cluster.yaml")
SECONDS = 180


def archives(folder: Path) -> list[Path]:
    """Write the images of all programs into a folder; gives the files, and that of the server's image."""
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
    """Install it all beside Knative; its pods start when there are nodes that know its images."""
    for half in install.halves(manifests(cluster)):
        install.apply(cluster, half)


def await_ready(cluster: LocalCluster) -> None:
    """Return when all pods of it are ready."""
    for namespace in (NAMESPACE, EVENTING.namespace):
        limit = f"--timeout={SECONDS}s"
        cluster.kubectl("wait", "deployment", "--all", "-n", namespace, "--for=condition=Available", limit)


def manifests(cluster: LocalCluster) -> list[Manifest]:
    """Give all objects as they are, but for the names of images, and what cert-manager would have added."""
    texts = [
        *(_kustomized(cluster, module) for module in OPERATORS.values()),
        *(file.read_text() for file in sorted((build.module_folder("rabbitmq", BROKER) / "config/broker").iterdir())),
    ]
    return [*_certified(item for text in texts for item in yaml.load_all(_named(text), Loader=LOADER) if item)]


def _kustomized(cluster: LocalCluster, module: str) -> str:
    folder = build.module_folder("rabbitmq_operators", module) / "config" / "installation"
    return cluster.kubectl("kustomize", folder).stdout


def _named(text: str) -> str:
    """Name our images; there is no registry to ask for them at each start."""
    named = BUILT.sub(lambda match: NAME.format((match[1] or match[2]).replace("/", "-")), text)
    return named.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")


def _certified(items: Iterable[Manifest]) -> Iterable[Manifest]:
    """Add the certificate of the topology operator's webhook, and have its configuration trust who signed it."""
    now = datetime.now(timezone.utc)
    authority = issuing.new_authority(WHOSE, now)
    pair = issuing.new_serving(authority, [ASKED_AT], WHOSE, now)
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
    """Create the RabbitmqCluster that our Broker names, in our namespace, its data in a folder that all nodes see."""
    disk.mkdir(mode=0o700)
    shutil.chown(disk, server_image.USER)
    text = Template(CLUSTER.read_text()).substitute(folder=disk, image=server_image.IMAGE)
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)


def overlay(folder: Path) -> Path:
    """Write what a user without Serving writes, for two nodes of two cores; gives the folder."""
    return shipped.overlay(folder, COMPONENTS, BASE, patches=[SMALL])
