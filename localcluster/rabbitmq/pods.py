"""Installs RabbitMQ's operators and the RabbitMQ Broker as pods on real nodes: their manifests, with local images."""

from __future__ import annotations

import base64
import hashlib
import re
import shutil
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from string import Template

import yaml

from eventing.local.manifests import YAML_LOADER
from kube.certificates import key_pairs
from kube.certificates.components import Component
from localcluster.addons import NONROOT_UID
from localcluster.cluster import LocalCluster
from localcluster.knative import install, pod_install
from localcluster.knative.install import EVENTING, Manifest
from localcluster.nodes import buildah, images
from localcluster.nodes.buildah import Buildah
from localcluster.programs import build
from localcluster.servers import ROOT

NAMESPACE = "rabbitmq-system"
BROKER_MODULE = "knative.dev/eventing-rabbitmq"
OPERATOR_MODULES = {
    "cluster-operator": "github.com/rabbitmq/cluster-operator/v2",
    "messaging-topology-operator": "github.com/rabbitmq/messaging-topology-operator",
}
"""The Go module of each operator's program; the module contains the operator's manifests."""
IMAGE_NAME = "localhost/rabbitmq/{}:local"
IMAGE_REFERENCE = re.compile(rf"ko://{re.escape(BROKER_MODULE)}/cmd/([\w/]+)|rabbitmqoperator/([\w-]+):latest")
"""Matches a `ko://` reference to an image of the RabbitMQ Broker, or a published image of the operators."""
MANAGER_PATH = "/manager"
"""The path of the program in the operators' published images; the manifests run this path."""
WEBHOOK_SECRET, WEBHOOK_SERVICE_HOST = "webhook-server-cert", f"webhook-service.{NAMESPACE}.svc"
"""The Secret with the topology operator's webhook certificate, which cert-manager would issue, and the host name."""
TOPOLOGY_OPERATOR = Component("topology-operator", timedelta(days=365))
OVERLAY = ROOT / "manifests" / "overlays" / "rabbitmq"
CPU_REQUEST_PATCH = {
    "target": {"kind": "Trigger"},
    "patch": "- {op: add, path: /metadata/annotations/rabbitmq.eventing.knative.dev~1cpu-request, value: 5m}",
}
"""Lowers the dispatchers' CPU requests from 50m: 28 dispatchers would exceed the free capacity of a two-core node."""
ENDPOINTS_FILE = Path(__file__).with_name("endpoints.yaml")
CLUSTER_TEMPLATE = Path(__file__).with_name("cluster.yaml")
TIMEOUT_SECONDS = 180
SERVER_IMAGE = "localhost/rabbitmq/server:local"
RABBITMQ_UID = 999
"""The UID as which the cluster operator runs the RabbitMQ server."""
HOME_DIR = "/var/lib/rabbitmq"
# Installing the package starts no service, because an image build runs no init system. The Erlang cookie must be
# different in each cluster, and the cluster operator provides it.
INSTALL_SCRIPT = f"""
groupadd --system --gid {RABBITMQ_UID} rabbitmq
useradd --system --uid {RABBITMQ_UID} --gid rabbitmq --home-dir {HOME_DIR} rabbitmq
apt-get -q -o APT::Sandbox::User=root update
DEBIAN_FRONTEND=noninteractive apt-get -q -y -o APT::Sandbox::User=root install --no-install-recommends rabbitmq-server
rm -rf /var/lib/apt/lists/* {HOME_DIR}/.erlang.cookie /etc/rabbitmq/rabbitmq-env.conf
mkdir -p /etc/rabbitmq/conf.d
"""
BIN_DIR = "/usr/lib/rabbitmq/bin"
"""The directory of RabbitMQ's binaries. The wrapper scripts on PATH would require the Debian service's directories."""
SERVER_ENVIRONMENT = {
    "PATH": f"{BIN_DIR}:{buildah.SEARCH_PATH}",
    "HOME": HOME_DIR,
    "LANG": "C.UTF-8",
    "RABBITMQ_LOGS": "-",
    "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": "+sbwt none +sbwtdcpu none +sbwtdio none",  # Idle schedulers must not spin.
    "RUNNING_UNDER_SYSTEMD": "true",  # This makes the script exec the server, so that the server gets SIGTERM.
}


class RabbitmqPods:
    """Add-on that installs RabbitMQ's operators, the RabbitMQ server's image, and the RabbitMQ Broker."""

    def write_archives(self, directory: Path) -> list[Path]:
        """Write an archive of each binary's image; return their paths and the path of the RabbitMQ server's archive."""
        directory.mkdir(parents=True)
        programs = {
            "ingress": build.ensure_programs(build.RABBITMQ) / "ingress",
            "dispatcher": build.ensure_programs(build.RABBITMQ) / "dispatcher",
            "controller-broker": build.ensure_programs(build.RABBITMQ_CONTROLLER) / "broker",
            "webhook-broker": build.ensure_programs(build.RABBITMQ_WEBHOOK) / "broker",
            **{name: build.ensure_programs(build.RABBITMQ_OPERATORS) / name for name in OPERATOR_MODULES},
        }
        archives = [
            images.write_image(_build_image(name, program), directory / f"{name}.tar")
            for name, program in programs.items()
        ]
        return [*archives, ensure_server_archive()]

    def apply(self, cluster: LocalCluster) -> None:
        """Install RabbitMQ's operators and the RabbitMQ Broker; their pods start once a node has their images."""
        for manifests in install.split_prerequisites(build_manifests(cluster)):
            install.apply_manifests(cluster, manifests)

    def wait_until_ready(self, cluster: LocalCluster) -> None:
        """Return when the Deployments of the operators and of Knative Eventing are available."""
        for namespace in (NAMESPACE, EVENTING.namespace):
            limit = f"--timeout={TIMEOUT_SECONDS}s"
            cluster.kubectl("wait", "deployment", "--all", "-n", namespace, "--for=condition=Available", limit)


RABBITMQ = RabbitmqPods()


def _build_image(name: str, program: Path) -> images.Image:
    links = (MANAGER_PATH,) if name in OPERATOR_MODULES else ()
    return images.Image(IMAGE_NAME.format(name), program, (f"/bin/{program.name}",), links, user=NONROOT_UID)


def build_manifests(cluster: LocalCluster) -> list[Manifest]:
    """Return the manifests of the operators and the Broker, with local images and with the webhook's certificate."""
    texts = [
        *(_render_kustomization(cluster, module) for module in OPERATOR_MODULES.values()),
        *(
            file.read_text()
            for file in sorted((build.download_program_module("rabbitmq", BROKER_MODULE) / "config/broker").iterdir())
        ),
        ENDPOINTS_FILE.read_text(),
    ]
    return [
        *_add_webhook_certificate(
            item for text in texts for item in yaml.load_all(_rename_images(text), Loader=YAML_LOADER) if item
        )
    ]


def _render_kustomization(cluster: LocalCluster, module: str) -> str:
    folder = build.download_program_module("rabbitmq_operators", module) / "config" / "installation"
    return cluster.kubectl("kustomize", folder).stdout


def _rename_images(text: str) -> str:
    """Replace the image names with local ones, and the pull policy, because no registry contains the local images."""
    renamed = IMAGE_REFERENCE.sub(lambda match: IMAGE_NAME.format((match[1] or match[2]).replace("/", "-")), text)
    return renamed.replace("imagePullPolicy: Always", "imagePullPolicy: IfNotPresent")


def _add_webhook_certificate(items: Iterable[Manifest]) -> Iterable[Manifest]:
    """Yield the manifests, the Secret with the topology operator's webhook certificate, and the webhook's CA bundle."""
    now = datetime.now(timezone.utc)
    ca = key_pairs.create_ca(TOPOLOGY_OPERATOR, now)
    pair = key_pairs.issue_serving_certificate(ca, [WEBHOOK_SERVICE_HOST], TOPOLOGY_OPERATOR, now)
    yield {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": WEBHOOK_SECRET, "namespace": NAMESPACE},
        "type": "kubernetes.io/tls",
        "stringData": {"tls.crt": pair.certificate, "tls.key": pair.key},
    }
    ca_bundle = base64.b64encode(ca.certificate.encode()).decode()
    for item in items:
        for webhook in item.get("webhooks", []):
            if webhook["clientConfig"]["service"]["namespace"] == NAMESPACE:
                webhook["clientConfig"]["caBundle"] = ca_bundle
        yield item


def ensure_server_archive() -> Path:
    """Return the RabbitMQ server's image archive in the format of `docker save`; building it takes a minute."""
    digest = hashlib.sha256(f"{INSTALL_SCRIPT}{SERVER_ENVIRONMENT}".encode()).hexdigest()[:12]
    return buildah.ensure_archive(build.get_cache_dir() / f"rabbitmq-{digest}.tar", _build_server_image)


def _build_server_image(builder: Buildah) -> str:
    container = builder.run("from", builder.base_image).strip()
    builder.run("run", "--network", "host", container, "--", "sh", "-ec", INSTALL_SCRIPT)
    options = [word for name, value in SERVER_ENVIRONMENT.items() for word in ("--env", f"{name}={value}")]
    builder.run("config", *options, "--user", str(RABBITMQ_UID), "--cmd", f"{BIN_DIR}/rabbitmq-server", container)
    builder.run("commit", "--rm", container, SERVER_IMAGE)
    return SERVER_IMAGE


def create_rabbitmq_cluster(cluster: LocalCluster, data_directory: Path) -> None:
    """Create a RabbitmqCluster for the product's Broker, with its data in a host directory that all nodes share."""
    data_directory.mkdir(mode=0o700)
    shutil.chown(data_directory, RABBITMQ_UID)
    text = Template(CLUSTER_TEMPLATE.read_text()).substitute(folder=data_directory, image=SERVER_IMAGE)
    cluster.kubectl("apply", "--server-side", "-f", "-", input=text)


def write_overlay(directory: Path) -> Path:
    """Write an overlay that adapts the overlay `rabbitmq` to two nodes with two cores each; return its directory."""
    return pod_install.write_overlay(directory, base=OVERLAY, patches=[CPU_REQUEST_PATCH])
