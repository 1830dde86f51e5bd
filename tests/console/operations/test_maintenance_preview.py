"""Tests for the preview of a maintenance, with plain dicts as snapshots, and for its display."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from types import MappingProxyType
from typing import Any

import pytest
from rich.console import Console

from console.operations import maintenance_preview
from console.operations.maintenance_preview import NO_USABLE_NODE_WARNING, MaintenancePreview, build_preview
from console.operations.node_vmis import NodeVmis
from console.operations.preview_snapshot import ClusterSnapshot, contains_usable_node
from console.operations.recorded_drains import RecordedDrain
from console.terminal.preview_display import format_summary, render_preview
from kube.budgets import MIGRATION_UID_LABEL
from kube.capacity import FITS, NOWHERE, UNKNOWN
from kube.maintenance.groups import MEDIK8S
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import Object
from kube.pods import DrainOptions, Pod
from kube.times import format_seconds, format_time
from kube.virtualization.drain_forecast import BLOCKS, MOVES, STOPS
from tests.kube.samples import READY_CONDITIONS, make_budget, make_pod

NOW = datetime(2026, 3, 1, tzinfo=timezone.utc)
NODES = ("node-1", "node-2")
OPTIONS = DrainOptions()


def make_bound_pod(name: str, node: str = "node-1", *, cpu: str = "1", **fields: Any) -> Object:
    spec = {"nodeName": node, "containers": [{"resources": {"requests": {"cpu": cpu}}}], **fields.pop("spec", {})}
    return {**make_pod(name, **{"owner": "ReplicaSet", **fields}), "spec": spec}


def make_db_pods(count: int, node: str, **fields: Any) -> list[Object]:
    return [make_bound_pod(f"db-{node}-{index}", node, labels={"app": "db"}, **fields) for index in range(count)]


def make_named_node(name: str, cpu: str = "100", spec: Object | None = None, **labels: str) -> Object:
    status = {"allocatable": {"cpu": cpu, "pods": "110"}, "conditions": READY_CONDITIONS}
    return {"metadata": {"name": name, "labels": labels}, "spec": spec or {}, "status": status}


def make_vmi_report(name: str, effect: str, node: str = "node-1") -> Object:
    return {
        "namespace": "ns",
        "name": name,
        "drain": effect,
        "why": "",
        "unable": "no disk",
        "evictionStrategy": "",
        "runStrategy": "Always",
        "node": node,
    }


def preview_pods(
    pods: Iterable[Pod],
    budgets: Iterable[Object] = (),
    *,
    options: DrainOptions = OPTIONS,
    other_cpu: str = "100",
    reports: Iterable[Object] = (),
    can_list_nodes: bool = True,
    drains: Collection[RecordedDrain] = (),
    node_specs: Mapping[str, Object] = MappingProxyType({}),
    node_labels: Mapping[str, Mapping[str, str]] = MappingProxyType({}),
    drained: Sequence[str] = NODES,
    has_usable_node: bool = True,
) -> MaintenancePreview:
    """Return the preview for draining the nodes `drained`; the nodes have the given specs and labels."""
    nodes = [
        *(make_named_node(name, spec=node_specs.get(name), **node_labels.get(name, {})) for name in NODES),
        make_named_node("other", other_cpu),
    ]
    snapshot = ClusterSnapshot(
        nodes=nodes if can_list_nodes else None,
        node_objects={node["metadata"]["name"]: node for node in nodes if node["metadata"]["name"] in drained},
        pods=list(pods),
        other_pods=[],
        budgets=list(budgets),
        orphan_uids=(),
        vmis={"node-1": NodeVmis(list(reports)), "node-2": NodeVmis([])},
        group=MEDIK8S,
        has_usable_node=has_usable_node,
    )
    return build_preview(snapshot, drained, options, NOW, drains)


def get_names(pods: Iterable[Pod]) -> list[str]:
    return [pod["metadata"]["name"] for pod in pods]


def get_item_names(items: Iterable[Object]) -> list[str]:
    return [item["name"] for item in items]


def render(preview: MaintenancePreview, *, width: int = 80, verbose: bool = False) -> str:
    console = Console(width=width, highlight=False, markup=False, emoji=False)
    with console.capture() as capture:
        console.print(render_preview(preview, {}, verbose=verbose))
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


@pytest.mark.parametrize(
    ("cordoned", "warnings"),
    [
        ((), []),
        (("node-2",), ['node "node-2" is already cordoned, and the end of the maintenance uncordons it']),
        (
            NODES,
            ['nodes "node-1", "node-2" are already cordoned, and the end of their maintenances uncordons them'],
        ),
    ],
    ids=["none", "one", "both"],
)
def test_preview_warns_once_that_end_of_maintenance_uncordons_cordoned_nodes(
    cordoned: Collection[str], warnings: list[str]
) -> None:
    preview = preview_pods([], node_specs={name: {"unschedulable": True} for name in cordoned})

    assert preview.warnings == warnings


def test_preview_does_not_warn_about_node_that_maintenance_has_cordoned() -> None:
    specs, labels = {"node-1": {"unschedulable": True}}, {"node-1": {MAINTENANCE_LABEL: "uid-1"}}

    assert preview_pods([], node_specs=specs, node_labels=labels).warnings == []


def test_preview_warns_if_no_other_node_accepts_pods() -> None:
    assert preview_pods([], has_usable_node=False).warnings == [NO_USABLE_NODE_WARNING]
    assert preview_pods([]).warnings == []


@pytest.mark.parametrize(
    ("spec", "conditions", "is_usable"),
    [
        ({}, READY_CONDITIONS, True),
        ({"taints": [{"key": "slow-disk", "effect": "PreferNoSchedule"}]}, READY_CONDITIONS, True),
        ({"unschedulable": True}, READY_CONDITIONS, False),
        ({"taints": [{"key": "medik8s.io/drain", "effect": "NoSchedule"}]}, READY_CONDITIONS, False),
        (
            {"taints": [{"key": "control-plane", "effect": "NoExecute"}]},
            READY_CONDITIONS,
            False,
        ),
        ({}, [], False),
    ],
    ids=["schedulable", "preferred", "cordoned", "drained", "control-plane", "not-ready"],
)
def test_node_is_usable_if_it_accepts_pods_without_tolerations(
    spec: Object, conditions: list[Object], is_usable: bool
) -> None:
    """Check which nodes can run the product's pods; a previewed node never counts."""
    node = {"metadata": {"name": "other"}, "spec": spec, "status": {"conditions": conditions}}

    assert contains_usable_node([make_named_node("node-1"), node], ["node-1"]) is is_usable
    assert contains_usable_node([node], ["other"]) is False


def test_preview_of_two_nodes_counts_shared_budget_once() -> None:
    """NMO-6: of eight pods on two nodes that share a PodDisruptionBudget, four are evicted now, as the total shows."""
    pods = [*make_db_pods(4, "node-1"), *make_db_pods(4, "node-2")]

    preview = preview_pods(pods, [make_budget("db", allowed=4, healthy=8, needed=4)])

    assert [(counts.node, counts.evicted, counts.later, counts.blocked) for counts in preview.counts] == [
        ("node-1", 4, 0, 0),
        ("node-2", 0, 4, 0),
    ]
    assert not preview.will_block
    text = render(preview)
    assert "TOTAL" in text
    assert "ns/db admits 4 of 8 pods now, and the others when replacements are ready" in " ".join(text.split())


def test_pods_of_several_nodes_are_named_with_their_nodes() -> None:
    """Check that the view names the node of each pod, unless the preview is about one node."""
    pods = [*make_db_pods(2, "node-1", owner=""), *make_db_pods(1, "node-2")]
    budget = make_budget("db", healthy=3, needed=3)

    view = render(preview_pods(pods, [budget]))
    moving = render(preview_pods(pods), verbose=True)
    view_of_one_node = render(preview_pods(pods[:2], [budget], drained=["node-1"]), verbose=True)

    assert "ns/db-node-1-0 on node-1, ns/db-node-1-1 on node-1, ns/db-node-2-0 on node-2" in " ".join(view.split())
    assert "    ns/db-node-2-0 on node-2 could move to other" in moving.splitlines()
    assert " on node-1" not in view_of_one_node


def test_dry_run_groups_pods_of_several_nodes_by_node() -> None:
    """Check that the lines of a dry run have a heading for each node, also for a node without pods."""
    pods = [make_bound_pod("web"), make_bound_pod("daemon", owner="DaemonSet")]

    lines = list(preview_pods(pods).format_pod_lines(has_headings=True))

    assert lines == [
        "node/node-1:",
        "  would evict pod ns/web",
        "  would ignore pod ns/daemon: pod of a DaemonSet",
        "node/node-2:",
        "  no pods",
    ]


def test_pods_that_one_pdb_blocks_are_one_cause() -> None:
    """Check that the display has one line for the PodDisruptionBudget, and lists the blocked pods if `verbose`."""
    preview = preview_pods(make_db_pods(15, "node-1"), [make_budget("db", healthy=15, needed=15)])

    assert preview.will_block
    assert [(group.budget, len(group.pods)) for group in preview.blocked_groups] == [("db", 15)]
    text, verbose_text = render(preview), render(preview, verbose=True)
    cause = "15 pods, DisruptionBudget: budget db needs 15 healthy pods and has 15: ns/db-node-1-0 on node-1, "
    assert " ".join(text.split()).count(cause) == 1
    assert "kubectl -n ns edit pdb db" in text
    assert "db-node-1-7" not in text
    assert "ns/db-node-1-7 on node-1" in verbose_text
    assert format_summary(preview) == "15 pods will block the drain, for 1 cause."


def test_pods_that_fit_nowhere_do_not_block() -> None:
    """Check that pods without capacity on other nodes are reported, but do not block the drain.

    Preemption or an autoscaler may provide the capacity.
    """
    preview = preview_pods(
        make_db_pods(4, "node-1"), [make_budget("db", allowed=1, healthy=4, needed=3)], other_cpu="500m"
    )

    assert {placement.verdict for placement in preview.placements or []} == {NOWHERE}
    assert (len(preview.forecast.now), len(preview.forecast.later), preview.will_block) == (1, 3, False)
    assert format_summary(preview) == "4 pods will stay Pending: no other node has capacity."
    names = "ns/db-node-1-0 on node-1, ns/db-node-1-1 on node-1, ns/db-node-1-2 on node-1 and 1 more"
    assert f"4 pods: {names}: no node has capacity, " in " ".join(render(preview).split())


def test_pods_are_grouped_by_outcome_of_drain() -> None:
    deletion_time = format_time(NOW + timedelta(seconds=90))
    pods = [
        make_bound_pod("plain"),
        make_bound_pod("bare", owner=""),
        make_bound_pod("scratch", spec={"volumes": [{"name": "s", "emptyDir": {}}]}),
        make_bound_pod("daemon", owner="DaemonSet"),
        make_bound_pod("ending", deletionTimestamp=deletion_time),
    ]

    preview = preview_pods(pods)

    assert get_names(preview.forecast.now) == ["bare", "plain", "scratch"]
    assert get_names(preview.bare) == ["bare"]
    assert get_names(preview.losing_data) == ["scratch"]
    assert get_names(preview.terminating) == ["ending"]
    assert [(pod["metadata"]["name"], reason) for pod, reason in preview.ignored] == [("daemon", "pod of a DaemonSet")]
    assert [placement.pod["metadata"]["name"] for placement in preview.select_placements(FITS)] == ["plain", "scratch"]
    assert (preview.duration.seconds, preview.duration.reason) == (90, "pod ns/ending, which is terminating")
    data = preview.as_data()
    assert data["withoutController"] == [{"namespace": "ns", "name": "bare", "node": "node-1"}]
    assert data["capacity"]["fits"][0] == {"namespace": "ns", "name": "plain", "node": "node-1", "to": "other"}


def test_preview_of_several_nodes_reads_each_pod_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the preview reads each pod once, regardless of the number of nodes."""
    preview = preview_pods([*make_db_pods(2, "node-1"), *make_db_pods(3, "node-2"), make_bound_pod("bare", owner="")])
    built: list[str] = []

    def build_and_record(pod: Pod) -> Object:
        built.append(pod["metadata"]["name"])
        return build_pod_data(pod)

    build_pod_data = maintenance_preview._build_pod_data
    monkeypatch.setattr(maintenance_preview, "_build_pod_data", build_and_record)
    data = preview.split_by_node()

    assert {node: get_item_names(fields["evicted"]) for node, fields in data.items()} == {
        "node-1": ["bare", "db-node-1-0", "db-node-1-1"],
        "node-2": ["db-node-2-0", "db-node-2-1", "db-node-2-2"],
    }
    assert len(built) == 6
    assert [counts.evicted for counts in preview.counts] == [3, 3]
    assert len(built) == 12


def test_pods_with_emptydir_data_are_one_cause_and_lose_no_data() -> None:
    """DRN-1a: a pod with emptyDir data stays on the node unless the drain options allow its eviction."""
    pods = [make_bound_pod(name, spec={"volumes": [{"name": "s", "emptyDir": {}}]}) for name in "ab"]

    preview = preview_pods(pods, options=DrainOptions(delete_emptydir_data=False))

    assert [(group.reason, len(group.pods)) for group in preview.blocked_groups] == [("DeleteEmptyDirData", 2)]
    assert (preview.losing_data, preview.placements) == ([], [])


def test_pod_that_outlived_its_grace_period_blocks_drain() -> None:
    stuck = make_bound_pod("stuck", deletionTimestamp=format_time(NOW - timedelta(minutes=5)), finalizers=["x/y"])

    preview = preview_pods([stuck])

    assert [(group.reason, group.message) for group in preview.blocked_groups] == [
        ("Finalizers", "finalizers x/y delay the deletion of the pod: their controllers must remove them")
    ]


@pytest.mark.parametrize(
    ("effect", "will_block", "displaced"), [(MOVES, False, 1), (STOPS, False, 0), (BLOCKS, True, 0)]
)
def test_virtual_machine_blocks_drain_or_needs_capacity(effect: str, will_block: bool, displaced: int) -> None:
    """OSV-2: a VM that migrates or restarts needs capacity on another node; any other VM blocks the drain."""
    launcher = make_bound_pod("virt-launcher-vm")
    launcher["metadata"]["ownerReferences"] = [
        {"kind": "VirtualMachineInstance", "name": "vm", "controller": True, "uid": "u"}
    ]

    preview = preview_pods([launcher], reports=[make_vmi_report("vm", effect)])

    assert preview.will_block is will_block
    assert len(preview.placements or []) == displaced
    assert preview.forecast.now == []
    assert "VIRTUAL MACHINES" in render(preview)


def test_target_pod_of_migration_does_not_block_drain() -> None:
    """Check that a migration's target pod is listed, but not counted as a cause that blocks the drain."""
    target = make_bound_pod("virt-launcher-vm", phase="Pending", labels={"app": "db", MIGRATION_UID_LABEL: "m"})

    preview = preview_pods([target], [make_budget("db", healthy=1, needed=1)])

    assert [group.reason for group in preview.blocked_groups] == ["Migrating"]
    assert (preview.blocking_groups, preview.will_block) == ([], False)


def test_capacity_is_unknown_without_list_of_nodes() -> None:
    preview = preview_pods([make_bound_pod("plain")], can_list_nodes=False)

    assert preview.placements is None
    assert preview.as_data()["capacity"] is None
    assert "unknown: the nodes cannot be listed" in render(preview)


def test_pod_with_volume_has_unknown_capacity() -> None:
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}

    preview = preview_pods([make_bound_pod("db", spec={"volumes": [volume]})])

    assert [placement.reason for placement in preview.select_placements(UNKNOWN)] == ["volume data"]
    assert "1 pod: ns/db on node-1: unknown, volume data" in render(preview)


def test_pod_selector_without_match_causes_warning() -> None:
    preview = preview_pods([make_bound_pod("plain")], options=DrainOptions(pod_selector="app=none"))

    assert preview.warnings == ["pod selector app=none matches no pod that would leave these nodes"]
    assert [reason for _, reason in preview.ignored] == ["not selected"]


def test_pods_that_tolerate_taints_of_maintenance_cause_warning() -> None:
    """Check that the warning about tolerated taints counts only running pods whose controller may recreate them."""
    spec = {"tolerations": [{"operator": "Exists"}]}
    pods = [make_bound_pod(f"web-{index}", spec=spec) for index in range(4)]
    others = [make_bound_pod("bare", owner="", spec=spec), make_bound_pod("done", phase="Succeeded", spec=spec)]

    preview = preview_pods([*pods, *others, make_bound_pod("plain")])

    assert preview.warnings == [
        "4 pods may be recreated on the same node, because of tolerations for the taints of the maintenance: "
        "ns/web-0 on node-1, ns/web-1 on node-1, ns/web-2 on node-1 and 1 more"
    ]


def test_disable_eviction_ignores_pdbs_and_warns_about_component() -> None:
    """DRN-1a: with `disableEviction`, no PDB blocks the drain, and a warning names the required component."""
    preview = preview_pods(make_db_pods(2, "node-1"), [make_budget("db")], options=DrainOptions(disable_eviction=True))

    assert (len(preview.forecast.now), preview.will_block) == (2, False)
    assert 'if the component "deleting" is installed' in preview.warnings[0]


@pytest.mark.parametrize("width", [80, 140])
def test_view_fits_width_and_keeps_commands_on_one_line(width: int) -> None:
    preview = preview_pods(make_db_pods(5, "node-1"), [make_budget("db", healthy=5, needed=5)])

    lines = render(preview, width=width, verbose=True).splitlines()

    assert max(map(len, lines)) <= width
    assert [line.strip() for line in lines if "edit pdb" in line] == ["kubectl -n ns edit pdb db"]


@pytest.mark.parametrize(("seconds", "text"), [(0, "0s"), (45, "45s"), (120, "2m"), (5400, "1h30m"), (3661, "1h1m1s")])
def test_duration_is_formatted_as_in_kubectl(seconds: int, text: str) -> None:
    assert format_seconds(seconds) == text
