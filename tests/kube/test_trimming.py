"""Tests that the rules give the same results for trimmed objects as for complete ones."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube import pods as rules
from kube.budgets import Plan, admitted, allows_none, covers, goes_beside, identity, plan
from kube.client.decoding import decoded
from kube.maintenance.blocked_pods import still_blocked
from kube.maintenance.eviction_backoff import parted
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import began_on
from kube.nodes import UNSCHEDULABLE, in_maintenance, is_closed
from kube.paths import Object
from kube.pods import DrainOptions, Pod, Sorted, sort, uid
from kube.trimming import PODS, drained_pod, trimmed_budget, trimmed_node, trimmed_pod
from tests.kube import samples
from tests.kube.samples import budget, pod

STRICT = DrainOptions(force=False, ignore_daemonsets=False, delete_emptydir_data=False)
VOLUMES: list[Object] = [{"name": "config", "configMap": {}}, {"name": "scratch", "emptyDir": {}}]
DRAIN_TOLERATIONS: list[Object] = [{"key": key, "operator": "Exists"} for key in (MEDIK8S.drain_taint, UNSCHEDULABLE)]
CORDONED: Object = {
    "conditions": [{"type": "Cordoned", "status": "True", "lastTransitionTime": "2026-01-01T00:00:10Z"}]
}
PREDICATES = (
    rules.is_mirror,
    rules.is_daemon,
    rules.is_finished,
    rules.is_terminating,
    rules.is_ready,
    rules.has_local_storage,
    rules.stays,
    rules.key,
    identity,
)


def names(found: Iterable[Pod]) -> list[str]:
    return [uid(item) for item in found]


def told(found: Sorted) -> Any:
    """Return the classification with uids in place of pods."""
    return names(found.leaving), names(found.daemons), names(found.bare), found.refusals


def planned(found: Plan) -> Any:
    """Return the plan with uids in place of pods."""
    queues = {key: names(queue) for key, queue in found.queues.items()}
    return names(found.free), queues, found.blocked, list(found.budgets)


def with_volumes(pods: list[Object], chosen: list[list[Object]]) -> list[Object]:
    volumes = itertools.cycle(chosen)
    return [{**item, "spec": {"volumes": next(volumes), "containers": [{"name": "main"}]}} for item in pods]


drawn = st.builds(with_volumes, samples.pods, st.lists(st.lists(st.sampled_from(VOLUMES)), min_size=1, max_size=3))


@given(drawn)
def test_pods_are_sorted_alike(pods: list[Object]) -> None:
    """NMO-6 to NMO-9: trimmed pods are classified like complete ones, also with orphans and strict options."""
    trimmed = [trimmed_pod(item) for item in pods]
    orphans = {uid(item) for item in pods[::2]}

    assert told(sort(trimmed)) == told(sort(pods))
    assert told(sort(trimmed, STRICT, orphans)) == told(sort(pods, STRICT, orphans))
    for ask in PREDICATES:
        assert [ask(item) for item in trimmed] == [ask(item) for item in pods]


@given(drawn, samples.budgets)
def test_budgets_let_the_same_pods_go(pods: list[Object], budgets: list[Object]) -> None:
    """NMO-6, X-6: trimmed pods and budgets give the same plan, with the same messages."""
    less, fewer = [trimmed_pod(item) for item in pods], [trimmed_budget(item) for item in budgets]

    assert planned(plan(less, fewer)) == planned(plan(pods, budgets))
    for mine, whole in zip(fewer, budgets, strict=True):
        assert allows_none(mine) == allows_none(whole)
        assert [covers(mine, item) for item in less] == [covers(whole, item) for item in pods]
        assert [goes_beside(mine, item) for item in less] == [goes_beside(whole, item) for item in pods]
        assert [names(part) for part in admitted(mine, less)] == [names(part) for part in admitted(whole, pods)]


def test_a_trimmed_object_keeps_its_version_and_says_the_same_when_it_is_trimmed_again() -> None:
    """Keep uid and resourceVersion, by which a follower detects changes; a second trim changes nothing."""
    mine, ours = trimmed_pod(pod(owner="Job")), trimmed_budget({**budget(), "kind": "PodDisruptionBudget"})

    assert (mine["metadata"]["uid"], mine["metadata"]["resourceVersion"]) == ("ns-pod-uid", "1")
    assert trimmed_pod(mine) == mine
    assert trimmed_budget(ours) == ours


def test_what_no_rule_reads_is_left_out() -> None:
    """Drop the largest parts of a typical pod: most of its spec, its managed fields and its container statuses."""
    usual = pod(managedFields=[{"manager": "kubelet", "fieldsV1": {}}], annotations={"note": "x" * 5000})
    usual["spec"] = {"containers": [{"name": "main", "env": [{"name": "A", "value": "b" * 5000}]}]}
    usual["status"]["containerStatuses"] = [{"name": "main", "imageID": "c" * 100}]

    assert len(json.dumps(trimmed_pod(usual))) < 300


def test_a_trimmed_pod_tells_its_controller() -> None:
    """Rule 9, DRN-3: a trimmed pod keeps its controller's kind, name and uid, which identify orphans."""
    owned = pod(owner="DaemonSet")

    assert rules.controller(trimmed_pod(owned)) == rules.controller(owned)
    assert "ownerReferences" not in trimmed_pod(pod())["metadata"]


@given(drawn)
def test_what_decides_about_a_drain_reads_no_more_of_a_pod(pods: list[Object]) -> None:
    """NMO-6 to NMO-9: pods trimmed for a drain are classified like complete ones."""
    assert told(sort([drained_pod(item) for item in pods], STRICT)) == told(sort(pods, STRICT))


@pytest.mark.parametrize(
    ("tolerations", "created", "rests"),
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
def test_a_drained_pod_returns_as_the_whole_one_does(tolerations: list[Object], created: str, rests: bool) -> None:
    """Rule 9: tolerations and creation time are kept, because they decide whether an eviction would change anything."""
    now, asked = datetime(2026, 1, 1, 0, 0, 21, tzinfo=timezone.utc), samples.maintenance(CORDONED)
    whole = {**pod(owner="ReplicaSet", creationTimestamp=created), "spec": {"tolerations": tolerations}}

    due, resting = parted([drained_pod(whole)], asked, now)

    assert bool(resting) == rests
    assert (names(due), resting) == (names(parted([whole], asked, now)[0]), parted([whole], asked, now)[1])


def test_a_drained_pod_is_as_stuck_as_the_whole_one() -> None:
    """NMO-12, OSV-15: finalizers are kept, because the status names those that hold a stuck pod."""
    whole = pod(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/hold"])
    now = datetime(2026, 1, 1, 0, 1, tzinfo=timezone.utc)

    [told] = still_blocked([], [], [drained_pod(whole)], now)

    assert "example.com/hold" in told["message"]
    assert [told] == still_blocked([], [], [whole], now)


@given(drawn)
def test_a_decoded_pod_has_all_that_decides_about_a_drain(pods: list[Object]) -> None:
    """NMO-6 to NMO-9: the typed decoder keeps every field that the drain rules read."""
    served = [{**item, "metadata": {k: v for k, v in item["metadata"].items() if v is not None}} for item in pods]
    answer = json.dumps({"kind": "PodList", "metadata": {"resourceVersion": "1"}, "items": served})

    assert [drained_pod(item) for item in PODS.decode(answer)["items"]] == [drained_pod(item) for item in served]


def test_a_pod_of_another_form_is_decoded_as_a_whole() -> None:
    """X-6: a response that does not match the decoder's types is decoded completely and raises no error."""
    answer = b'{"metadata": {"resourceVersion": "1"}, "items": [{"metadata": {"name": 1}}]}'

    assert decoded(answer, PODS) == json.loads(answer)


def test_a_drained_pod_is_where_the_whole_one_is() -> None:
    """P7: the node's name is kept, because evictions are sent for the nodes in rotation."""
    whole = {**pod(), "spec": {"nodeName": "node-1"}}

    assert rules.node_of(drained_pod(whole)) == rules.node_of(whole) == "node-1"


def test_a_trimmed_node_is_in_maintenance_like_the_whole_one() -> None:
    """Keep labels, cordon, taints and uid, but not the images."""
    whole = {**samples.IN_MAINTENANCE, "status": {"images": [{"names": ["x" * 5000]}]}}

    node = trimmed_node(whole)

    assert in_maintenance(node, MEDIK8S.drain_taint) == in_maintenance(whole, MEDIK8S.drain_taint)
    assert is_closed(node, MEDIK8S.drain_taint)
    assert began_on(samples.maintenance(), node)
    assert "status" not in node


def test_a_trimmed_node_keeps_what_names_it() -> None:
    """Keep name, uid, resourceVersion, labels and spec, and nothing else."""
    metadata = {"name": "n", "uid": "u", "resourceVersion": "7", "labels": {"a": "b"}}
    whole = {
        "metadata": {**metadata, "annotations": {"x": "y"}},
        "spec": {"unschedulable": True},
        "status": {"images": []},
    }

    assert trimmed_node(whole) == {"metadata": metadata, "spec": {"unschedulable": True}}
