"""Tests for selecting the pods to evict by the rules of `kubectl drain`, on plain dicts and with kubectl."""

from __future__ import annotations

import pytest
from hypothesis import given

from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.pods import DrainOptions, build_warning_line, build_warnings, classify_pods, format_key, is_ready
from localcluster.cluster import LocalCluster
from tests.kube import samples
from tests.kube.samples import make_pod
from tests.proofs import proves
from tests.workload import Workload

MIRROR_ANNOTATIONS = {"kubernetes.io/config.mirror": "hash"}
STRICT_OPTIONS = DrainOptions(force=False, ignore_daemonsets=False, delete_emptydir_data=False)


def add_empty_dir(pod: Object) -> Object:
    return {**pod, "spec": {"volumes": [{"name": "scratch", "emptyDir": {}}]}}


@pytest.mark.parametrize(
    ("pod", "expected_group"),
    [
        pytest.param(make_pod(), "bare", id="bare pod"),
        pytest.param(make_pod(owner="ReplicaSet"), "leaving", id="managed by a ReplicaSet"),
        pytest.param(make_pod(owner="ReplicationController"), "leaving", id="managed by a ReplicationController"),
        pytest.param(make_pod(owner="StatefulSet"), "leaving", id="managed by a StatefulSet"),
        pytest.param(make_pod(owner="Job"), "leaving", id="managed by a Job"),
        pytest.param(make_pod(owner="VirtualMachineInstance"), "leaving", id="managed by a custom controller"),
        pytest.param(make_pod(owner="DaemonSet"), "daemonset", id="managed by a DaemonSet"),
        pytest.param(make_pod(owner="DaemonSet", phase="Succeeded"), "leaving", id="finished, managed by a DaemonSet"),
        pytest.param(make_pod(annotations=MIRROR_ANNOTATIONS), "none", id="mirror pod"),
        pytest.param(make_pod(phase="Failed", annotations=MIRROR_ANNOTATIONS), "none", id="finished mirror pod"),
        pytest.param(
            make_pod(owner="Node", annotations=MIRROR_ANNOTATIONS), "none", id="mirror pod as created by a kubelet"
        ),
        pytest.param(make_pod(phase="Succeeded"), "leaving", id="succeeded"),
        pytest.param(make_pod(phase="Failed"), "leaving", id="failed"),
        pytest.param(make_pod(phase="Pending", ready=False), "bare", id="not started"),
        pytest.param(make_pod(deletionTimestamp="2026-01-01T00:00:00Z"), "bare", id="terminating"),
        pytest.param(add_empty_dir(make_pod(owner="ReplicaSet")), "leaving", id="with emptyDir"),
    ],
)
def test_pod_is_classified_as_by_kubectl_drain(pod: Object, expected_group: str) -> None:
    """NMO-6 to NMO-9: each kind of pod is classified as by `kubectl drain`."""
    classification = classify_pods([pod])

    assert (pod in classification.leaving) is (expected_group in ("leaving", "bare"))
    assert (pod in classification.bare) is (expected_group == "bare")
    assert (pod in classification.daemonset_pods) is (expected_group == "daemonset")
    assert classification.refusals == []


def test_owner_without_controller_flag_is_ignored() -> None:
    """NMO-8: a pod is managed only if its owner is a controller, which would recreate the pod."""
    pod = make_pod(ownerReferences=[{"kind": "Node", "name": "n", "uid": "u"}])

    assert classify_pods([pod]).bare == [pod]


def test_pod_of_deleted_daemonset_is_unmanaged() -> None:
    """NMO-7: a DaemonSet pod whose DaemonSet was deleted is a pod to evict."""
    pod = make_pod(owner="DaemonSet")

    classification = classify_pods([pod], orphan_uids={pod["metadata"]["uid"]})

    assert (classification.leaving, classification.bare, classification.daemonset_pods) == ([pod], [pod], [])


@pytest.mark.parametrize(
    ("pod", "options", "reason"),
    [
        (
            make_pod(),
            DrainOptions(force=False),
            "cannot delete Pods that declare no controller (use --force to override)",
        ),
        (
            make_pod(owner="DaemonSet"),
            DrainOptions(ignore_daemonsets=False),
            "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore)",
        ),
        (
            add_empty_dir(make_pod(owner="ReplicaSet")),
            DrainOptions(delete_emptydir_data=False),
            "cannot delete Pods with local storage (use --delete-emptydir-data to override)",
        ),
    ],
    ids=["DRN-4", "DRN-3", "DRN-2"],
)
def test_drain_is_rejected_without_required_flag(pod: Object, options: DrainOptions, reason: str) -> None:
    """DRN-2, DRN-3, DRN-4: without a required flag, the drain is rejected with kubectl's message and the pod's name."""
    (refusal,) = classify_pods([pod], options).refusals

    assert (refusal.reason, refusal.pods) == (reason, ["ns/pod"])
    assert classify_pods([pod]).refusals == []


@pytest.mark.parametrize(
    "pod",
    [make_pod(phase="Succeeded"), add_empty_dir(make_pod(phase="Failed")), make_pod(annotations=MIRROR_ANNOTATIONS)],
    ids=["finished", "finished with emptyDir", "mirror"],
)
def test_completed_and_mirror_pods_do_not_cause_rejection_of_drain(pod: Object) -> None:
    """NMO-9, DRN-1: no drain is rejected because of completed pods or mirror pods, whatever the flags."""
    assert classify_pods([pod], STRICT_OPTIONS).refusals == []


def test_drain_warnings_name_daemonset_and_unmanaged_pods() -> None:
    """NMO-7, NMO-8: one line names the DaemonSet pods that stay, and one the pods that no controller recreates."""
    classification = classify_pods(
        [make_pod("a", owner="DaemonSet"), make_pod("b", owner="DaemonSet"), make_pod("c"), make_pod("d", owner="Job")]
    )

    assert build_warnings(classification) == [
        "ignoring DaemonSet-managed Pods: ns/a, ns/b",
        "deleting Pods that declare no controller: ns/c",
    ]
    assert build_warnings(classify_pods([])) == []


@proves("NMO-8a")
def test_drain_warning_of_maintenance_is_one_line_with_documented_wording() -> None:
    """NMO-8a: the warning names the DaemonSet pods that stay, then the pods that no controller recreates."""
    daemonset_pods, unmanaged_pods = (
        [make_pod("a", owner="DaemonSet"), make_pod("b", owner="DaemonSet")],
        [make_pod("c")],
    )
    unmanaged = "deleting Pods not managed by ReplicationController, ReplicaSet, Job, DaemonSet or StatefulSet: ns/c"

    assert (
        build_warning_line(classify_pods([*daemonset_pods, *unmanaged_pods]))
        == f"ignoring DaemonSet-managed Pods: ns/a, ns/b; {unmanaged}"
    )
    assert build_warning_line(classify_pods(unmanaged_pods)) == unmanaged
    assert build_warning_line(classify_pods([])) == ""


@given(samples.pod_lists)
def test_every_pod_is_classified_into_one_group(pods: list[Object]) -> None:
    """NMO-6: each pod is a pod to evict, a DaemonSet pod or a mirror pod, and all unmanaged pods are pods to evict."""
    classification = classify_pods(pods)

    mirror_pods = [pod for pod in pods if pod["metadata"]["annotations"]]
    assert sorted(map(format_key, [*classification.leaving, *classification.daemonset_pods, *mirror_pods])) == sorted(
        map(format_key, pods)
    )
    assert all(pod in classification.leaving for pod in classification.bare)


@given(samples.pod_lists)
def test_drain_with_default_options_is_never_rejected(pods: list[Object]) -> None:
    """DRN-1: with the default flags of a NodeMaintenance, no pod prevents the drain."""
    assert classify_pods(pods).refusals == []


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
def test_pod_readiness_depends_on_ready_condition(conditions: list[Object], ready: bool) -> None:
    """NMO-6: only the Ready condition decides whether a pod is ready."""
    assert is_ready({"metadata": {}, "spec": {}, "status": {"conditions": conditions}}) is ready
    assert is_ready({"metadata": {}, "spec": {}}) is False


def test_kubectl_drain_gives_same_reasons(installed_cluster: LocalCluster, admin_client: SyncClient) -> None:
    """DRN-2, DRN-3, DRN-4, KNM-6: `kubectl drain` gives the same reasons for the same pods of a node."""
    workload = Workload(installed_cluster, admin_client)
    node = workload.take_node()
    workload.create_bare_pods(node, "bare")
    workload.create_bare_pods(node, "scratch", empty_dir=True)
    workload.create_daemonset("agent", node)
    pods = admin_client.list("/api/v1/pods", field_selector=f"spec.nodeName={node}")["items"]

    error_output = installed_cluster.kubectl("drain", node, check=False).stderr
    installed_cluster.kubectl("delete", "node", node)

    refusals = classify_pods(pods, STRICT_OPTIONS).refusals
    assert len(refusals) == 3
    for refusal in refusals:
        assert refusal.reason in error_output
        assert all(name in error_output for name in refusal.pods)
