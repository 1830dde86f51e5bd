"""Tests of NodeMaintenance objects on plain dicts: whether they have begun, and the patches that begin and end them."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import snapshot
from kube.paths import Object
from kube.times import moment, moment_or_none, timestamp
from tests.kube.samples import maintenance, node

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("annotations", "counts"),
    [
        pytest.param({m.SNAPSHOT: '{"totalpods": 4, "evictionPods": 2, "uid": "u"}'}, (4, 2), id="good"),
        pytest.param({m.SNAPSHOT: '{"totalpods": 4, "evictionPods": 2, "uid": "v"}'}, None, id="another's"),
        pytest.param({m.SNAPSHOT: '{"totalpods": 4, "evictionPods": 2}'}, None, id="nobody's"),
        pytest.param({}, None, id="none"),
        pytest.param(None, None, id="no annotations"),
        pytest.param({m.SNAPSHOT: ""}, None, id="empty"),
        pytest.param({m.SNAPSHOT: "nonsense"}, None, id="no JSON"),
        pytest.param({m.SNAPSHOT: "[]"}, None, id="a list"),
        pytest.param({m.SNAPSHOT: '{"totalpods": 1e999, "evictionPods": 1, "uid": "u"}'}, None, id="infinite"),
        pytest.param({m.SNAPSHOT: "[" * 100_000}, None, id="deep"),
        pytest.param({m.SNAPSHOT: '{"totalpods": 4, "uid": "u"}'}, None, id="half"),
        pytest.param({m.SNAPSHOT: '{"totalpods": "x", "evictionPods": 2, "uid": "u"}'}, None, id="no number"),
        pytest.param({m.SNAPSHOT: '{"totalpods": -3, "evictionPods": 2, "uid": "u"}'}, None, id="negative"),
        pytest.param({m.SNAPSHOT: f'{{"totalpods": {2**31}, "evictionPods": 2, "uid": "u"}}'}, None, id="too many"),
        pytest.param({m.SNAPSHOT: '{"totalpods": 4, "evictionPods": true, "uid": "u"}'}, None, id="a truth"),
        pytest.param({m.SNAPSHOT: '{"totalpods": null, "evictionPods": 2, "uid": "u"}'}, None, id="null"),
    ],
)
def test_the_snapshot(annotations: Object | None, counts: tuple[int, int] | None) -> None:
    """NMO-11: the annotated counts are read as they were written; an invalid annotation counts as missing."""
    item = {"metadata": {"uid": "u", "annotations": annotations, "finalizers": [m.FINALIZER]}}

    assert snapshot(item) == (counts and {"totalpods": counts[0], "evictionPods": counts[1]})
    assert m.has_begun(item) is (counts is not None)


COUNTS = {"totalpods": 4, "evictionPods": 2}


def no_finalizer() -> Object:
    """Return a maintenance that has not begun but has a snapshot, as in a manifest saved from an earlier object."""
    item = maintenance()
    return {**item, "metadata": {**item["metadata"], "finalizers": []}}


@pytest.mark.parametrize(
    ("item", "counts"),
    [
        pytest.param(maintenance(), {"totalpods": 9, "evictionPods": 5}, id="snapshot"),
        pytest.param(maintenance({"phase": "Running", **COUNTS}), COUNTS, id="the status wins"),
        pytest.param(maintenance({"phase": "Running", **COUNTS}, counts=""), COUNTS, id="snapshot gone"),
        pytest.param(maintenance({"phase": "Failed"}, counts=""), None, id="never begun"),
        pytest.param(maintenance({"totalpods": "many", "evictionPods": 2}, counts=""), None, id="no number"),
        pytest.param(maintenance({"totalpods": 4}, counts=""), None, id="half"),
        pytest.param(maintenance(counts=""), None, id="new"),
        pytest.param(no_finalizer(), None, id="somebody's snapshot"),
    ],
)
def test_the_counts_outlive_the_snapshot(item: Object, counts: Object | None) -> None:
    """NMO-11: the counts never change, even if a user replaces the object's metadata."""
    assert m.counted(item) == counts


@pytest.mark.parametrize("odd", ["x", 1, ["x"], True, None], ids=str)
@pytest.mark.parametrize("field", ["spec", "status"])
def test_what_is_no_object_says_nothing(field: str, odd: object) -> None:
    """X-3: a spec or status that is not an object counts as empty, so that other objects are still listed.

    The CRD of another product may admit such values.
    """
    item = {**maintenance({"phase": "Running", "lastError": "x", **COUNTS}), field: odd}

    cut = m.trimmed(item)

    said = (m.node_name(item), m.phase(item), m.last_error(item), m.condition(item, "Drained"), m.blocked_pods(item))
    assert said == (("", "Running", "x", {}, []) if field == "spec" else ("node-1", "", "", {}, []))
    assert (m.node_name(cut), m.phase(cut)) == said[:2]
    assert m.has_node(item)
    assert m.counted(item) == (COUNTS if field == "spec" else snapshot(item))


def test_what_is_whole_is_not_begun_again() -> None:
    """X-2: the begin patch is empty if finalizer, owner and counts are set, and otherwise sets what is missing."""
    item = maintenance()
    assert m.begin_patch(item, node(), COUNTS) == {}

    for name in ("finalizers", "ownerReferences", "annotations"):
        without = {**item, "metadata": {**item["metadata"], name: None}}
        metadata = m.begin_patch(without, node(), COUNTS)["metadata"]
        assert m.has_begun({"metadata": {**item["metadata"], **metadata}})
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["node-uid"]


@pytest.mark.parametrize(
    ("deletion", "finalizers", "over"),
    [
        (None, [m.FINALIZER], False),
        (None, [], False),
        ("2026-01-02T03:04:05Z", [m.FINALIZER, "example.com/hold"], False),
        ("2026-01-02T03:04:05Z", [m.LEGACY_FINALIZERS[0]], False),
        ("2026-01-02T03:04:05Z", ["example.com/hold"], True),
    ],
    ids=["active", "new", "to be restored", "the old operator's", "kept by others"],
)
def test_what_is_deleted_and_released_is_over(deletion: str | None, finalizers: list[str], over: bool) -> None:
    """Rule 12: a maintenance that is deleted and released has no claim to its node."""
    item = {"metadata": {"deletionTimestamp": deletion, "finalizers": finalizers}}

    assert m.is_over(item) is over


def test_an_heir_is_kept_by_our_finalizer_beside_those_of_others() -> None:
    """X-7: a successor gets our finalizer in addition to others, for the resourceVersion that was read."""
    item = maintenance(counts="")
    item["metadata"]["finalizers"] = ["example.com/hold"]

    assert m.keep_patch(item) == {
        "metadata": {"resourceVersion": "7", "finalizers": ["example.com/hold", m.FINALIZER]},
    }


def test_begin_writes_all_at_once() -> None:
    """NMO-11, NMO-16, NMO-20: one patch sets finalizer, owner and counts, for the resourceVersion that was read."""
    item = maintenance(counts="")
    item["metadata"] |= {
        "finalizers": ["example.com/hold"],
        "ownerReferences": [{"kind": "Team", "uid": "t"}, {"kind": "Node", "name": "node-1", "uid": "node-uid"}],
    }

    metadata = m.begin_patch(item, node(), {"totalpods": 2, "evictionPods": 1})["metadata"]

    assert metadata["resourceVersion"] == "7"
    assert metadata["finalizers"] == ["example.com/hold", m.FINALIZER]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-uid"}
    assert metadata["ownerReferences"] == [{"kind": "Team", "uid": "t"}, owner]
    assert snapshot({"metadata": {**item["metadata"], **metadata}}) == {"totalpods": 2, "evictionPods": 1}


@pytest.mark.parametrize(
    ("owners", "same"),
    [
        (None, True),
        ([{"kind": "Node", "uid": "node-uid"}], True),
        ([{"kind": "Node", "uid": "another"}], False),
        ([{"kind": "Team", "uid": "t"}], True),
        ([{"kind": "Node", "uid": "another"}, {"kind": "Node", "uid": "node-uid"}], True),
    ],
    ids=["no owner", "this node", "another node", "no node", "both"],
)
def test_the_owner_reference_says_on_which_node_it_began(owners: list[Object] | None, same: bool) -> None:
    """NMO-20: the uid in the owner reference decides on which node the maintenance began, if there is one."""
    item = maintenance()
    item["metadata"]["ownerReferences"] = owners

    assert m.began_on(item, node()) is same


def test_release_takes_ours_and_the_old_operators() -> None:
    """NMO-16: the release patch removes our finalizer and the replaced operator's, and keeps all others."""
    item = maintenance()
    item["metadata"]["finalizers"] = ["a/b", m.FINALIZER, "foregroundDeleteNodeMaintenance"]

    assert m.release_patch(item)["metadata"] == {"resourceVersion": "7", "finalizers": ["a/b"]}


def test_a_trimmed_one_tells_whether_it_has_begun_and_is_over() -> None:
    """Keep only fields that do not grow with the node's pods, because PodSource stores each trimmed object."""
    item = maintenance({"phase": m.RUNNING, "pendingPods": ["a"] * 500})
    item["metadata"] |= {"deletionTimestamp": "2026-01-02T03:04:05Z", "managedFields": [{}]}

    kept = m.trimmed(item)

    names = {"name", "uid", "resourceVersion", "deletionTimestamp", "finalizers", "annotations"}
    metadata = {name: value for name, value in item["metadata"].items() if name in names}
    assert kept == {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": m.RUNNING}}
    assert "annotations" not in m.trimmed(maintenance(counts=""))["metadata"]
    assert m.trimmed({"metadata": {}, "spec": {"drain": {"force": False}}})["spec"]["drain"] == {"force": False}
    assert m.trimmed({"metadata": {}, "spec": None})["spec"] == {"nodeName": ""}


SPEC_BY = {"manager": "kubectl-create", "fieldsV1": {"f:spec": {}}}
STATUS_BY = {"manager": "nodemaintenance", "fieldsV1": {"f:status": {}}}


@pytest.mark.parametrize(
    ("metadata", "who"),
    [
        ({"annotations": {m.REQUESTER: "mary"}, "managedFields": [SPEC_BY]}, "mary"),
        ({"annotations": None, "managedFields": [STATUS_BY, SPEC_BY]}, "the program kubectl-create"),
        ({"managedFields": [STATUS_BY]}, ""),
        ({"managedFields": [{"fieldsV1": {"f:spec": {}}}]}, ""),
        ({}, ""),
    ],
    ids=["a user", "a program", "only the status's writer", "a program without a name", "nobody known"],
)
def test_who_asked_is_the_user_or_else_the_program(metadata: Object, who: str) -> None:
    assert m.requester({"metadata": metadata}) == who


@pytest.mark.parametrize("spec", [None, {}, {"nodeName": None}, {"nodeName": ""}], ids=str)
def test_no_node_is_an_empty_name(spec: Object | None) -> None:
    """NMO-2: an object without a node, which an old schema admitted, has the node name ""."""
    assert m.node_name({"metadata": {}, "spec": spec}) == ""


@pytest.mark.parametrize("api_version", GROUPS)
def test_the_group_selects_path_and_taint(api_version: str) -> None:
    """X-7, C2, C3: the API group determines the path and the drain taint."""
    item = {**maintenance(), "apiVersion": api_version}

    assert m.path(item) == f"/apis/{api_version}/nodemaintenances/nm"
    assert m.group(item).drain_taint == ("medik8s.io/drain" if "medik8s" in api_version else "kubevirt.io/drain")


def test_times_are_in_utc_with_seconds() -> None:
    """NMO-12: `lastUpdate` is RFC 3339 in UTC, whatever the time zone of the input."""
    east = timezone(timedelta(hours=5))

    assert timestamp(NOW.astimezone(east).replace(microsecond=7)) == "2026-01-02T03:04:05Z"


def test_times_are_in_utc_wherever_the_machine_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """NMO-12: `lastUpdate` is in UTC, whatever the local time zone."""
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("TZ", "IST-5:30")
        time.tzset()
        shown = timestamp(NOW)
    time.tzset()

    assert shown == "2026-01-02T03:04:05Z"


def test_a_trimmed_maintenance_says_the_same() -> None:
    """Return the same node, phase and path for a trimmed object, which has no lists of pods."""
    for item in (maintenance(), maintenance({"phase": "Running", "pendingPods": ["a"]}), maintenance(counts="")):
        less = {**m.trimmed(item), "apiVersion": item["apiVersion"]}
        for ask in (m.node_name, m.is_deleting, m.has_begun, m.phase, m.path):
            assert ask(less) == ask(item)
        assert "pendingPods" not in less["status"]


@pytest.mark.parametrize(
    "text",
    [
        "2026-01-02T03:04:05Z",
        "2026-01-02t03:04:05z",
        "2026-01-02T03:04:05.123456789Z",
        "2026-01-02T08:04:05+05:00",
        "2026-01-01T21:34:05.5-05:30",
    ],
)
def test_a_time_is_read_in_every_form_that_a_status_takes(text: str) -> None:
    """NMO-12: every RFC 3339 form is parsed, because the schema admits all of them and a backup may contain any."""
    assert moment(text) == moment_or_none(text) == NOW


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05", "0001-01-01T00:00:00+05:00"]
)
def test_what_is_no_time_is_none(text: str) -> None:
    """Return None for a text that is not a time; another program may have written it."""
    assert moment_or_none(text) is None


@pytest.mark.parametrize("value", [None, 7, {}, ["x"]])
def test_what_is_no_text_is_no_time(value: object) -> None:
    """Return None for a value that is not text."""
    assert moment_or_none(value) is None


def test_blocked_pods_that_nobody_can_read_are_left_out() -> None:
    """Omit malformed entries of `blockedPods`."""
    whole = {"namespace": "ns", "name": "a", "reason": "R"}

    assert m.blocked_pods({"status": {"blockedPods": [whole, "x", {"name": "b"}, {**whole, "reason": 7}]}}) == [whole]
    assert m.blocked_pods({"status": {"blockedPods": "x"}}) == m.blocked_pods({}) == []
