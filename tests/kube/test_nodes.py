"""Tests for the JSON patches that cordon, label, taint and restore a node, on plain dicts and a real API server."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

import pytest

from kube.client.api import JSON_PATCH
from kube.client.api_errors import Conflict, NotFound
from kube.client.sync_client import SyncClient
from kube.nodes import (
    EXCLUDE_LABEL,
    EXCLUDED_BEFORE_LABEL,
    MAINTENANCE_LABEL,
    NO_SCHEDULE,
    UNSCHEDULABLE_TAINT,
    UNSET_VALUE,
    build_cordon_patch,
    build_natural_sort_key,
    build_node_path,
    build_restore_patch,
    build_taint_patch,
    find_missing_taints,
    is_cordoned,
    is_cordoned_and_tainted,
    is_in_maintenance,
    is_tainted,
    select_taints_to_log,
)
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.kube.samples import NODE_IN_MAINTENANCE, make_node
from tests.proofs import proves
from tests.workload import Workload

DRAIN_TAINT_KEY = "medik8s.io/drain"
LABEL_PATH = f"/metadata/labels/{MAINTENANCE_LABEL.replace('/', '~1')}"
MAINTENANCE_TAINTS = ((DRAIN_TAINT_KEY, "", NO_SCHEDULE), (UNSCHEDULABLE_TAINT, "", NO_SCHEDULE))
FOREIGN_TAINT = ("example.com/theirs", "1", "NoExecute")


def get_taint_keys(taints: list[Object]) -> list[str]:
    return [taint["key"] for taint in taints]


def test_node_in_desired_state_gets_no_patch() -> None:
    """X-2, NMO-3, NMO-4, NMO-14: each node patch is empty if the node is already in the desired state."""
    assert build_cordon_patch(NODE_IN_MAINTENANCE, "nm-uid") == []
    assert build_cordon_patch(NODE_IN_MAINTENANCE) == []
    assert build_taint_patch(NODE_IN_MAINTENANCE, DRAIN_TAINT_KEY, "nm-uid") == []
    assert build_restore_patch(make_node(FOREIGN_TAINT), [DRAIN_TAINT_KEY]) == []
    assert build_restore_patch(NODE_IN_MAINTENANCE, [], next_maintenance_uid="nm-uid") == []


@pytest.mark.parametrize(
    ("node", "missing"),
    [
        pytest.param(make_node(), [UNSCHEDULABLE_TAINT, DRAIN_TAINT_KEY], id="no taint"),
        pytest.param(make_node(*MAINTENANCE_TAINTS), [], id="both"),
        pytest.param(
            make_node((DRAIN_TAINT_KEY, "draining", NO_SCHEDULE)), [UNSCHEDULABLE_TAINT], id="drain taint with a value"
        ),
        pytest.param(
            make_node((DRAIN_TAINT_KEY, "", "PreferNoSchedule")),
            [UNSCHEDULABLE_TAINT, DRAIN_TAINT_KEY],
            id="drain taint with another effect",
        ),
        pytest.param(
            make_node(("kubevirt.io/drain", "", NO_SCHEDULE)),
            [UNSCHEDULABLE_TAINT, DRAIN_TAINT_KEY],
            id="another group's",
        ),
    ],
)
def test_missing_taints_are_found_by_key_and_effect(node: Object, missing: list[str]) -> None:
    """NMO-4, C4: a taint with the same key and effect counts as present, whatever its value."""
    assert get_taint_keys(find_missing_taints(node, DRAIN_TAINT_KEY)) == missing
    assert all(
        taint["effect"] == NO_SCHEDULE and "value" not in taint for taint in find_missing_taints(node, DRAIN_TAINT_KEY)
    )


@proves("DRN-13", "NMO-17a")
@pytest.mark.parametrize(
    ("node", "expected_keys"),
    [
        pytest.param(make_node(), [UNSCHEDULABLE_TAINT, DRAIN_TAINT_KEY], id="no taint"),
        pytest.param(
            make_node((UNSCHEDULABLE_TAINT, "", NO_SCHEDULE)),
            [UNSCHEDULABLE_TAINT, DRAIN_TAINT_KEY],
            id="the controller manager's taint",
        ),
        pytest.param(
            make_node((DRAIN_TAINT_KEY, "draining", NO_SCHEDULE)), [UNSCHEDULABLE_TAINT], id="drain taint with a value"
        ),
    ],
)
def test_logged_taints_are_in_documented_order(node: Object, expected_keys: list[str]) -> None:
    """Check that the logged taints are the same whether or not the controller manager has tainted the cordoned node."""
    logged = select_taints_to_log(node, DRAIN_TAINT_KEY)

    assert get_taint_keys(logged) == expected_keys
    assert all(list(taint) == ["key", "effect"] and taint["effect"] == NO_SCHEDULE for taint in logged)


def test_is_tainted_compares_key_and_effect() -> None:
    """NMO-4: a NoSchedule taint counts whatever its value, and a PreferNoSchedule taint does not count."""
    node = make_node(("medik8s.io/drain", "by-hand", NO_SCHEDULE))

    assert is_tainted(node, "medik8s.io/drain")
    assert not is_tainted(node, "kubevirt.io/drain")
    assert not is_tainted(make_node(("medik8s.io/drain", "", "PreferNoSchedule")), "medik8s.io/drain")
    assert not is_tainted(make_node(), "medik8s.io/drain")


def test_taint_patch_keeps_other_taints_in_order() -> None:
    """NMO-4: the patch tests the taints that were read, and adds the product's taints after all others."""
    node = make_node(
        FOREIGN_TAINT,
        (DRAIN_TAINT_KEY, "value", NO_SCHEDULE),
        ("example.com/last", "", NO_SCHEDULE),
        maintenance_uid="another",
    )

    test_uid, test_label, test_taints, add = build_taint_patch(node, DRAIN_TAINT_KEY, "nm-uid")

    assert test_label == {"op": "test", "path": LABEL_PATH, "value": "another"}
    assert test_uid == {"op": "test", "path": "/metadata/uid", "value": "node-uid"}
    assert test_taints == {"op": "test", "path": "/spec/taints", "value": node["spec"]["taints"]}
    assert add["value"] == [*node["spec"]["taints"], {"key": UNSCHEDULABLE_TAINT, "effect": NO_SCHEDULE}]


def test_restore_patch_removes_drain_taints_with_any_value() -> None:
    """NMO-14, KNM-4: the drain taints are removed whatever their value; all other taints stay in order."""
    foreign_taints = [FOREIGN_TAINT, (DRAIN_TAINT_KEY, "", "PreferNoSchedule")]
    node = make_node(
        foreign_taints[0],
        (DRAIN_TAINT_KEY, "draining", NO_SCHEDULE),
        foreign_taints[1],
        (UNSCHEDULABLE_TAINT, "", NO_SCHEDULE),
        cordoned=True,
    )

    *_, taints, uncordon = build_restore_patch(node, [DRAIN_TAINT_KEY])

    assert taints["value"] == make_node(*foreign_taints)["spec"]["taints"]
    assert uncordon == {"op": "remove", "path": "/spec/unschedulable"}


def test_node_with_successor_maintenance_stays_cordoned() -> None:
    """X-7: a node whose maintenance has a successor loses only the drain taint, and its label names the successor."""
    *_, taints, label = build_restore_patch(
        NODE_IN_MAINTENANCE, [DRAIN_TAINT_KEY], next_maintenance_uid="successor-uid"
    )

    assert get_taint_keys(taints["value"]) == [UNSCHEDULABLE_TAINT]
    assert label["value"] == "successor-uid"


@pytest.mark.parametrize(
    ("node", "operations"),
    [
        (make_node(), ["test", "test", "add", "add"]),
        (make_node(cordoned=True), ["test", "test", "add"]),
        (make_node(maintenance_uid="another"), ["test", "test", "add", "add"]),
        (make_node(cordoned=True, maintenance_uid="another"), ["test", "test", "add"]),
        (make_node(cordoned=True, maintenance_uid="nm-uid"), []),
    ],
    ids=["neither", "cordoned", "label of another maintenance", "cordoned, label of another maintenance", "both"],
)
def test_cordon_patch_also_sets_maintenance_label(node: Object, operations: list[str]) -> None:
    """Design rule 10: one patch cordons and labels the node, and tests that the node's label is unchanged."""
    patch = build_cordon_patch(node, "nm-uid")

    assert [operation["op"] for operation in patch] == operations


@pytest.mark.parametrize(
    ("maintenance_uid", "label", "expected_taint_keys"),
    [
        ("nm-uid", "another", [DRAIN_TAINT_KEY, UNSCHEDULABLE_TAINT, "example.com/theirs"]),
        ("nm-uid", "nm-uid", None),
        ("nm-uid", "", None),
        ("", "another", None),
    ],
    ids=["label of another maintenance", "label of this maintenance", "no label", "not requested"],
)
def test_cordon_patch_removes_the_drain_taint_of_another_maintenance(
    maintenance_uid: str, label: str, expected_taint_keys: list[str] | None
) -> None:
    """NMO-14: a cordon that replaces another maintenance's label also removes that maintenance's drain taint.

    The label is all that is left of a maintenance that did not restore the node.
    """
    node = make_node(
        ("kubevirt.io/drain", "", NO_SCHEDULE), *MAINTENANCE_TAINTS, FOREIGN_TAINT, cordoned=True, maintenance_uid=label
    )

    patch = build_cordon_patch(node, maintenance_uid, ["kubevirt.io/drain"])

    written_taint_keys = [
        get_taint_keys(operation["value"])
        for operation in patch
        if (operation["op"], operation["path"]) == ("add", "/spec/taints")
    ]
    assert written_taint_keys == ([expected_taint_keys] if expected_taint_keys else [])


def test_cordon_patch_without_maintenance_sets_no_label() -> None:
    assert build_cordon_patch(make_node())[1:] == [{"op": "add", "path": "/spec/unschedulable", "value": True}]


def test_restore_patch_removes_maintenance_label_of_uncordoned_node() -> None:
    """Design rule 10: a node that was uncordoned by hand also loses the label by which event sources select it."""
    removed_paths = [
        f"/metadata/labels/{name.replace('/', '~1')}"
        for name in (MAINTENANCE_LABEL, EXCLUDED_BEFORE_LABEL, EXCLUDE_LABEL)
    ]

    assert build_restore_patch(make_node(maintenance_uid="nm-uid"), [DRAIN_TAINT_KEY])[2:] == [
        {"op": "remove", "path": path} for path in removed_paths
    ]


@pytest.mark.parametrize(
    ("labels", "expected_operations"),
    [
        ({EXCLUDED_BEFORE_LABEL: UNSET_VALUE, EXCLUDE_LABEL: "true"}, [("remove", None)]),
        ({EXCLUDED_BEFORE_LABEL: "true", EXCLUDE_LABEL: "true"}, []),
        ({EXCLUDED_BEFORE_LABEL: "false", EXCLUDE_LABEL: "true"}, [("add", "false")]),
        ({EXCLUDED_BEFORE_LABEL: "true"}, [("add", "true")]),
        ({EXCLUDED_BEFORE_LABEL: UNSET_VALUE}, []),
        ({EXCLUDE_LABEL: "true"}, []),
    ],
    ids=["ours", "foreign", "another value", "foreign, removed", "ours, removed", "not remembered"],
)
def test_restore_patch_restores_exclusion_label(
    labels: dict[str, str], expected_operations: list[tuple[str, str]]
) -> None:
    """NMO-27b: the exclusion label gets its recorded value, is removed if that is `unset`, and otherwise stays."""
    node = make_node()
    node["metadata"]["labels"] = {MAINTENANCE_LABEL: "nm-uid", **labels}
    path = f"/metadata/labels/{EXCLUDE_LABEL.replace('/', '~1')}"

    patch = build_restore_patch(node, [DRAIN_TAINT_KEY])

    assert [
        (operation["op"], operation.get("value")) for operation in patch if operation["path"] == path
    ] == expected_operations


def test_restore_patch_uncordons_untainted_node() -> None:
    """NMO-14: a node that is cordoned but not tainted is uncordoned by a patch that begins with test operations."""
    assert [operation["op"] for operation in build_restore_patch(make_node(cordoned=True), [DRAIN_TAINT_KEY])] == [
        "test",
        "test",
        "remove",
    ]


def test_taint_patch_adds_missing_maintenance_label() -> None:
    """Design rule 12: a patch that taints an unlabelled node also labels the node, so that a late patch is undone."""
    label, taints = (
        operation for operation in build_taint_patch(make_node(), DRAIN_TAINT_KEY, "nm-uid") if operation["op"] == "add"
    )

    labels = {MAINTENANCE_LABEL: "nm-uid", EXCLUDED_BEFORE_LABEL: UNSET_VALUE, EXCLUDE_LABEL: "true"}
    assert label == {"op": "add", "path": "/metadata/labels", "value": labels}
    assert get_taint_keys(taints["value"]) == [UNSCHEDULABLE_TAINT, DRAIN_TAINT_KEY]


@pytest.mark.parametrize(
    "node",
    [
        make_node(*MAINTENANCE_TAINTS, cordoned=True),
        {
            "metadata": {"name": "node-1", "uid": "u", "labels": {}},
            "spec": make_node(*MAINTENANCE_TAINTS, cordoned=True)["spec"],
        },
        NODE_IN_MAINTENANCE,
    ],
    ids=["no labels", "empty labels", "labelled"],
)
def test_node_patches_test_maintenance_label_that_was_read(node: Object) -> None:
    """Design rule 12: each patch tests the label that was read, so that it fails after another cordon or restore."""
    labels = node["metadata"].get("labels")
    path, value = (LABEL_PATH, labels[MAINTENANCE_LABEL]) if labels else ("/metadata/labels", labels)

    untainted = {**node, "spec": {}}

    for patch in (
        build_restore_patch(node, [DRAIN_TAINT_KEY]),
        build_cordon_patch(node, "x"),
        build_taint_patch(untainted, DRAIN_TAINT_KEY, "x"),
    ):
        assert patch[1] == {"op": "test", "path": path, "value": value}


@pytest.mark.parametrize(
    ("node", "expected_states"),
    [
        (make_node(), (False, False)),
        (make_node(*MAINTENANCE_TAINTS), (False, False)),
        (make_node(cordoned=True, maintenance_uid="nm-uid"), (False, False)),
        (make_node(*MAINTENANCE_TAINTS, maintenance_uid="nm-uid"), (False, False)),
        (make_node(*MAINTENANCE_TAINTS, cordoned=True), (True, False)),
        (NODE_IN_MAINTENANCE, (True, True)),
        (make_node(*MAINTENANCE_TAINTS, cordoned=True, maintenance_uid="another"), (True, True)),
    ],
    ids=["none", "tainted", "cordoned", "uncordoned", "not labelled", "all", "label of another maintenance"],
)
def test_node_in_maintenance_is_cordoned_tainted_and_labelled(node: Object, expected_states: tuple[bool, bool]) -> None:
    """NMO-5, design rule 10: a node under maintenance is cordoned and tainted, and has the maintenance's label."""
    assert (
        is_cordoned_and_tainted(node, DRAIN_TAINT_KEY),
        is_in_maintenance(node, DRAIN_TAINT_KEY),
    ) == expected_states


def patch_node_with_retries(client: SyncClient, path: str, build_patch: Callable[[Object], list[Object]]) -> Object:
    """Patch the node, and compute the patch again if another writer, such as the controller manager, interferes."""
    while True:
        with contextlib.suppress(Conflict):
            return client.patch(path, build_patch(client.get(path)), JSON_PATCH)


def test_node_patches_cordon_and_restore_real_node(installed_cluster: LocalCluster, admin_client: SyncClient) -> None:
    """NMO-3, NMO-4, NMO-14: after cordon, taint and restore, the node is as before; a stale patch raises Conflict."""
    path = build_node_path(Workload(installed_cluster, admin_client).take_node())
    foreign_taints = [{"key": "example.com/theirs", "value": "1", "effect": "PreferNoSchedule"}]
    initial_node = admin_client.patch(path, {"spec": {"taints": foreign_taints}})

    cordoned_node = admin_client.patch(path, build_cordon_patch(initial_node, "nm-uid"), JSON_PATCH)
    tainted_node = patch_node_with_retries(
        admin_client, path, lambda current: build_taint_patch(current, DRAIN_TAINT_KEY, "nm-uid")
    )
    with pytest.raises(Conflict):
        admin_client.patch(path, build_taint_patch(initial_node, DRAIN_TAINT_KEY, "nm-uid"), JSON_PATCH)
    with pytest.raises(Conflict):
        admin_client.patch(
            path,
            build_cordon_patch({**initial_node, "metadata": {**initial_node["metadata"], "uid": "other"}}),
            JSON_PATCH,
        )
    restored_node = patch_node_with_retries(
        admin_client, path, lambda current: build_restore_patch(current, [DRAIN_TAINT_KEY])
    )
    admin_client.run(admin_client.api.request("DELETE", path))

    assert tainted_node["spec"]["taints"][0] == foreign_taints[0]
    assert is_cordoned(cordoned_node)
    assert is_in_maintenance(tainted_node, DRAIN_TAINT_KEY)
    labels = restored_node["metadata"]["labels"]
    assert MAINTENANCE_LABEL not in labels
    # The cluster may have added labels of its own in the meantime.
    assert initial_node["metadata"]["labels"].items() <= labels.items()
    assert not is_cordoned(restored_node)
    assert DRAIN_TAINT_KEY not in get_taint_keys(restored_node["spec"]["taints"])
    assert restored_node["spec"]["taints"][0] == foreign_taints[0]


def test_cordon_patch_labels_real_node_without_labels(
    installed_cluster: LocalCluster, admin_client: SyncClient
) -> None:
    """Design rule 10: the patch adds `metadata.labels`, and raises Conflict if another client has added labels."""
    path = build_node_path("without-labels")
    node = admin_client.create("/api/v1/nodes", {"metadata": {"name": "without-labels"}})
    labelled_node = admin_client.patch(path, build_cordon_patch(node, "nm-uid"), JSON_PATCH)
    with pytest.raises(Conflict):
        admin_client.patch(path, build_cordon_patch(node, "nm-uid"), JSON_PATCH)
    restored_node = patch_node_with_retries(
        admin_client, path, lambda current: build_restore_patch(current, [DRAIN_TAINT_KEY])
    )
    admin_client.run(admin_client.api.request("DELETE", path))

    assert "labels" not in node["metadata"]
    assert labelled_node["metadata"]["labels"] == {
        MAINTENANCE_LABEL: "nm-uid",
        EXCLUDED_BEFORE_LABEL: UNSET_VALUE,
        EXCLUDE_LABEL: "true",
    }
    assert not restored_node["metadata"].get("labels")


@proves("NMO-27b")
@pytest.mark.parametrize("initial_value", [None, "true", "false", ""], ids=["absent", "true", "false", "empty"])
@pytest.mark.parametrize(
    "removed_label", [None, MAINTENANCE_LABEL, EXCLUDE_LABEL], ids=["unchanged", "ours removed", "foreign removed"]
)
def test_node_is_excluded_from_remediation_during_maintenance(
    installed_cluster: LocalCluster, admin_client: SyncClient, initial_value: str | None, removed_label: str | None
) -> None:
    """NMO-27b: the cordon patch sets the exclusion label, and the restore patch sets its earlier value again."""
    path = build_node_path(Workload(installed_cluster, admin_client).take_node())
    admin_client.patch(path, {"metadata": {"labels": {EXCLUDE_LABEL: initial_value}}})

    cordoned_node = patch_node_with_retries(admin_client, path, lambda current: build_cordon_patch(current, "nm-uid"))
    if removed_label:
        admin_client.patch(path, {"metadata": {"labels": {removed_label: None}}})
        patch_node_with_retries(admin_client, path, lambda current: build_cordon_patch(current, "another-uid"))
    restored_node = patch_node_with_retries(
        admin_client, path, lambda current: build_restore_patch(current, [DRAIN_TAINT_KEY])
    )
    admin_client.run(admin_client.api.request("DELETE", path))

    assert cordoned_node["metadata"]["labels"][EXCLUDE_LABEL] == "true"
    labels = restored_node["metadata"]["labels"]
    assert labels.get(EXCLUDE_LABEL) == initial_value
    assert not {MAINTENANCE_LABEL, EXCLUDED_BEFORE_LABEL} & labels.keys()


@pytest.mark.parametrize("name", ["x/status", "x?y", "x#y", "..", ".", "x%2Fy", "a b"])
def test_node_path_built_from_free_text_is_not_found(admin_client: SyncClient, name: str) -> None:
    """NMO-19: a path that is built from free text addresses a single node, which does not exist."""

    with pytest.raises(NotFound):
        admin_client.get(build_node_path(name))


def test_node_names_with_numbers_of_any_length_are_sorted() -> None:
    """Check that names with numbers too long for Python's `int` are sorted, and that leading zeros are ignored."""
    assert sorted(["node-" + "9" * 5000, "node-010", "node-9", "node-" + "8" * 5000], key=build_natural_sort_key) == [
        *("node-9", "node-010", "node-" + "8" * 5000, "node-" + "9" * 5000),
    ]


def test_node_names_are_sorted_naturally() -> None:
    assert sorted(["node-10", "node-2", "a", "node-1.b", "7"], key=build_natural_sort_key) == [
        *("7", "a", "node-1.b", "node-2", "node-10"),
    ]
