"""The registry as an add-on, which requires a password, and the product's image in it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from localcluster.cluster import LocalCluster
from localcluster.knative.program_pods import ProgramPods
from localcluster.nodes import product_image
from localcluster.nodes.node import RealNode
from localcluster.nodes.node_config import REGISTRY_HOST
from localcluster.programs import build

PUSHED_IMAGE_NAME = f"{REGISTRY_HOST}/nodemaintenance"
REGISTRY = ProgramPods("registry", build.REGISTRY, Path(__file__).with_name("registry.yaml"), workload="daemonset")
"""An OCI registry on each node, from which the node pulls over HTTP."""
USER, PASSWORD = "test", "test"
PULL_SECRET_PATCH: dict[str, Any] = {
    "target": {"kind": "ServiceAccount"},
    "patch": f"- {{op: add, path: /imagePullSecrets, value: [{{name: {REGISTRY.name}}}]}}",
}
"""The Kustomize patch of docs/install.md for a private registry."""


def push_product_image(nodes: Iterable[RealNode], version: str = product_image.VERSION) -> str:
    """Push the product's image, which the nodes have, to each node's registry; return its name with the tag."""
    name = f"{PUSHED_IMAGE_NAME}:v{version}"
    for node in nodes:
        node.push_image(product_image.IMAGE, name, f"{USER}:{PASSWORD}")
    return name


def create_pull_secret(cluster: LocalCluster, namespace: str) -> None:
    """Create the Secret that `PULL_SECRET_PATCH` names."""
    options = (f"--docker-server={REGISTRY_HOST}", f"--docker-username={USER}", f"--docker-password={PASSWORD}")
    cluster.kubectl("create", "secret", "docker-registry", REGISTRY.name, "-n", namespace, *options)
