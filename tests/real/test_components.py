"""Tests for combined components as pods: `plain` with all optional components, and all functions in one process."""

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
from localcluster.components import crds, selection
from localcluster.knative import pod_install
from localcluster.nodes import preflight
from tests.manifests import prometheus
from tests.manifests.rendering import SHARED_LABEL
from tests.real import applied_manifests, maintenances
from tests.real.environment import RealNodesEnvironment

pytestmark = pytest.mark.installs
BASE_DIR = pod_install.COMPONENTS_DIR.parent / "base"
COMPONENT_NAMES = tuple(selection.CRD_PROJECTS)
CREATE_SECRET_COMMAND = (
    "create",
    "secret",
    "generic",
    "console-proxy",
    "-n",
    NAMESPACE,
    "--from-literal=secret=0123456789abcdef",
)
USER_ID = 65532
"""The user id of the image's processes."""
VOLUME_MANIFEST: dict[str, Any] = {
    "apiVersion": "v1",
    "kind": "PersistentVolume",
    "metadata": {"name": "journal"},
    "spec": {
        "capacity": {"storage": "1Gi"},
        "accessModes": ["ReadWriteOnce"],
        "claimRef": {"namespace": NAMESPACE, "name": "journal"},
    },
}
OWN_NAME_PATTERN = re.compile("node-?maintenance")
UNSHARED_SELECTOR = f"!{SHARED_LABEL}"
ONE_PROCESS_FILE = Path(__file__).with_name("one_process.yaml")
SERVICE_REF_PATCH = "- {op: replace, path: /spec/%s/ref/apiVersion, value: v1}"
DEAD_LETTER_TRIGGERS_SELECTOR = "nodemaintenance.dev/function notin (record, resync, renew-certificates)"
RECORD_URL = f"http://functions.{NAMESPACE}.svc/record"


@dataclass(frozen=True)
class InstallVariant:
    """A combination of components that a user may install.

    Attributes:
        components: The components in the order in which they are applied.
        files: Additional manifests.
        patches: Kustomize patches.
        min_pods: The minimum number of pods.
    """

    components: Sequence[str]
    files: Sequence[Path]
    patches: Sequence[Mapping[str, Any]]
    min_pods: int


ALL_COMPONENTS = InstallVariant(
    components=(
        *(f"{component}/deployment" for component in (selection.CERTIFICATES, *COMPONENT_NAMES)),
        *(selection.ADMISSION, selection.CERTIFICATES, *COMPONENT_NAMES),
        *("plain", "inmemory", "console", "proxied", "journal", "monitoring"),
    ),
    files=(),
    patches=(),
    min_pods=30,
)
ONE_PROCESS = InstallVariant(
    components=("certificates/deployment", "together", "pod", selection.ADMISSION, selection.CERTIFICATES, "inmemory"),
    files=(ONE_PROCESS_FILE,),
    patches=(
        {"target": {"kind": "Trigger"}, "patch": SERVICE_REF_PATCH % "subscriber"},
        {
            "target": {"kind": "Trigger", "labelSelector": DEAD_LETTER_TRIGGERS_SELECTOR},
            "patch": SERVICE_REF_PATCH % "delivery/deadLetterSink",
        },
        {
            "target": {"kind": "SinkBinding", "name": "functions"},
            "patch": "- {op: replace, path: /spec/subject/apiVersion, value: apps/v1}\n"
            "- {op: replace, path: /spec/subject/kind, value: Deployment}",
        },
        {
            "target": {"kind": "Deployment", "name": "renew-certificates"},
            "patch": "- {op: add, path: /spec/template/spec/containers/0/env/-, "
            f"value: {{name: RECORD, value: {RECORD_URL}}}}}",
        },
    ),
    min_pods=5,
)


@pytest.fixture(scope="module")
def bare_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodesEnvironment]:
    """Yield two real nodes with Knative as pods, all components' CRDs, those of `monitoring`, and a volume."""
    preflight.check_host()
    folder = tmp_path_factory.mktemp("components")
    with pod_install.start_real_cluster(folder / "cluster") as (cluster, nodes):
        crds.install_crds(cluster, COMPONENT_NAMES)
        prometheus.install_crds(cluster)
        cluster.kubectl("apply", "--server-side", "-f", "-", input=create_volume(folder / "disk"))
        yield RealNodesEnvironment(cluster, nodes)


@pytest.mark.timeout(900)
@pytest.mark.parametrize("variant", [ALL_COMPONENTS, ONE_PROCESS], ids=["everything", "one process"])
def test_install_variant_drains_node_and_is_removed(
    bare_environment: RealNodesEnvironment, variant: InstallVariant, tmp_path: Path
) -> None:
    """Check that an install becomes Ready, drains a node, is unchanged by a second apply, and is removed completely."""
    cluster = bare_environment.cluster
    cluster.kubectl("create", "namespace", NAMESPACE)
    cluster.kubectl(*CREATE_SECRET_COMMAND)
    overlay = pod_install.write_overlay(
        tmp_path / "overlay", variant.components, BASE_DIR, files=variant.files, patches=variant.patches
    )
    cluster.kubectl("apply", "-k", overlay)
    pod_install.wait_until_ready(cluster)

    assert len(applied_manifests.list_ready_pods(bare_environment)) >= variant.min_pods
    applied_manifests.assert_second_apply_changes_nothing(bare_environment, overlay)
    maintenances.create_maintenance(bare_environment, "combined", "node-1")
    maintenances.wait_until_succeeded(bare_environment, "combined")
    maintenances.end_maintenance(bare_environment, "combined", "node-1")

    cluster.kubectl("delete", "-k", overlay, "-l", UNSHARED_SELECTOR)
    kinds = "crd,clusterrole,clusterrolebinding,validatingwebhookconfiguration,namespace"
    remaining = cluster.kubectl("get", kinds, "-o", "name")
    assert [name for name in remaining.stdout.split() if OWN_NAME_PATTERN.search(name)] == []


def create_volume(directory: Path) -> str:
    """Create the journal's directory, writable by the image's user; return the PersistentVolume's manifest."""
    directory.mkdir()
    shutil.chown(directory, USER_ID)
    return json.dumps({**VOLUME_MANIFEST, "spec": {**VOLUME_MANIFEST["spec"], "hostPath": {"path": str(directory)}}})
