"""Tests that the drain rules give the same results for trimmed objects as for complete objects."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube import pods as pod_rules
from kube.budgets import (
    build_object_reference,
    covers,
    may_evict_unready_pod,
    never_allows_disruption,
    split_admitted_pods,
)
from kube.client.decoding import decode_response
from kube.evictions.planner import EvictionPlan, plan_evictions
from kube.maintenance.blocked_pods import build_blocked_pods, split_due_pods
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import has_begun_on
from kube.nodes import UNSCHEDULABLE_TAINT, is_cordoned_and_tainted, is_in_maintenance
from kube.paths import Object
from kube.pods import DrainOptions, Pod, PodClassification, classify_pods, get_uid
from kube.trimming import POD_LIST_DECODER, trim_budget, trim_node, trim_pod, trim_pod_for_drain
from tests.kube import samples
from tests.kube.samples import make_budget, make_pod

STRICT_OPTIONS = DrainOptions(force=False, ignore_daemonsets=False, delete_emptydir_data=False)
VOLUMES: list[Object] = [{"name": "config", "configMap": {}}, {"name": "scratch", "emptyDir": {}}]
DRAIN_TOLERATIONS: list[Object] = [
    {"key": key, "operator": "Exists"} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE_TAINT)
]
CORDONED_STATUS: Object = {
    "conditions": [{"type": "Cordoned", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]
}
PREDICATES = (
    pod_rules.is_mirror_pod,
    pod_rules.is_daemonset_pod,
    pod_rules.is_finished,
    pod_rules.is_terminating,
    pod_rules.is_ready,
    pod_rules.has_local_storage,
    pod_rules.is_never_evicted,
    pod_rules.format_key,
    build_object_reference,
)


def get_uids(pods: Iterable[Pod]) -> list[str]:
    return [get_uid(pod) for pod in pods]


def get_classified_uids(classification: PodClassification) -> Any:
    """Return the uids of the pods in each group of the classification, and its blocked pods."""
    return (
        get_uids(classification.leaving),
        get_uids(classification.daemonset_pods),
        get_uids(classification.bare),
        classification.refusals,
    )


def get_planned_uids(plan: EvictionPlan) -> Any:
    """Return the eviction plan's contents, with the uids of the pods to evict instead of the pods."""
    queues = [(queue.key, get_uids(queue.admitted)) for queue in plan.queues]
    return get_uids(plan.unbudgeted), queues, plan.blocked


def add_volumes(pods: list[Object], volume_lists: list[list[Object]]) -> list[Object]:
    volumes = itertools.cycle(volume_lists)
    return [{**pod, "spec": {"volumes": next(volumes), "containers": [{"name": "main"}]}} for pod in pods]


pods_with_volumes = st.builds(
    add_volumes, samples.pod_lists, st.lists(st.lists(st.sampled_from(VOLUMES)), min_size=1, max_size=3)
)


@given(pods_with_volumes)
def test_trimmed_pods_are_classified_like_complete_pods(pods: list[Object]) -> None:
    """NMO-6 to NMO-9: trimmed pods are classified like complete pods, even with orphans and strict drain options."""
    trimmed = [trim_pod(pod) for pod in pods]
    orphans = {get_uid(pod) for pod in pods[::2]}

    assert get_classified_uids(classify_pods(trimmed)) == get_classified_uids(classify_pods(pods))
    assert get_classified_uids(classify_pods(trimmed, STRICT_OPTIONS, orphans)) == get_classified_uids(
        classify_pods(pods, STRICT_OPTIONS, orphans)
    )
    for predicate in PREDICATES:
        assert [predicate(pod) for pod in trimmed] == [predicate(pod) for pod in pods]


@given(pods_with_volumes, samples.budget_lists)
def test_trimmed_pods_and_pdbs_give_same_eviction_plan(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6, X-6: trimmed pods and PDBs give the same eviction plan with the same messages as complete objects."""
    trimmed_pods, trimmed_budgets = [trim_pod(pod) for pod in pods], [trim_budget(budget) for budget in budgets]

    assert get_planned_uids(plan_evictions(trimmed_pods, trimmed_budgets)) == get_planned_uids(
        plan_evictions(pods, budgets)
    )
    for trimmed, budget in zip(trimmed_budgets, budgets, strict=True):
        assert never_allows_disruption(trimmed) == never_allows_disruption(budget)
        assert [covers(trimmed, pod) for pod in trimmed_pods] == [covers(budget, pod) for pod in pods]
        assert [may_evict_unready_pod(trimmed, pod) for pod in trimmed_pods] == [
            may_evict_unready_pod(budget, pod) for pod in pods
        ]
        assert [get_uids(pod_group) for pod_group in split_admitted_pods(trimmed, trimmed_pods)] == [
            get_uids(pod_group) for pod_group in split_admitted_pods(budget, pods)
        ]


def test_trimming_keeps_resource_version_and_is_idempotent() -> None:
    """Check that trimming is idempotent, and keeps uid and resourceVersion, with which `follow` detects changes."""
    trimmed_pod, trimmed_budget = (
        trim_pod(make_pod(owner="Job")),
        trim_budget({**make_budget(), "kind": "PodDisruptionBudget"}),
    )

    assert (trimmed_pod["metadata"]["uid"], trimmed_pod["metadata"]["resourceVersion"]) == ("ns-pod-uid", "1")
    assert trim_pod(trimmed_pod) == trimmed_pod
    assert trim_budget(trimmed_budget) == trimmed_budget


def test_trimming_drops_fields_that_no_rule_reads() -> None:
    """Check that trimming drops most of a pod's spec, its managed fields and its container statuses."""
    pod = make_pod(managedFields=[{"manager": "kubelet", "fieldsV1": {}}], annotations={"note": "x" * 5000})
    pod["spec"] = {"containers": [{"name": "main", "env": [{"name": "A", "value": "b" * 5000}]}]}
    pod["status"]["containerStatuses"] = [{"name": "main", "imageID": "c" * 100}]

    assert len(json.dumps(trim_pod(pod))) < 300


def test_trimmed_pod_keeps_controller() -> None:
    """Design rule 9, DRN-3: a trimmed pod keeps its controller's kind, name and uid, which identify orphans."""
    pod = make_pod(owner="DaemonSet")

    assert pod_rules.get_controller(trim_pod(pod)) == pod_rules.get_controller(pod)
    assert "ownerReferences" not in trim_pod(make_pod())["metadata"]


@given(pods_with_volumes)
def test_pods_trimmed_for_a_drain_are_classified_like_complete_pods(pods: list[Object]) -> None:
    """NMO-6 to NMO-9: pods trimmed for a drain are classified like complete pods."""
    assert get_classified_uids(
        classify_pods([trim_pod_for_drain(pod) for pod in pods], STRICT_OPTIONS)
    ) == get_classified_uids(classify_pods(pods, STRICT_OPTIONS))


@pytest.mark.parametrize(
    ("tolerations", "creation_time", "is_backing_off"),
    [
        ([{"operator": "Exists"}], "2026-01-01T00:00:20Z", True),
        (DRAIN_TOLERATIONS, "2026-01-01T00:00:20Z", True),
        (DRAIN_TOLERATIONS, "2026-01-01T00:00:05Z", False),
        (DRAIN_TOLERATIONS[:1], "2026-01-01T00:00:20Z", True),
        ([], "2026-01-01T00:00:20Z", True),
        (DRAIN_TOLERATIONS[:1], "2026-01-01T00:00:11Z", False),
        ([], "2026-01-01T00:00:11Z", False),
    ],
)
def test_pod_trimmed_for_a_drain_has_the_same_backoff(
    tolerations: list[Object], creation_time: str, is_backing_off: bool
) -> None:
    """Design rule 9: a trimmed pod keeps its tolerations and creation time, which determine its backoff."""
    now, maintenance = datetime(2026, 1, 1, 0, 0, 21, tzinfo=timezone.utc), samples.make_maintenance(CORDONED_STATUS)
    pod = {**make_pod(owner="ReplicaSet", creationTimestamp=creation_time), "spec": {"tolerations": tolerations}}

    due, blocked = split_due_pods([trim_pod_for_drain(pod)], maintenance, now)

    assert bool(blocked) == is_backing_off
    assert (get_uids(due), blocked) == (
        get_uids(split_due_pods([pod], maintenance, now)[0]),
        split_due_pods([pod], maintenance, now)[1],
    )


def test_stuck_pod_trimmed_for_a_drain_is_reported_like_the_complete_pod() -> None:
    """NMO-12, OSV-15: a trimmed pod keeps its finalizers, because the status of a stuck pod names them."""
    pod = make_pod(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/hold"])
    now = datetime(2026, 1, 1, 0, 1, tzinfo=timezone.utc)

    [blocked_pod] = build_blocked_pods([], [], [trim_pod_for_drain(pod)], now)

    assert "example.com/hold" in blocked_pod["message"]
    assert [blocked_pod] == build_blocked_pods([], [], [pod], now)


def test_pod_trimmed_for_a_drain_keeps_its_grace_period() -> None:
    """Check that a trimmed pod keeps its deletion grace period, so that no escalation step deletes it again."""
    metadata = {
        "namespace": "ns",
        "name": "web",
        "deletionTimestamp": "2026-01-01T00:00:00Z",
        "deletionGracePeriodSeconds": 0,
    }
    response = json.dumps(
        {"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": [{"metadata": metadata, "spec": {}}]}
    )

    (decoded,) = POD_LIST_DECODER.decode(response)["items"]

    assert trim_pod_for_drain(decoded)["metadata"]["deletionGracePeriodSeconds"] == 0


@given(pods_with_volumes)
def test_typed_decoder_keeps_all_fields_that_a_drain_reads(pods: list[Object]) -> None:
    """NMO-6 to NMO-9: the typed decoder keeps every field that the drain rules read."""
    served_pods = [
        {**pod, "metadata": {name: value for name, value in pod["metadata"].items() if value is not None}}
        for pod in pods
    ]
    response = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": served_pods})

    assert [trim_pod_for_drain(pod) for pod in POD_LIST_DECODER.decode(response)["items"]] == [
        trim_pod_for_drain(pod) for pod in served_pods
    ]


def test_unexpected_pod_list_is_decoded_completely() -> None:
    """X-6: a response that does not match the decoder's types is decoded completely and raises no error."""
    response = b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": 1}}]}'

    assert decode_response(response, POD_LIST_DECODER) == json.loads(response)


def test_pod_trimmed_for_a_drain_keeps_its_node() -> None:
    """Check that a trimmed pod keeps its node's name, because evictions are sent for the nodes in rotation."""
    pod = {**make_pod(), "spec": {"nodeName": "node-1"}}

    assert pod_rules.get_node_name(trim_pod_for_drain(pod)) == pod_rules.get_node_name(pod) == "node-1"


def test_trimmed_node_has_same_maintenance_state() -> None:
    """Check that a trimmed node keeps its labels, cordon, taints and uid, but not its images."""
    full_node = {**samples.NODE_IN_MAINTENANCE, "status": {"images": [{"names": ["x" * 5000]}]}}

    node = trim_node(full_node)

    assert is_in_maintenance(node, MEDIK8S.drain_taint) == is_in_maintenance(full_node, MEDIK8S.drain_taint)
    assert is_cordoned_and_tainted(node, MEDIK8S.drain_taint)
    assert has_begun_on(samples.make_maintenance(), node)
    assert "status" not in node


def test_trimmed_node_keeps_only_metadata_and_spec() -> None:
    """Check that a trimmed node keeps only its name, uid, resourceVersion, labels and spec."""
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
    node = {
        "metadata": {**metadata, "annotations": {"x": "y"}},
        "spec": {"unschedulable": True},
        "status": {"images": []},
    }

    assert trim_node(node) == {"metadata": metadata, "spec": {"unschedulable": True}}
