"""The product as a user has it: an overlay of a few lines over one of ours, as pods on real nodes with Knative's."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import yaml

from localcluster.access import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative import pods
from localcluster.nodes import shipped
from localcluster.nodes.nodes import RealNodes
from localcluster.servers import ROOT

MANIFESTS = ROOT / "manifests"
KINDS = "apiserversource,pingsource,containersource,sinkbinding,broker,trigger"
SECONDS = 180
"""A certificate that was made after its pod reaches that pod when its kubelet looks again, within some 90 s."""


def start(cluster: LocalCluster, nodes: RealNodes, folder: Path) -> None:
    """Start Knative, and have the nodes know our image; return when an overlay can be applied."""
    nodes.load(shipped.archive())
    pods.start(cluster, nodes, folder / "knative")


def overlay(folder: Path, components: Sequence[str] = (), over: str = "plain") -> Path:
    """Write what a user writes: an overlay of ours, the name of the image, and components; gives the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    name, _, tag = shipped.IMAGE.rpartition(":")
    written = {
        "resources": [_from(folder, f"overlays/{over}")],
        "images": [{"name": "nodemaintenance", "newName": name, "newTag": tag}],
        **({"components": [_from(folder, f"components/{each}") for each in components]} if components else {}),
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(written))
    return folder


def install(cluster: LocalCluster, folder: Path) -> None:
    """Apply an overlay; return when all its pods are Ready, and all its Knative objects."""
    cluster.kubectl("apply", "-k", folder)
    await_ready(cluster)


def await_ready(cluster: LocalCluster) -> None:
    """Return when all of our pods are Ready, and all our Knative objects, from which some of these come."""
    limit = f"--timeout={SECONDS}s"
    cluster.kubectl("wait", KINDS, "--all", "-n", NAMESPACE, "--for=condition=Ready", limit)
    names = cluster.kubectl("get", "deployment", "-n", NAMESPACE, "-o", "name").stdout.split()
    for name in names:
        cluster.kubectl("rollout", "status", "-n", NAMESPACE, name, limit)


def _from(folder: Path, place: str) -> str:
    return os.path.relpath(MANIFESTS / place, folder.resolve())
