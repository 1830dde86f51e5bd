"""Tests of combined components as pods: `plain` with all optional components, and all functions in one process."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from localcluster.access import NAMESPACE
from localcluster.knative import pod_install
from localcluster.nodes import preflight
from localcluster.components import selection, crds
from tests.manifests import prometheus
from tests.real import applied_manifests, maintenances
from tests.real.environment import Real

pytestmark = pytest.mark.installs
BASE = pod_install.COMPONENTS.parent / "base"
WINGS = tuple(selection.FOREIGN)
SECRET = ("create", "secret", "generic", "console-proxy", "-n", NAMESPACE, "--from-literal=secret=0123456789abcdef")
USER = 65532
"""The user id of the image's processes."""
VOLUME: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "journal"},
    "spec": {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"namespace": NAMESPACE, "name": "journal"},
    },
}
OURS = re.compile("node-?maintenance")
SHARED = "!nodemaintenance.dev/shared"
SERVES_ALL = Path(__file__).with_name("one_process.yaml")
TO_SERVICE = "- {op: replace, path: /spec/%s/ref/apiVersion, value: v1}"
DEAD_LETTERS = "nodemaintenance.dev/function notin (record, resync, renew-certificates)"
RECORD = f"http://functions.{NAMESPACE}.svc/record"


@dataclass(frozen=True)
class Way:
    """A combination of components that a user may install.

    Attributes:
        components: The components in the order in which they are applied.
        files: Additional manifests.
        patches: Patches, as a kustomization has them.
        bound: The Deployments whose environment variables Knative completes.
        pods: The minimum number of pods.
    """

    components: Sequence[str]
    files: Sequence[Path]
    patches: Sequence[Mapping[str, Any]]
    bound: Sequence[str]
    pods: int


EVERYTHING = Way(
    components=(
        *(f"{wing}/deployment" for wing in (selection.CERTIFICATES, *WINGS)),
        *(selection.ADMISSION, selection.CERTIFICATES, *WINGS),
        *("plain", "inmemory", "console", "proxied", "journal", "monitoring"),
    ),
    files=(),
    patches=(),
    bound=tuple(f"deployment.apps/{name}" for name in ("guard", "resync", "protect", "resync-runs")),
    pods=30,
)
ONE_PROCESS = Way(
    components=("certificates/deployment", "together", "pod", selection.ADMISSION, selection.CERTIFICATES, "inmemory"),
    files=(SERVES_ALL,),
    patches=(
        {"target": {"kind": "Trigger"}, "patch": TO_SERVICE % "subscriber"},
        {"target": {"kind": "Trigger", "labelSelector": DEAD_LETTERS}, "patch": TO_SERVICE % "delivery/deadLetterSink"},
        {
            "target": {"kind": "SinkBinding", "name": "functions"},
            "patch": "- {op: replace, path: /spec/subject/apiVersion, value: apps/v1}\n"
            "- {op: replace, path: /spec/subject/kind, value: Deployment}",
        },
        {
            "target": {"kind": "Deployment", "name": "renew-certificates"},
            "patch": "- {op: add, path: /spec/template/spec/containers/0/env/-, "
            f"value: {{name: RECORD, value: {RECORD}}}}}",
        },
    ),
    bound=("deployment.apps/functions",),
    pods=5,
)


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Yield two real nodes with Knative as pods, the CRDs that the components and `monitoring` need, and a volume."""
    preflight.check()
    folder = tmp_path_factory.mktemp("components")
    with pod_install.nodes(folder / "cluster") as (cluster, nodes):
        crds.install(cluster, WINGS)
        prometheus.install(cluster)
        cluster.kubectl("apply", "--server-side", "-f", "-", input=volume(folder / "disk"))
        yield Real(cluster, nodes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("way", [EVERYTHING, ONE_PROCESS], ids=["everything", "one process"])
def test_it_is_ready_drains_a_node_and_goes(bare: Real, way: Way, tmp_path: Path) -> None:
    """Installs become Ready, do not change at a second apply, drain a node, and leave nothing after their removal."""
    cluster = bare.cluster
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl(*SECRET)
    overlay = str(pod_install.overlay(tmp_path / "overlay", way.components, BASE, files=way.files, patches=way.patches))
    cluster.kubectl("apply", "-k", overlay)
    pod_install.await_ready(cluster)

    assert len(applied_manifests.ready_pods(bare)) >= way.pods
    applied_manifests.check_second_apply(bare, overlay, way.bound)
    maintenances.begin(bare, "combined", "node-1")
    maintenances.until_succeeded(bare, "combined")
    maintenances.end(bare, "combined", "node-1")

    cluster.kubectl("delete", "-k", overlay, "-l", SHARED)
    kinds = "crd,clusterrole,clusterrolebinding,validatingwebhookconfiguration,namespace"
    left = cluster.kubectl("get", kinds, "-o", "name")
    assert [name for name in left.stdout.split() if OURS.search(name)] == []


def volume(folder: Path) -> str:
    """Create a directory for the journal that its user may write to, and return the manifest of a volume there."""
    folder.mkdir()
    shutil.chown(folder, USER)
    return json.dumps({**VOLUME, "spec": {**VOLUME["spec"], "hostPath": {"path": str(folder)}}})
