"""Tests of which pods a drain evicts: kubectl's rules, on plain dicts and compared with kubectl itself."""

from __future__ import annotations

import pytest
from hypothesis import given

from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.pods import DrainOptions, is_ready, key, sort, warning, warnings
from localcluster.cluster import LocalCluster
from tests.kube import samples
from tests.kube.samples import pod
from tests.proofs import proves
from tests.workload import Workload

MIRROR = {"kubernetes.io/config.mirror": "hash"}
STRICT = DrainOptions(force=False, ignore_daemonsets=False, delete_emptydir_data=False)


def with_empty_dir(item: Object) -> Object:
    return {**item, "spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}}


@pytest.mark.parametrize(
    ("item", "place"),
    [
        pytest.param(pod(), "bare", id="bare pod"),
        pytest.param(pod(owner="ReplicaSet"), "leaving", id="of a ReplicaSet"),
        pytest.param(pod(owner="ReplicationController"), "leaving", id="of a ReplicationController"),
        pytest.param(pod(owner="StatefulSet"), "leaving", id="of a StatefulSet"),
        pytest.param(pod(owner="Job"), "leaving", id="of a Job"),
        pytest.param(pod(owner="VirtualMachineInstance"), "leaving", id="of a custom controller"),
        pytest.param(pod(owner="DaemonSet"), "daemons", id="of a DaemonSet"),
        pytest.param(pod(owner="DaemonSet", phase="Succeeded"), "leaving", id="finished, of a DaemonSet"),
        pytest.param(pod(annotations=MIRROR), "nowhere", id="mirror pod"),
        pytest.param(pod(phase="Failed", annotations=MIRROR), "nowhere", id="finished mirror pod"),
        pytest.param(pod(owner="Node", annotations=MIRROR), "nowhere", id="mirror pod as a kubelet makes it"),
        pytest.param(pod(phase="Succeeded"), "leaving", id="finished well"),
        pytest.param(pod(phase="Failed"), "leaving", id="finished badly"),
        pytest.param(pod(phase="Pending", ready=False), "bare", id="not started"),
        pytest.param(pod(deletionTimestamp="2026-01-01T00:00:00Z"), "bare", id="on its way"),
        pytest.param(with_empty_dir(pod(owner="ReplicaSet")), "leaving", id="with emptyDir"),
    ],
)
def test_where_a_pod_belongs(item: Object, place: str) -> None:
    """NMO-6 to NMO-9: each kind of pod is classified as `kubectl drain` does."""
    found = sort([item])

    assert (item in found.leaving) is (place in ("leaving", "bare"))
    assert (item in found.bare) is (place == "bare")
    assert (item in found.daemons) is (place == "daemons")
    assert found.refusals == []


def test_an_owner_that_is_no_controller_does_not_count() -> None:
    """NMO-8: only an owner that would recreate the pod makes it a managed pod."""
    item = pod(ownerReferences=[{"kind": "Node", "name": "n", "uid": "u"}])

    assert sort([item]).bare == [item]


def test_an_orphaned_daemon_is_a_bare_pod() -> None:
    """NMO-7: a DaemonSet pod whose DaemonSet was deleted has to leave."""
    item = pod(owner="DaemonSet")

    found = sort([item], orphans={item["metadata"]["uid"]})

    assert (found.leaving, found.bare, found.daemons) == ([item], [item], [])


@pytest.mark.parametrize(
    ("item", "options", "reason"),
    [
        (pod(), DrainOptions(force=False), "cannot delete Pods that declare no controller (use --force to override)"),
        (
            pod(owner="DaemonSet"),
            DrainOptions(ignore_daemonsets=False),
            "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
        ),
        (
            with_empty_dir(pod(owner="ReplicaSet")),
            DrainOptions(delete_emptydir_data=False),
            "cannot delete Pods with local storage (use --delete-emptydir-data to override)",
        ),
    ],
    ids=["DRN-4", "DRN-3", "DRN-2"],
)
def test_a_missing_flag_refuses_the_drain(item: Object, options: DrainOptions, reason: str) -> None:
    """DRN-2, DRN-3, DRN-4: without a pod's flag, the drain is refused with kubectl's message and the pod's name."""
    (refusal,) = sort([item], options).refusals

    assert (refusal.reason, refusal.pods) == (reason, ["ns/pod"])
    assert sort([item]).refusals == []


@pytest.mark.parametrize(
    "item",
    [pod(phase="Succeeded"), with_empty_dir(pod(phase="Failed")), pod(annotations=MIRROR)],
    ids=["finished", "finished with emptyDir", "mirror"],
)
def test_some_pods_refuse_nothing(item: Object) -> None:
    """NMO-9, DRN-1: no drain is refused because of finished pods or mirror pods, whatever the flags."""
    assert sort([item], STRICT).refusals == []


def test_the_warnings_name_the_pods() -> None:
    """NMO-7, NMO-8: one line names the DaemonSet pods that stay, and one the pods that no controller recreates."""
    found = sort([pod("a", owner="DaemonSet"), pod("b", owner="DaemonSet"), pod("c"), pod("d", owner="Job")])

    assert warnings(found) == [
        "ignoring DaemonSet-managed Pods: ns/a, ns/b",
        "deleting Pods that declare no controller: ns/c",
    ]
    assert warnings(sort([])) == []


@proves("NMO-8a")
def test_a_maintenance_warns_in_one_line_in_the_documents_words() -> None:
    """NMO-8a: the line names the DaemonSet pods that stay, then the pods that no controller recreates."""
    daemons, bare = [pod("a", owner="DaemonSet"), pod("b", owner="DaemonSet")], [pod("c")]
    unmanaged = "deleting Pods not managed by ReplicationController, ReplicaSet, Job, DaemonSet or StatefulSet: ns/c"

    assert warning(sort([*daemons, *bare])) == f"ignoring DaemonSet-managed Pods: ns/a, ns/b; {unmanaged}"
    assert warning(sort(bare)) == unmanaged
    assert warning(sort([])) == ""


@given(samples.pods)
def test_every_pod_has_one_place(items: list[Object]) -> None:
    """NMO-6: each pod leaves, stays as a DaemonSet pod, or is a mirror pod; all unmanaged pods leave."""
    found = sort(items)

    mirrors = [item for item in items if item["metadata"]["annotations"]]
    assert sorted(map(key, [*found.leaving, *found.daemons, *mirrors])) == sorted(map(key, items))
    assert all(item in found.leaving for item in found.bare)


@given(samples.pods)
def test_a_maintenance_is_never_refused(items: list[Object]) -> None:
    """DRN-1: with the default flags of a NodeMaintenance, no pod prevents the drain."""
    assert sort(items).refusals == []


@pytest.mark.parametrize(
    ("conditions", "ready"),
    [
        ([], False),
        ([{"type": "Ready", "status": "True"}], True),
        ([{"type": "Ready", "status": "False"}], False),
        ([{"type": "Ready", "status": "Unknown"}], False),
        ([{"type": "Initialized", "status": "True"}], False),
    ],
)
def test_ready(conditions: list[Object], ready: bool) -> None:
    """NMO-6: only the condition Ready makes a pod ready."""
    assert is_ready({"metadata": {}, "spec": {}, "status": {"conditions": conditions}}) is ready
    assert is_ready({"metadata": {}, "spec": {}}) is False


def test_kubectl_refuses_in_the_same_words(installed: LocalCluster, admin: Cluster) -> None:
    """DRN-2, DRN-3, DRN-4, KNM-6: on the same node, `kubectl drain` gives the same reasons and names the same pods."""
    work = Workload(installed, admin)
    node = work.node()
    work.pods(node, "bare")
    work.pods(node, "scratch", empty_dir=True)
    work.daemonset("agent", node)
    pods = admin.list("/api/v1/pods", fields=f"spec.nodeName={node}")["items"]

    said = installed.kubectl("drain", node, check=False).stderr
    installed.kubectl("delete", "node", node)

    refusals = sort(pods, STRICT).refusals
    assert len(refusals) == 3
    for refusal in refusals:
        assert refusal.reason in said
        assert all(name in said for name in refusal.pods)
