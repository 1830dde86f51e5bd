"""An install on a cluster without Knative: the apply fails, nothing runs, and a second apply completes it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from eventing.replay.function_client import post
from localcluster.cluster import LocalCluster
from tests.functions.event_builders import tick
from tests.manifests.rendering import MANIFESTS, ROOT, SPARING, knative_crds, rendered
from tests.manifests.running_install import Running
from tests.proofs import proves

pytestmark = pytest.mark.slow

SAMPLE = ROOT / "config" / "samples" / "nodemaintenance_v1beta1_nodemaintenance.yaml"
COMPACT = MANIFESTS / "overlays" / "compact"
"""The overlay whose functions run in one process, so that the test can run it."""
WEBHOOKS = "validatingwebhookconfigurations/nodemaintenance-validate"
RUNS = "pods,deployments,statefulsets,daemonsets,jobs,cronjobs"


@pytest.fixture
def bare(tmp_path: Path) -> Iterator[LocalCluster]:
    """Yield a new cluster with the sample's node, and without the product or Knative."""
    with LocalCluster(tmp_path / "servers", nodes=1) as cluster:
        cluster.add_named("node02")
        yield cluster


@proves("NMO-24", "X-3")
def test_without_knative_nothing_works_until_a_second_apply_completes_it(bare: LocalCluster, tmp_path: Path) -> None:
    """Check that the first apply names each missing kind, and that the pending maintenance succeeds after the second.

    The first apply starts only the webhook. The API server does not call it, because a Knative Service renews its
    certificate.
    """
    objects = rendered(COMPACT)
    theirs = {item["kind"] for item in objects if ".knative.dev/" in item["apiVersion"]}

    first = bare.kubectl("apply", "-k", COMPACT, check=False)
    bare.kubectl("apply", "-f", SAMPLE)
    waited = bare.kubectl("wait", "--for=condition=Drained", "-f", SAMPLE, "--timeout=1s", check=False)

    assert first.returncode == 1
    assert {kind for kind in theirs if f'no matches for kind "{kind}"' in first.stderr} == theirs
    runs = bare.kubectl("get", RUNS, "--all-namespaces", "-o", "name").stdout.split()
    assert [name for name in runs if not name.startswith("pod/validate-")] == ["deployment.apps/validate"]
    assert "caBundle" not in bare.kubectl("get", WEBHOOKS, "-o", "json").stdout
    assert (waited.returncode, "timed out" in waited.stderr) == (1, True)
    item = json.loads(bare.kubectl("get", "-f", SAMPLE, "-o", "json").stdout)
    assert "status" not in item
    assert "finalizers" not in item["metadata"]
    assert "SchedulingDisabled" not in bare.kubectl("get", "node", "node02").stdout

    files = [word for file in knative_crds() for word in ("-f", str(file))]
    bare.kubectl("apply", "--server-side", *files)
    bare.await_kinds()
    second = bare.kubectl("apply", SPARING, "-k", COMPACT)

    assert len(second.stdout.splitlines()) == len(objects)
    with Running(bare, objects, tmp_path) as install:
        assert post(tick(), install.broker_url).status_code == 202
        bare.kubectl("wait", "--for=condition=Drained", "-f", SAMPLE, "--timeout=20s")
        assert "SchedulingDisabled" in bare.kubectl("get", "node", "node02").stdout
