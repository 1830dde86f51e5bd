"""Tests for NodeMaintenance objects on plain dicts: their fields, and the patches of `begin` and `restore`."""

from __future__ import annotations

import time
from datetime import datetime, timedelta, timezone

import pytest

from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import parse_annotated_pod_counts
from kube.paths import Object
from kube.times import format_time, parse_time, parse_time_or_none
from tests.kube.samples import make_maintenance, make_node

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)


@pytest.mark.parametrize(
    ("annotations", "counts"),
    [
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": 4, "evictionPods": 2, "uid": "u"}'}, (4, 2), id="valid"
        ),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": 4, "evictionPods": 2, "uid": "v"}'}, None, id="other uid"
        ),
        pytest.param({m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": 4, "evictionPods": 2}'}, None, id="no uid"),
        pytest.param({}, None, id="none"),
        pytest.param(None, None, id="no annotations"),
        pytest.param({m.INITIAL_COUNTS_ANNOTATION: ""}, None, id="empty"),
        pytest.param({m.INITIAL_COUNTS_ANNOTATION: "nonsense"}, None, id="not JSON"),
        pytest.param({m.INITIAL_COUNTS_ANNOTATION: "[]"}, None, id="a list"),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": 1e999, "evictionPods": 1, "uid": "u"}'}, None, id="infinite"
        ),
        pytest.param({m.INITIAL_COUNTS_ANNOTATION: "[" * 100_000}, None, id="nested too deeply"),
        pytest.param({m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": 4, "uid": "u"}'}, None, id="incomplete"),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": "x", "evictionPods": 2, "uid": "u"}'}, None, id="not a number"
        ),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": -3, "evictionPods": 2, "uid": "u"}'}, None, id="negative"
        ),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: f'{{"totalpods": {2**31}, "evictionPods": 2, "uid": "u"}}'},
            None,
            id="too many",
        ),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": 4, "evictionPods": true, "uid": "u"}'}, None, id="a boolean"
        ),
        pytest.param(
            {m.INITIAL_COUNTS_ANNOTATION: '{"totalpods": null, "evictionPods": 2, "uid": "u"}'}, None, id="null"
        ),
    ],
)
def test_annotated_pod_counts_are_parsed(annotations: Object | None, counts: tuple[int, int] | None) -> None:
    """NMO-11: pod counts are parsed from the annotation; an invalid annotation counts as missing."""
    maintenance = {"metadata": {"uid": "u", "annotations": annotations, "finalizers": [m.FINALIZER]}}

    assert parse_annotated_pod_counts(maintenance) == (counts and {"totalpods": counts[0], "evictionPods": counts[1]})
    assert m.has_begun(maintenance) is (counts is not None)


POD_COUNTS = {"totalpods": 4, "evictionPods": 2}


def make_maintenance_without_finalizer() -> Object:
    """Return a maintenance with pod counts but without finalizer, as in a manifest saved from an earlier object."""
    maintenance = make_maintenance()
    return {**maintenance, "metadata": {**maintenance["metadata"], "finalizers": []}}


@pytest.mark.parametrize(
    ("maintenance", "counts"),
    [
        pytest.param(make_maintenance(), {"totalpods": 9, "evictionPods": 5}, id="snapshot"),
        pytest.param(
            make_maintenance({"phase": "Running", **POD_COUNTS}), POD_COUNTS, id="the status takes precedence"
        ),
        pytest.param(
            make_maintenance({"phase": "Running", **POD_COUNTS}, counts=""), POD_COUNTS, id="snapshot removed"
        ),
        pytest.param(make_maintenance({"phase": "Failed"}, counts=""), None, id="never begun"),
        pytest.param(make_maintenance({"totalpods": "many", "evictionPods": 2}, counts=""), None, id="not a number"),
        pytest.param(make_maintenance({"totalpods": 4}, counts=""), None, id="incomplete"),
        pytest.param(make_maintenance(counts=""), None, id="new"),
        pytest.param(make_maintenance_without_finalizer(), None, id="snapshot of another maintenance"),
    ],
)
def test_pod_counts_come_from_status_or_annotation(maintenance: Object, counts: Object | None) -> None:
    """NMO-11: a maintenance's pod counts never change, even if a user replaces the object's metadata."""
    assert m.find_initial_pod_counts(maintenance) == counts


@pytest.mark.parametrize("invalid_value", ["x", 1, ["x"], True, None], ids=str)
@pytest.mark.parametrize("field", ["spec", "status"])
def test_spec_or_status_that_is_not_object_counts_as_empty(field: str, invalid_value: object) -> None:
    """X-3: a spec or status that is not an object counts as empty, so that other objects are still listed.

    The CRD that another product installs may admit such values.
    """
    maintenance = {**make_maintenance({"phase": "Running", "lastError": "x", **POD_COUNTS}), field: invalid_value}

    trimmed = m.trim_maintenance(maintenance)

    values = (
        m.get_node_name(maintenance),
        m.get_phase(maintenance),
        m.get_last_error(maintenance),
        m.get_condition(maintenance, "Drained"),
        m.get_blocked_pods(maintenance),
    )
    assert values == (("", "Running", "x", {}, []) if field == "spec" else ("node-1", "", "", {}, []))
    assert (m.get_node_name(trimmed), m.get_phase(trimmed)) == values[:2]
    assert m.owns_node(maintenance)
    assert m.find_initial_pod_counts(maintenance) == (
        POD_COUNTS if field == "spec" else parse_annotated_pod_counts(maintenance)
    )


def test_begin_patch_sets_only_missing_fields() -> None:
    """X-2: the patch of `begin` sets finalizer, owner reference and pod counts, each only if it is missing."""
    maintenance = make_maintenance()
    assert m.build_begin_patch(maintenance, make_node(), POD_COUNTS) == {}

    for name in ("finalizers", "ownerReferences", "annotations"):
        incomplete = {**maintenance, "metadata": {**maintenance["metadata"], name: None}}
        metadata = m.build_begin_patch(incomplete, make_node(), POD_COUNTS)["metadata"]
        assert m.has_begun({"metadata": {**maintenance["metadata"], **metadata}})
        assert [owner["uid"] for owner in metadata["ownerReferences"]] == ["node-uid"]


@pytest.mark.parametrize(
    ("deletion_timestamp", "finalizers", "is_released"),
    [
        (None, [m.FINALIZER], False),
        (None, [], False),
        ("2026-01-02T03:04:05Z", [m.FINALIZER, "example.com/hold"], False),
        ("2026-01-02T03:04:05Z", [m.LEGACY_FINALIZERS[0]], False),
        ("2026-01-02T03:04:05Z", ["example.com/hold"], True),
    ],
    ids=["active", "new", "deleted", "the replaced operator's finalizer", "foreign finalizer"],
)
def test_deleted_maintenance_without_product_finalizer_is_released(
    deletion_timestamp: str | None, finalizers: list[str], is_released: bool
) -> None:
    """Design rule 12: a deleted maintenance without the product's finalizer no longer holds its node."""
    maintenance = {"metadata": {"deletionTimestamp": deletion_timestamp, "finalizers": finalizers}}

    assert m.is_released(maintenance) is is_released


def test_finalizer_patch_keeps_other_finalizers() -> None:
    """X-7: the patch adds the product's finalizer, keeps all others, and requires the resourceVersion that was read."""
    maintenance = make_maintenance(counts="")
    maintenance["metadata"]["finalizers"] = ["example.com/hold"]

    assert m.build_finalizer_patch(maintenance) == {
        "metadata": {"resourceVersion": "7", "finalizers": ["example.com/hold", m.FINALIZER]},
    }


def test_begin_patch_sets_finalizer_owner_reference_and_pod_counts() -> None:
    """NMO-11, NMO-16, NMO-20: one patch with resourceVersion sets finalizer, owner reference and pod counts."""
    maintenance = make_maintenance(counts="")
    maintenance["metadata"] |= {
        "finalizers": ["example.com/hold"],
        "ownerReferences": [{"kind": "Team", "uid": "t"}, {"kind": "Node", "name": "node-1", "uid": "node-uid"}],
    }

    metadata = m.build_begin_patch(maintenance, make_node(), {"totalpods": 2, "evictionPods": 1})["metadata"]

    assert metadata["resourceVersion"] == "7"
    assert metadata["finalizers"] == ["example.com/hold", m.FINALIZER]
    owner = {"apiVersion": "v1", "kind": "Node", "name": "node-1", "uid": "node-uid"}
    assert metadata["ownerReferences"] == [{"kind": "Team", "uid": "t"}, owner]
    assert parse_annotated_pod_counts({"metadata": {**maintenance["metadata"], **metadata}}) == {
        "totalpods": 2,
        "evictionPods": 1,
    }


@pytest.mark.parametrize(
    ("owners", "is_same_node"),
    [
        (None, True),
        ([{"kind": "Node", "uid": "node-uid"}], True),
        ([{"kind": "Node", "uid": "another"}], False),
        ([{"kind": "Team", "uid": "t"}], True),
        ([{"kind": "Node", "uid": "another"}, {"kind": "Node", "uid": "node-uid"}], True),
    ],
    ids=["no owner", "this node", "another node", "no node", "both"],
)
def test_owner_reference_identifies_node_of_maintenance(owners: list[Object] | None, is_same_node: bool) -> None:
    """NMO-20: the uid in the owner reference identifies the node on which the maintenance began."""
    maintenance = make_maintenance()
    maintenance["metadata"]["ownerReferences"] = owners

    assert m.has_begun_on(maintenance, make_node()) is is_same_node


def test_release_patch_removes_own_and_legacy_finalizers() -> None:
    """NMO-16: the release patch removes only the finalizers of the product and of the operator that it replaces."""
    maintenance = make_maintenance()
    maintenance["metadata"]["finalizers"] = ["a/b", m.FINALIZER, "foregroundDeleteNodeMaintenance"]

    assert m.build_release_patch(maintenance)["metadata"] == {"resourceVersion": "7", "finalizers": ["a/b"]}


def test_trimmed_maintenance_has_no_large_fields() -> None:
    """Check that a trimmed maintenance has no field that grows with the number of pods, since PodSource stores it."""
    maintenance = make_maintenance({"phase": m.RUNNING, "pendingPods": ["a"] * 500})
    maintenance["metadata"] |= {"deletionTimestamp": "2026-01-02T03:04:05Z", "managedFields": [{}]}

    trimmed = m.trim_maintenance(maintenance)

    names = {"name", "uid", "resourceVersion", "deletionTimestamp", "finalizers", "annotations"}
    metadata = {name: value for name, value in maintenance["metadata"].items() if name in names}
    assert trimmed == {"metadata": metadata, "spec": {"nodeName": "node-1"}, "status": {"phase": m.RUNNING}}
    assert "annotations" not in m.trim_maintenance(make_maintenance(counts=""))["metadata"]
    assert m.trim_maintenance({"metadata": {}, "spec": {"drain": {"force": False}}})["spec"]["drain"] == {
        "force": False
    }
    assert m.trim_maintenance({"metadata": {}, "spec": None})["spec"] == {"nodeName": ""}


SPEC_MANAGER = {"manager": "kubectl-create", "fieldsV1": {"f:spec": {}}}
STATUS_MANAGER = {"manager": "nodemaintenance", "fieldsV1": {"f:status": {}}}


@pytest.mark.parametrize(
    ("metadata", "requester"),
    [
        ({"annotations": {m.REQUESTER_ANNOTATION: "mary"}, "managedFields": [SPEC_MANAGER]}, "mary"),
        ({"annotations": None, "managedFields": [STATUS_MANAGER, SPEC_MANAGER]}, "the program kubectl-create"),
        ({"managedFields": [STATUS_MANAGER]}, ""),
        ({"managedFields": [{"fieldsV1": {"f:spec": {}}}]}, ""),
        ({}, ""),
    ],
    ids=["a user", "a program", "only the writer of the status", "a program without a name", "no requester"],
)
def test_requester_is_annotated_user_or_field_manager(metadata: Object, requester: str) -> None:
    assert m.get_requester({"metadata": metadata}) == requester


def test_ender_is_unknown_before_deletion() -> None:
    metadata = {"annotations": {m.ENDER_ANNOTATION: "mary"}}

    assert m.get_ending_user({"metadata": metadata}) == ""
    assert m.get_ending_user({"metadata": {**metadata, "deletionTimestamp": "2026-01-01T00:00:00Z"}}) == "mary"
    assert m.get_ending_user({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}}) == ""


@pytest.mark.parametrize("spec", [None, {}, {"nodeName": None}, {"nodeName": ""}], ids=str)
def test_maintenance_without_node_has_empty_node_name(spec: Object | None) -> None:
    """NMO-2: a maintenance without a node, which an old schema admitted, has the node name ""."""
    assert m.get_node_name({"metadata": {}, "spec": spec}) == ""


@pytest.mark.parametrize("api_version", GROUPS)
def test_api_group_determines_path_and_drain_taint(api_version: str) -> None:
    """X-7, C2, C3: a maintenance's API group determines its path and its drain taint."""
    maintenance = {**make_maintenance(), "apiVersion": api_version}

    assert m.build_path(maintenance) == f"/apis/{api_version}/nodemaintenances/nm"
    assert m.get_group(maintenance).drain_taint == (
        "medik8s.io/drain" if "medik8s" in api_version else "kubevirt.io/drain"
    )


def test_times_are_formatted_in_utc_with_seconds() -> None:
    """NMO-12: `lastUpdate` is RFC 3339 in UTC, whatever the time zone of the input."""
    eastern_zone = timezone(timedelta(hours=5))

    assert format_time(NOW.astimezone(eastern_zone).replace(microsecond=7)) == "2026-01-02T03:04:05Z"


def test_times_are_formatted_in_utc_in_any_local_time_zone(monkeypatch: pytest.MonkeyPatch) -> None:
    """NMO-12: `lastUpdate` is in UTC, whatever the local time zone."""
    with monkeypatch.context() as patched:
        patched.setenv("TZ", "IST-5:30")
        time.tzset()
        formatted = format_time(NOW)
    time.tzset()

    assert formatted == "2026-01-02T03:04:05Z"


def test_trimmed_maintenance_has_same_state() -> None:
    """Check that a trimmed maintenance, which has no lists of pods, has the same node, phase and path."""
    for maintenance in (
        make_maintenance(),
        make_maintenance({"phase": "Running", "pendingPods": ["a"]}),
        make_maintenance(counts=""),
    ):
        trimmed = {**m.trim_maintenance(maintenance), "apiVersion": maintenance["apiVersion"]}
        for read_value in (m.get_node_name, m.is_deleting, m.has_begun, m.get_phase, m.build_path):
            assert read_value(trimmed) == read_value(maintenance)
        assert "pendingPods" not in trimmed["status"]


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
def test_time_in_every_rfc_3339_form_is_parsed(text: str) -> None:
    """NMO-12: every RFC 3339 form is parsed, because the schema admits all of them and a backup may contain any."""
    assert parse_time(text) == parse_time_or_none(text) == NOW


@pytest.mark.parametrize(
    "text", ["", "yesterday", "2026-13-02T03:04:05Z", "2026-01-02T03:04:05", "0001-01-01T00:00:00+05:00"]
)
def test_invalid_time_is_parsed_as_none(text: str) -> None:
    """Check that a text that is not a time, which another client may have written, is parsed as None."""
    assert parse_time_or_none(text) is None


@pytest.mark.parametrize("value", [None, 7, {}, ["x"]])
def test_non_string_time_is_parsed_as_none(value: object) -> None:
    """Check that a time that is not a string is parsed as None."""
    assert parse_time_or_none(value) is None


def test_malformed_blocked_pods_are_omitted() -> None:
    """Check that malformed entries of `status.blockedPods` are omitted."""
    valid_entry = {"namespace": "ns", "name": "a", "reason": "R"}

    assert m.get_blocked_pods(
        {"status": {"blockedPods": [valid_entry, "x", {"name": "b"}, {**valid_entry, "reason": 7}]}}
    ) == [valid_entry]
    assert m.get_blocked_pods({"status": {"blockedPods": "x"}}) == m.get_blocked_pods({}) == []
