"""Tests for an install on a cluster without Knative: a second apply, with Knative, completes the install."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventing.replay.function_client import post_event
from localcluster.cluster import LocalCluster
from tests.functions.event_builders import build_tick
from tests.manifests.rendering import MANIFESTS, ROOT, SKIP_SCHEMA_OPTION, install_knative_crds, render
from tests.manifests.running_install import RunningInstall
from tests.proofs import proves

pytestmark = pytest.mark.slow

SAMPLE_FILE = ROOT / "config" / "samples" / "nodemaintenance_v1beta1_nodemaintenance.yaml"
COMPACT_DIR = MANIFESTS / "overlays" / "compact"
"""The overlay whose functions run in one process, so that this test can run them."""
WEBHOOK_CONFIGURATION = "validatingwebhookconfigurations/nodemaintenance-validate"
WORKLOAD_RESOURCES = "pods,deployments,statefulsets,daemonsets,jobs,cronjobs"


@pytest.fixture
def empty_cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a new cluster with the sample's node, but without the product and without Knative."""
    with LocalCluster(tmp_path / "servers", nodes=1) as cluster:
        cluster.create_nodes("node02")
        yield cluster


@proves("NMO-24", "X-3")
def test_second_apply_after_knative_is_installed_completes_install(empty_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that the first apply reports each missing kind, and that a maintenance succeeds after the second apply.

    The first apply starts only the webhook. The API server does not call the webhook yet, because a Knative Service
    must first issue its certificate.
    """
    objects = render(COMPACT_DIR)
    knative_kinds = {manifest["kind"] for manifest in objects if ".knative.dev/" in manifest["apiVersion"]}

    first_result = empty_cluster.kubectl("apply", "-k", COMPACT_DIR, check=False)
    empty_cluster.kubectl("apply", "-f", SAMPLE_FILE)
    wait_result = empty_cluster.kubectl(
        "wait", "--for=condition=Drained", "-f", SAMPLE_FILE, "--timeout=1s", check=False
    )

    assert first_result.returncode == 1
    assert {kind for kind in knative_kinds if f'no matches for kind "{kind}"' in first_result.stderr} == knative_kinds
    workloads = empty_cluster.kubectl("get", WORKLOAD_RESOURCES, "--all-namespaces", "-o", "name").stdout.split()
    assert [name for name in workloads if not name.startswith("pod/validate-")] == ["deployment.apps/validate"]
    assert "caBundle" not in empty_cluster.kubectl("get", WEBHOOK_CONFIGURATION, "-o", "json").stdout
    assert (wait_result.returncode, "timed out" in wait_result.stderr) == (1, True)
    maintenance = json.loads(empty_cluster.kubectl("get", "-f", SAMPLE_FILE, "-o", "json").stdout)
    assert "status" not in maintenance
    assert "finalizers" not in maintenance["metadata"]
    assert "SchedulingDisabled" not in empty_cluster.kubectl("get", "node", "node02").stdout

    install_knative_crds(empty_cluster)
    second_result = empty_cluster.kubectl("apply", SKIP_SCHEMA_OPTION, "-k", COMPACT_DIR)

    assert len(second_result.stdout.splitlines()) == len(objects)
    with RunningInstall(empty_cluster, objects, tmp_path) as install:
        assert post_event(build_tick(), install.broker_url).status_code == 202
        empty_cluster.kubectl("wait", "--for=condition=Drained", "-f", SAMPLE_FILE, "--timeout=20s")
        assert "SchedulingDisabled" in empty_cluster.kubectl("get", "node", "node02").stdout
