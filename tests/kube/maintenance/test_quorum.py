"""Tests for the decision whether a control-plane node may be disrupted, on plain dicts."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from kube.maintenance import objects as m
from kube.maintenance import quorum
from kube.maintenance.quorum import CONTROL_PLANE_LABELS, ControlPlaneSnapshot, find_disruption_blocker
from kube.paths import Object
from tests.kube.samples import make_budget, make_maintenance, make_pod
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
GUARD_LABELS = {"app": "guard"}


def make_control_plane_node(name: str, *, ready_status: str = "True", label: str = CONTROL_PLANE_LABELS[0]) -> Object:
    conditions = [{"type": "MemoryPressure", "status": "True"}, {"type": "Ready", "status": ready_status}]
    return {
        "metadata": {"name": name, "labels": {label: ""}},
        "status": {"conditions": conditions if ready_status else []},
    }


def make_control_plane(
    *ready_statuses: str,
    nodes_under_maintenance: tuple[str, ...] = (),
    disruptions_allowed: int = 0,
    guard_pod_statuses: tuple[str, ...] = (),
) -> ControlPlaneSnapshot:
    """Return a control plane with the nodes cp-1, cp-2 and so on, one for each Ready status.

    If `guard_pod_statuses` lists the Ready status of each etcd guard pod, the control plane has an etcd guard PDB that
    allows `disruptions_allowed` disruptions.
    """
    nodes = [
        make_control_plane_node(f"cp-{number}", ready_status=ready_status)
        for number, ready_status in enumerate(ready_statuses, 1)
    ]
    guard_pods = [{**make_etcd_guard_pod(f"cp-{number}", ready)} for number, ready in enumerate(guard_pod_statuses, 1)]
    guard = make_budget(
        "etcd-guard-pdb",
        allowed=disruptions_allowed,
        selector={"matchLabels": GUARD_LABELS},
        namespace=quorum.ETCD_NAMESPACE,
    )
    return ControlPlaneSnapshot(nodes, nodes_under_maintenance, [guard] if guard_pod_statuses else [], guard_pods)


def make_etcd_guard_pod(node_name: str, ready_status: str) -> Object:
    pod = make_pod(f"guard-{node_name}", namespace=quorum.ETCD_NAMESPACE, labels=GUARD_LABELS)
    conditions = [{"type": "Ready", "status": ready_status}] if ready_status else []
    return {**pod, "spec": {"nodeName": node_name}, "status": {"conditions": conditions}}


READY_TRUE, READY_FALSE = "True", "False"


@proves("NMO-23")
@pytest.mark.parametrize(
    ("ready_statuses", "nodes_under_maintenance", "is_allowed"),
    [
        ((READY_TRUE,), (), True),
        ((READY_TRUE, READY_TRUE), (), False),
        ((READY_TRUE, READY_TRUE, READY_TRUE), (), True),
        ((READY_TRUE, READY_TRUE, READY_TRUE), ("cp-2",), False),
        ((READY_TRUE, READY_FALSE, READY_TRUE), (), False),
        ((READY_TRUE, "Unknown", READY_TRUE), (), False),
        ((READY_TRUE, "", READY_TRUE), (), False),
        ((READY_TRUE, READY_TRUE, READY_TRUE, READY_TRUE), (), True),
        ((READY_TRUE, READY_TRUE, READY_TRUE, READY_TRUE), ("cp-2",), False),
        ((READY_TRUE, READY_TRUE, READY_TRUE, READY_TRUE, READY_TRUE), ("cp-2",), True),
        ((READY_TRUE, READY_TRUE, READY_TRUE, READY_TRUE, READY_TRUE), ("cp-2", "cp-3"), False),
        # Node cp-2 is both unready and under maintenance, and counts only once.
        (
            (READY_TRUE, READY_FALSE, READY_TRUE, READY_TRUE, READY_TRUE),
            ("cp-2",),
            True,
        ),
        # A maintenance of an unready node is always allowed.
        ((READY_FALSE, READY_TRUE, READY_TRUE), ("cp-2",), True),
        (("Unknown", READY_FALSE, READY_TRUE), (), True),
        ((READY_FALSE, READY_FALSE), (), True),
        # The node's own maintenance does not count as another disruption.
        ((READY_TRUE, READY_TRUE, READY_TRUE), ("cp-1",), True),
    ],
)
def test_ready_nodes_are_counted_without_etcd_guard_pdb(
    ready_statuses: tuple[str, ...], nodes_under_maintenance: tuple[str, ...], is_allowed: bool
) -> None:
    control_plane = make_control_plane(*ready_statuses, nodes_under_maintenance=nodes_under_maintenance)

    assert (find_disruption_blocker(control_plane.nodes[0], control_plane) == "") is is_allowed


@proves("NMO-23")
@pytest.mark.parametrize(
    ("disruptions_allowed", "guard_pod_statuses", "nodes_under_maintenance", "is_allowed"),
    [
        (1, (READY_TRUE, READY_TRUE, READY_TRUE), (), True),
        (0, (READY_TRUE, READY_TRUE, READY_FALSE), (), False),
        # An etcd guard pod whose Ready status is Unknown may become ready again.
        (0, ("Unknown", READY_TRUE, READY_TRUE), (), False),
        (0, (READY_FALSE, READY_TRUE, READY_TRUE), (), True),
        (0, ("", READY_TRUE, READY_TRUE), (), True),
        # The other node's maintenance will use the allowed disruption.
        (
            1,
            (READY_TRUE, READY_TRUE, READY_TRUE),
            ("cp-2",),
            False,
        ),
        (0, (READY_TRUE, READY_FALSE, READY_TRUE), ("cp-2",), False),
        # The etcd guard pod on the other node under maintenance is already unready.
        (
            1,
            (READY_TRUE, READY_FALSE, READY_TRUE),
            ("cp-2",),
            True,
        ),
        (2, (READY_TRUE, READY_TRUE, READY_TRUE), ("cp-2",), True),
    ],
)
def test_etcd_guard_pdb_determines_result_if_it_selects_pods(
    disruptions_allowed: int,
    guard_pod_statuses: tuple[str, ...],
    nodes_under_maintenance: tuple[str, ...],
    is_allowed: bool,
) -> None:
    control_plane = make_control_plane(
        *[READY_TRUE] * 3,
        nodes_under_maintenance=nodes_under_maintenance,
        disruptions_allowed=disruptions_allowed,
        guard_pod_statuses=guard_pod_statuses,
    )

    assert (find_disruption_blocker(control_plane.nodes[0], control_plane) == "") is is_allowed


def test_node_without_etcd_guard_pod_counts_as_disrupted() -> None:
    control_plane = make_control_plane(
        READY_TRUE,
        READY_TRUE,
        READY_TRUE,
        READY_TRUE,
        disruptions_allowed=0,
        guard_pod_statuses=(READY_TRUE, READY_TRUE, READY_TRUE),
    )

    assert find_disruption_blocker(control_plane.nodes[3], control_plane) == ""


@proves("NMO-23")
@pytest.mark.parametrize("name", quorum.GUARD_BUDGET_NAMES)
def test_ready_nodes_are_counted_if_etcd_guard_pdb_selects_no_pod(name: str) -> None:
    """Check that ready nodes are counted if the etcd guard PDB selects no pod.

    The medik8s operator's end-to-end tests create such a PDB, which never allows a disruption.
    """
    guard = make_budget(name, allowed=0, selector={"matchLabels": {"app": "nobody"}}, namespace=quorum.ETCD_NAMESPACE)
    control_plane = make_control_plane(READY_TRUE, READY_TRUE, READY_TRUE)

    def find_quorum_denial(*nodes_under_maintenance: str) -> str:
        return find_disruption_blocker(
            control_plane.nodes[0],
            ControlPlaneSnapshot(
                control_plane.nodes, nodes_under_maintenance, [guard], [make_pod(labels=GUARD_LABELS)]
            ),
        )

    assert find_quorum_denial() == ""
    assert find_quorum_denial("cp-2")


def test_etcd_guard_pdb_with_outdated_status_allows_no_disruption() -> None:
    control_plane = make_control_plane(
        READY_TRUE,
        READY_TRUE,
        READY_TRUE,
        disruptions_allowed=1,
        guard_pod_statuses=(READY_TRUE, READY_TRUE, READY_TRUE),
    )
    outdated_budget = {**control_plane.guard_budgets[0], "status": {"disruptionsAllowed": 1, "observedGeneration": 0}}

    assert find_disruption_blocker(
        control_plane.nodes[0], ControlPlaneSnapshot(control_plane.nodes, (), [outdated_budget], control_plane.pods)
    )


@proves("NMO-23")
def test_quorum_denial_starts_like_medik8s_operator_and_ends_with_remedy() -> None:
    control_plane = make_control_plane(READY_TRUE, READY_TRUE, READY_FALSE, nodes_under_maintenance=("cp-2",))

    assert find_disruption_blocker(control_plane.nodes[0], control_plane) == (
        "can not put master/control-plane node into maintenance at this moment, disrupting node cp-1 will violate etcd "
        "quorum: 2 of 3 control-plane nodes must stay ready, but only 0 would; "
        "end the maintenance of cp-2 or repair cp-3 first"
    )


@pytest.mark.parametrize(
    ("control_plane", "remedy"),
    [
        (
            make_control_plane(
                READY_TRUE,
                READY_TRUE,
                READY_TRUE,
                disruptions_allowed=0,
                guard_pod_statuses=(READY_TRUE, READY_TRUE, READY_TRUE),
            ),
            "openshift-etcd/etcd-guard-pdb allows no disruption; add a",
        ),
        (
            make_control_plane(READY_TRUE, READY_TRUE),
            "2 of 2 control-plane nodes must stay ready, but only 1 would; add a control-plane node first",
        ),
        (make_control_plane(READY_TRUE, READY_FALSE, READY_TRUE), "but only 1 would; repair cp-2 first"),
    ],
)
def test_quorum_denial_states_applicable_remedy(control_plane: ControlPlaneSnapshot, remedy: str) -> None:
    assert remedy in find_disruption_blocker(control_plane.nodes[0], control_plane)


@pytest.mark.parametrize("label", CONTROL_PLANE_LABELS)
def test_control_plane_node_is_recognized_by_label(label: str) -> None:
    assert quorum.is_control_plane(make_control_plane_node("cp", label=label))


def test_disruption_of_worker_node_is_never_denied() -> None:
    worker: Object = {"metadata": {"name": "worker"}}

    assert not quorum.is_control_plane(worker)
    assert find_disruption_blocker(worker, make_control_plane(READY_TRUE, READY_TRUE)) == ""


def test_only_control_plane_node_is_recognized() -> None:
    assert quorum.has_single_control_plane_node(make_control_plane(READY_TRUE))
    assert not quorum.has_single_control_plane_node(make_control_plane(READY_TRUE, READY_FALSE))


@pytest.mark.parametrize(
    ("maintenance", "is_disruption"),
    [
        (make_maintenance(), True),
        # A failed maintenance that has begun still holds its node.
        (make_maintenance({"phase": m.FAILED}), True),
        (make_maintenance(counts=""), True),
        # A maintenance that was rejected before it began does not disrupt its node.
        (make_maintenance({"phase": m.FAILED}, counts=""), False),
        (make_maintenance({"errorOnLeaseCount": 4}), False),
    ],
)
def test_maintenance_that_holds_or_waits_for_its_node_is_disruption(maintenance: Object, is_disruption: bool) -> None:
    assert quorum.is_disruption(maintenance) is is_disruption


def test_quorum_lease_has_one_holder_until_it_expires() -> None:
    first_maintenance, second_maintenance = make_maintenance(), {**make_maintenance(), "metadata": {"uid": "other"}}
    lease = quorum.build_lease(first_maintenance, NOW)

    assert quorum.may_acquire(lease, first_maintenance, NOW)
    assert not quorum.may_acquire(lease, second_maintenance, NOW)
    assert not quorum.may_acquire(lease, second_maintenance, NOW + quorum.LEASE_DURATION)
    assert quorum.may_acquire(lease, second_maintenance, NOW + quorum.LEASE_DURATION + timedelta(seconds=1))
    assert quorum.may_acquire({**lease, "spec": {**lease["spec"], "holderIdentity": None}}, second_maintenance, NOW)


def test_quorum_lease_names_its_holder() -> None:
    lease = quorum.build_lease(make_maintenance(), NOW)

    assert (lease["apiVersion"], lease["kind"]) == ("coordination.k8s.io/v1", "Lease")
    namespace, name = lease["metadata"]["namespace"], lease["metadata"]["name"]
    assert quorum.LEASE_PATH.endswith(f"/namespaces/{namespace}/leases/{name}")
    assert lease["spec"]["holderIdentity"] == make_maintenance()["metadata"]["uid"]
