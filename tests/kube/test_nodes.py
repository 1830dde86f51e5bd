"""Tests of the JSON patches for cordon, labels and taints, on plain dicts and against a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from kube.client.api import JSON_PATCH
from kube.client.api_errors import Conflict, NotFound
from kube.client.sync_client import Cluster
from kube.nodes import (
    BEFORE,
    EXCLUDED,
    LABEL,
    NO_SCHEDULE,
    UNSCHEDULABLE,
    UNSET,
    cordon_patch,
    in_maintenance,
    is_closed,
    is_cordoned,
    is_tainted,
    missing_taints,
    natural,
    node_path,
    restore_patch,
    taint_patch,
    taints_to_log,
)
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.kube.samples import IN_MAINTENANCE, node
from tests.proofs import proves
from tests.workload import Workload

DRAIN = "medik8s.io/drain"
LABEL_PATH = f"/metadata/labels/{LABEL.replace('/', '~1')}"
OURS = ((DRAIN, "", NO_SCHEDULE), (UNSCHEDULABLE, "", NO_SCHEDULE))
THEIRS = ("example.com/theirs", "1", "NoExecute")


def keys(taints: list[Object]) -> list[str]:
    return [taint["key"] for taint in taints]


def test_nothing_is_sent_when_nothing_would_change() -> None:
    """X-2, NMO-3, NMO-4, NMO-14: each patch is empty if the node is in the desired state already."""
    assert cordon_patch(IN_MAINTENANCE, "nm-uid") == []
    assert cordon_patch(IN_MAINTENANCE) == []
    assert taint_patch(IN_MAINTENANCE, DRAIN, "nm-uid") == []
    assert restore_patch(node(THEIRS), [DRAIN]) == []
    assert restore_patch(IN_MAINTENANCE, [], heir="nm-uid") == []


@pytest.mark.parametrize(
    ("before", "missing"),
    [
        pytest.param(node(), [UNSCHEDULABLE, DRAIN], id="no taint"),
        pytest.param(node(*OURS), [], id="both"),
        pytest.param(node((DRAIN, "draining", NO_SCHEDULE)), [UNSCHEDULABLE], id="ours with a value"),
        pytest.param(node((DRAIN, "", "PreferNoSchedule")), [UNSCHEDULABLE, DRAIN], id="ours with another effect"),
        pytest.param(node(("kubevirt.io/drain", "", NO_SCHEDULE)), [UNSCHEDULABLE, DRAIN], id="another group's"),
    ],
)
def test_key_and_effect_decide_what_is_missing(before: Object, missing: list[str]) -> None:
    """NMO-4, C4: a taint with the same key and effect counts as present, whatever its value."""
    assert keys(missing_taints(before, DRAIN)) == missing
    assert all(taint["effect"] == NO_SCHEDULE and "value" not in taint for taint in missing_taints(before, DRAIN))


@proves("DRN-13", "NMO-17a")
@pytest.mark.parametrize(
    ("before", "named"),
    [
        pytest.param(node(), [UNSCHEDULABLE, DRAIN], id="no taint"),
        pytest.param(node((UNSCHEDULABLE, "", NO_SCHEDULE)), [UNSCHEDULABLE, DRAIN], id="the controller manager's"),
        pytest.param(node((DRAIN, "draining", NO_SCHEDULE)), [UNSCHEDULABLE], id="ours with a value"),
    ],
)
def test_the_log_names_the_taints_in_the_documents_order(before: Object, named: list[str]) -> None:
    """Log the same list whether or not the controller manager has already tainted the cordoned node."""
    logged = taints_to_log(before, DRAIN)

    assert keys(logged) == named
    assert all(list(taint) == ["key", "effect"] and taint["effect"] == NO_SCHEDULE for taint in logged)


def test_a_taint_is_there_by_key_and_effect() -> None:
    """NMO-4: a NoSchedule taint counts whatever its value, and a PreferNoSchedule taint does not count."""
    there = node(("medik8s.io/drain", "by-hand", NO_SCHEDULE))

    assert is_tainted(there, "medik8s.io/drain")
    assert not is_tainted(there, "kubevirt.io/drain")
    assert not is_tainted(node(("medik8s.io/drain", "", "PreferNoSchedule")), "medik8s.io/drain")
    assert not is_tainted(node(), "medik8s.io/drain")


def test_the_taints_of_others_keep_their_place() -> None:
    """NMO-4: the patch tests the taints that were read, and adds ours after all others."""
    before = node(THEIRS, (DRAIN, "value", NO_SCHEDULE), ("example.com/last", "", NO_SCHEDULE), holder="another")

    test_uid, test_label, test_taints, add = taint_patch(before, DRAIN, "nm-uid")

    assert test_label == {"op": "test", "path": LABEL_PATH, "value": "another"}
    assert test_uid == {"op": "test", "path": "/metadata/uid", "value": "node-uid"}
    assert test_taints == {"op": "test", "path": "/spec/taints", "value": before["spec"]["taints"]}
    assert add["value"] == [*before["spec"]["taints"], {"key": UNSCHEDULABLE, "effect": NO_SCHEDULE}]


def test_restoring_takes_ours_whatever_their_value() -> None:
    """NMO-14, KNM-4: our NoSchedule taints are removed whatever their value; all other taints stay in order."""
    kept = [THEIRS, (DRAIN, "", "PreferNoSchedule")]
    before = node(kept[0], (DRAIN, "draining", NO_SCHEDULE), kept[1], (UNSCHEDULABLE, "", NO_SCHEDULE), cordoned=True)

    *_, taints, uncordon = restore_patch(before, [DRAIN])

    assert taints["value"] == node(*kept)["spec"]["taints"]
    assert uncordon == {"op": "remove", "path": "/spec/unschedulable"}


def test_a_node_that_others_hold_stays_cordoned() -> None:
    """X-7: a node with a next maintenance loses only the drain taint, and its label names that maintenance."""
    *_, taints, label = restore_patch(IN_MAINTENANCE, [DRAIN], heir="heir-uid")

    assert keys(taints["value"]) == [UNSCHEDULABLE]
    assert label["value"] == "heir-uid"


@pytest.mark.parametrize(
    ("before", "operations"),
    [
        (node(), ["test", "test", "add", "add"]),
        (node(cordoned=True), ["test", "test", "add"]),
        (node(holder="another"), ["test", "test", "add", "add"]),
        (node(cordoned=True, holder="another"), ["test", "test", "add"]),
        (node(cordoned=True, holder="nm-uid"), []),
    ],
    ids=["neither", "cordoned", "labelled for another", "cordoned, too", "both"],
)
def test_the_cordon_labels_in_the_same_patch(before: Object, operations: list[str]) -> None:
    """Rule 10: one patch cordons and labels the node; for an unlabelled node, it tests that no labels were added."""
    patch = cordon_patch(before, "nm-uid")

    assert [operation["op"] for operation in patch] == operations


@pytest.mark.parametrize(
    ("holder", "label", "left"),
    [
        ("nm-uid", "another", [DRAIN, UNSCHEDULABLE, "example.com/theirs"]),
        ("nm-uid", "nm-uid", None),
        ("nm-uid", "", None),
        ("", "another", None),
    ],
    ids=["labelled for another", "for this one", "for none", "asked for by none"],
)
def test_the_cordon_takes_the_drain_taint_off_that_another_left(
    holder: str, label: str, left: list[str] | None
) -> None:
    """NMO-14: a cordon that replaces another maintenance's label also removes that maintenance's drain taint.

    The label is the only trace of a maintenance that did not restore the node.
    """
    before = node(("kubevirt.io/drain", "", NO_SCHEDULE), *OURS, THEIRS, cordoned=True, holder=label)

    patch = cordon_patch(before, holder, ["kubevirt.io/drain"])

    written = [keys(item["value"]) for item in patch if (item["op"], item["path"]) == ("add", "/spec/taints")]
    assert written == ([left] if left else [])


def test_a_cordon_that_no_maintenance_asked_for_sets_no_label() -> None:
    assert cordon_patch(node())[1:] == [{"op": "add", "path": "/spec/unschedulable", "value": True}]


def test_restoring_takes_the_label_of_an_uncordoned_node_too() -> None:
    """Rule 10: a node that was uncordoned by hand also loses the label by which event sources select it."""
    removed = [f"/metadata/labels/{name.replace('/', '~1')}" for name in (LABEL, BEFORE, EXCLUDED)]

    assert restore_patch(node(holder="nm-uid"), [DRAIN])[2:] == [{"op": "remove", "path": path} for path in removed]


@pytest.mark.parametrize(
    ("labels", "excluded"),
    [
        ({BEFORE: UNSET, EXCLUDED: "true"}, [("remove", None)]),
        ({BEFORE: "true", EXCLUDED: "true"}, []),
        ({BEFORE: "false", EXCLUDED: "true"}, [("add", "false")]),
        ({BEFORE: "true"}, [("add", "true")]),
        ({BEFORE: UNSET}, []),
        ({EXCLUDED: "true"}, []),
    ],
    ids=["ours", "theirs", "another value", "theirs, taken off", "ours, taken off", "not remembered"],
)
def test_the_label_of_the_remediators_is_as_it_was(labels: dict[str, str], excluded: list[tuple[str, str]]) -> None:
    """NMO-27b: the exclusion label gets its remembered value, is removed if that is `unset`, and otherwise stays."""
    labelled = node()
    labelled["metadata"]["labels"] = {LABEL: "nm-uid", **labels}
    path = f"/metadata/labels/{EXCLUDED.replace('/', '~1')}"

    patch = restore_patch(labelled, [DRAIN])

    assert [(item["op"], item.get("value")) for item in patch if item["path"] == path] == excluded


def test_a_cordon_without_taints_is_taken_off() -> None:
    """NMO-14: a node that is cordoned but not tainted is uncordoned by a guarded patch."""
    assert [operation["op"] for operation in restore_patch(node(cordoned=True), [DRAIN])] == ["test", "test", "remove"]


def test_taints_bring_the_label_where_it_is_missing() -> None:
    """Rule 12: a patch that taints an unlabelled node also labels it, so that a late write is found and undone."""
    label, taints = (operation for operation in taint_patch(node(), DRAIN, "nm-uid") if operation["op"] == "add")

    labels = {LABEL: "nm-uid", BEFORE: UNSET, EXCLUDED: "true"}
    assert label == {"op": "add", "path": "/metadata/labels", "value": labels}
    assert keys(taints["value"]) == [UNSCHEDULABLE, DRAIN]


@pytest.mark.parametrize(
    "before",
    [
        node(*OURS, cordoned=True),
        {"metadata": {"name": "node-1", "uid": "u", "labels": {}}, "spec": node(*OURS, cordoned=True)["spec"]},
        IN_MAINTENANCE,
    ],
    ids=["no labels", "an empty object", "labelled"],
)
def test_what_gives_back_and_what_closes_holds_for_the_label_that_was_read(before: Object) -> None:
    """Rule 12: each patch tests the label that was read, so that it is rejected after another cordon or restore."""
    labels = before["metadata"].get("labels")
    path, value = (LABEL_PATH, labels[LABEL]) if labels else ("/metadata/labels", labels)

    untainted = {**before, "spec": {}}

    for patch in (restore_patch(before, [DRAIN]), cordon_patch(before, "x"), taint_patch(untainted, DRAIN, "x")):
        assert patch[1] == {"op": "test", "path": path, "value": value}


@pytest.mark.parametrize(
    ("before", "answer"),
    [
        (node(), (False, False)),
        (node(*OURS), (False, False)),
        (node(cordoned=True, holder="nm-uid"), (False, False)),
        (node(*OURS, holder="nm-uid"), (False, False)),
        (node(*OURS, cordoned=True), (True, False)),
        (IN_MAINTENANCE, (True, True)),
        (node(*OURS, cordoned=True, holder="another"), (True, True)),
    ],
    ids=["none", "tainted", "cordoned", "uncordoned", "not labelled", "all", "labelled for another"],
)
def test_in_maintenance_is_cordoned_tainted_and_labelled(before: Object, answer: tuple[bool, bool]) -> None:
    """NMO-5, rule 10: a cordoned and tainted node takes no new pods; the label also marks it as under maintenance."""
    assert (is_closed(before, DRAIN), in_maintenance(before, DRAIN)) == answer


def patched(admin: Cluster, path: str, decide: Callable[[Object], list[Object]]) -> Object:
    """Patch the node, and compute the patch again if another writer, such as the controller manager, interferes."""
    while True:
        with contextlib.suppress(Conflict):
            return admin.patch(path, decide(admin.get(path)), JSON_PATCH)


def test_the_patches_work_on_a_real_server(installed: LocalCluster, admin: Cluster) -> None:
    """NMO-3, NMO-4, NMO-14: cordon, taint and restore leave the node as before, and a stale patch is a Conflict."""
    path = node_path(Workload(installed, admin).node())
    theirs = [{"key": "example.com/theirs", "value": "1", "effect": "PreferNoSchedule"}]
    before = admin.patch(path, {"spec": {"taints": theirs}})

    cordoned = admin.patch(path, cordon_patch(before, "nm-uid"), JSON_PATCH)
    tainted = patched(admin, path, lambda fresh: taint_patch(fresh, DRAIN, "nm-uid"))
    with pytest.raises(Conflict):
        admin.patch(path, taint_patch(before, DRAIN, "nm-uid"), JSON_PATCH)
    with pytest.raises(Conflict):
        admin.patch(path, cordon_patch({**before, "metadata": {**before["metadata"], "uid": "other"}}), JSON_PATCH)
    restored = patched(admin, path, lambda fresh: restore_patch(fresh, [DRAIN]))
    admin.run(admin.api.request("DELETE", path))

    assert tainted["spec"]["taints"][0] == theirs[0]
    assert is_cordoned(cordoned)
    assert in_maintenance(tainted, DRAIN)
    labels = restored["metadata"]["labels"]
    assert LABEL not in labels
    assert before["metadata"]["labels"].items() <= labels.items()  # the cluster may have added its own labels meanwhile
    assert not is_cordoned(restored)
    assert DRAIN not in keys(restored["spec"]["taints"])
    assert restored["spec"]["taints"][0] == theirs[0]


def test_a_node_without_any_label_is_labelled_on_a_real_server(installed: LocalCluster, admin: Cluster) -> None:
    """Rule 10: the patch creates missing labels, and is a Conflict if another client created some since the read."""
    path = node_path("without-labels")
    bare = admin.create("/api/v1/nodes", {"metadata": {"name": "without-labels"}})
    labelled = admin.patch(path, cordon_patch(bare, "nm-uid"), JSON_PATCH)
    with pytest.raises(Conflict):
        admin.patch(path, cordon_patch(bare, "nm-uid"), JSON_PATCH)
    restored = patched(admin, path, lambda fresh: restore_patch(fresh, [DRAIN]))
    admin.run(admin.api.request("DELETE", path))

    assert "labels" not in bare["metadata"]
    assert labelled["metadata"]["labels"] == {LABEL: "nm-uid", BEFORE: UNSET, EXCLUDED: "true"}
    assert not restored["metadata"].get("labels")


@proves("NMO-27b")
@pytest.mark.parametrize("before", [None, "true", "false", ""], ids=["absent", "true", "false", "empty"])
@pytest.mark.parametrize("meanwhile", [None, LABEL, EXCLUDED], ids=["untouched", "ours taken off", "theirs taken off"])
def test_a_node_is_excluded_from_remediation_as_long_as_it_is_maintained(
    installed: LocalCluster, admin: Cluster, before: str | None, meanwhile: str | None
) -> None:
    """NMO-27b: the cordon sets the exclusion label, and the restore returns it to its earlier value."""
    path = node_path(Workload(installed, admin).node())
    admin.patch(path, {"metadata": {"labels": {EXCLUDED: before}}})

    closed = patched(admin, path, lambda fresh: cordon_patch(fresh, "nm-uid"))
    if meanwhile:
        admin.patch(path, {"metadata": {"labels": {meanwhile: None}}})
        patched(admin, path, lambda fresh: cordon_patch(fresh, "another-uid"))
    restored = patched(admin, path, lambda fresh: restore_patch(fresh, [DRAIN]))
    admin.run(admin.api.request("DELETE", path))

    assert closed["metadata"]["labels"][EXCLUDED] == "true"
    labels = restored["metadata"]["labels"]
    assert labels.get(EXCLUDED) == before
    assert not {LABEL, BEFORE} & labels.keys()


@pytest.mark.parametrize("name", ["x/status", "x?y", "x#y", "..", ".", "x%2Fy", "a b"])
def test_an_odd_name_leads_to_no_other_resource(admin: Cluster, name: str) -> None:
    """NMO-19: a path built from free text is the path of one node, which does not exist."""

    with pytest.raises(NotFound):
        admin.get(node_path(name))


def test_a_number_in_a_name_may_have_thousands_of_digits() -> None:
    """Sort numbers that have too many digits for Python's `int`, and ignore leading zeros."""
    assert sorted(["node-" + "9" * 5000, "node-010", "node-9", "node-" + "8" * 5000], key=natural) == [
        *("node-9", "node-010", "node-" + "8" * 5000, "node-" + "9" * 5000),
    ]


def test_names_are_in_natural_order() -> None:
    assert sorted(["node-10", "node-2", "a", "node-1.b", "7"], key=natural) == [
        *("7", "a", "node-1.b", "node-2", "node-10"),
    ]
