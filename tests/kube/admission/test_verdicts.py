"""Tests for the conflicts, denial messages and drain warnings of a new NodeMaintenance."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest

from kube.admission.verdicts import (
    build_conflict_message,
    build_sole_control_plane_warning,
    build_unknown_node_message,
    build_warnings,
    find_conflict,
    find_schedule_error,
)
from kube.budgets import requires_all_pods
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.paths import Object
from tests.kube.samples import make_budget, make_maintenance, make_pod
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
DB_LABELS = {"app": "db"}
TOLERATE_ALL_SPEC: Object = {"tolerations": [{"operator": "Exists"}]}
EMPTY_DIR_SPEC: Object = {"volumes": [{"emptyDir": {}}]}


def make_other_maintenance(name: str = "other", api_version: str = MEDIK8S.api_version, **metadata: object) -> Object:
    maintenance = make_maintenance()
    return {**maintenance, "apiVersion": api_version, "metadata": {**maintenance["metadata"], "name": name, **metadata}}


@proves("NMO-22", "X-7")
@pytest.mark.parametrize(
    ("existing_maintenance", "is_conflict"),
    [
        (make_other_maintenance(), True),
        # A NodeMaintenance of another API group is a different object, even if it has the same name.
        (make_other_maintenance("nm", KUBEVIRT.api_version), True),
        # A deleted maintenance holds the node until its finalizer is removed.
        (
            make_other_maintenance(deletionTimestamp="2026-01-01T00:00:00Z"),
            True,
        ),
        # The API server itself rejects a second object with the same name.
        (make_other_maintenance("nm"), False),
        (make_other_maintenance(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/x"]), False),
        ({**make_other_maintenance(), "status": {"errorOnLeaseCount": 4}}, False),
    ],
)
def test_only_maintenance_that_holds_node_conflicts(existing_maintenance: Object, is_conflict: bool) -> None:
    assert find_conflict(make_maintenance(), [existing_maintenance]) == (existing_maintenance if is_conflict else None)


def test_conflicting_maintenance_is_found_among_several() -> None:
    assert find_conflict(
        make_maintenance(), [make_other_maintenance("nm"), make_other_maintenance("second")]
    ) == make_other_maintenance("second")


@pytest.mark.parametrize(
    ("existing_maintenance", "remedy"),
    [
        (
            make_other_maintenance(),
            "use the existing NodeMaintenance, or delete it first: "
            "`kubectl delete nodemaintenances.nodemaintenance.medik8s.io other`",
        ),
        (
            make_other_maintenance(deletionTimestamp="2026-01-01T00:00:00Z"),
            "the existing NodeMaintenance is being deleted, so try again in a moment",
        ),
    ],
)
def test_denial_message_starts_like_medik8s_operator_and_ends_with_remedy(
    existing_maintenance: Object, remedy: str
) -> None:
    start = "invalid nodeName, a NodeMaintenance for node node-1 already exists: other (nodemaintenance.medik8s.io); "

    assert build_conflict_message("node-1", existing_maintenance) == start + remedy
    assert (
        build_unknown_node_message("n")
        == "invalid nodeName, no node with name n found; `kubectl get nodes` lists the node names"
    )


def make_owned_pod(name: str = "web", **overrides: object) -> Object:
    return {**make_pod(name, owner="ReplicaSet", labels=DB_LABELS), **overrides}


def get_warnings(*pods: Object, budgets: tuple[Object, ...] = (), **drain_options: object) -> list[str]:
    maintenance = make_maintenance()
    return build_warnings({**maintenance, "spec": {**maintenance["spec"], "drain": drain_options}}, pods, budgets, NOW)


def make_pdb_with_expected_pods(name: str, *, allowed: int = 0, expected: int = 3, needed: int = 3) -> Object:
    budget = make_budget(name, allowed=allowed, needed=needed)
    return {**budget, "status": {**budget["status"], "expectedPods": expected}}


def test_pods_that_are_not_evicted_cause_no_warning() -> None:
    ignored_pods = (
        make_owned_pod(),
        make_pod("agent", owner="DaemonSet"),
        make_pod("static", annotations={"kubernetes.io/config.mirror": "x"}),
    )

    assert (
        get_warnings(
            *ignored_pods,
            make_pod("finished", phase="Succeeded"),
            make_pod("terminating", deletionTimestamp="2026-01-01T00:00:00Z"),
        )
        == []
    )


@pytest.mark.parametrize(
    ("pods", "warning"),
    [
        ([make_pod("a")], "no controller will recreate 1 pod after the eviction: ns/a"),
        (
            [make_pod(name) for name in "edcba"],
            "no controller will recreate 5 pods after the eviction: ns/a, ns/b, ns/c and 2 more",
        ),
        ([make_owned_pod(spec=EMPTY_DIR_SPEC)], "emptyDir data of 1 pod will be lost: ns/web"),
        (
            [make_owned_pod(spec=TOLERATE_ALL_SPEC)],
            "a controller may recreate 1 pod on this node, due to a toleration of every taint; "
            "narrow the tolerations: ns/web",
        ),
    ],
)
def test_lost_pods_lost_data_and_recreated_pods_cause_warning(pods: list[Object], warning: str) -> None:
    assert get_warnings(*pods) == [warning]


def test_each_escalation_step_causes_warning() -> None:
    """Check that a warning states the time and the effect of each escalation step, and that a deadline causes none."""
    steps = [{"after": "10m", "action": "DeleteUnready"}, {"after": "1h", "action": "DeleteNow"}]
    maintenance = make_maintenance()
    maintenance["spec"]["drain"] = {"deadline": "2h", "escalation": steps}

    warnings = build_warnings(maintenance, [], [], NOW)

    assert warnings == [
        "if the drain takes 10m, pods that are not ready, and that a disruption budget blocks, are deleted "
        "(spec.drain.escalation)",
        "if the drain takes 1h, pods that cannot be evicted, and terminating pods, are deleted with grace period 0 "
        "(spec.drain.escalation)",
    ]
    assert find_schedule_error(maintenance) == ""


def test_denial_of_invalid_deadline_names_field_and_remedy() -> None:
    """Check that the denial of an invalid deadline names the field and states the remedy."""
    maintenance = make_maintenance()
    maintenance["spec"]["drain"] = {"deadline": "soon"}

    assert find_schedule_error(maintenance) == (
        'spec.drain.deadline "soon" is not a positive duration: write hours, minutes and seconds, as in 1h30m'
    )


def test_pods_that_drain_flags_exclude_cause_no_warning() -> None:
    assert get_warnings(make_pod("a"), make_owned_pod(spec=EMPTY_DIR_SPEC), force=False, deleteEmptyDirData=False) == []


def test_unmanaged_pod_that_tolerates_all_taints_is_not_recreated() -> None:
    assert get_warnings({**make_pod("a"), "spec": TOLERATE_ALL_SPEC}) == [
        "no controller will recreate 1 pod after the eviction: ns/a"
    ]


def test_warning_states_whether_pdb_never_allows_eviction() -> None:
    currently_blocking_warnings = get_warnings(
        make_owned_pod(), make_owned_pod("web-2"), budgets=(make_pdb_with_expected_pods("b", expected=4),)
    )
    always_blocking_warnings = get_warnings(make_owned_pod(), budgets=(make_pdb_with_expected_pods("b"),))
    exhausted_budget = make_pdb_with_expected_pods("b")
    max_unavailable_warnings = get_warnings(
        make_owned_pod(), budgets=({**exhausted_budget, "spec": {**exhausted_budget["spec"], "maxUnavailable": 0}},)
    )

    assert currently_blocking_warnings == [
        "budget ns/b needs 3 healthy pods and has 3, so it allows no eviction now; it blocks 2 pods: ns/web, ns/web-2"
    ]
    assert always_blocking_warnings == [
        "budget ns/b requires all of its pods to be healthy, so it allows no eviction: "
        "add replicas or change the budget; it blocks 1 pod: ns/web"
    ]
    remedy = "change the budget, because more replicas do not help"
    assert max_unavailable_warnings == [
        always_blocking_warnings[0].replace("add replicas or change the budget", remedy)
    ]


def test_pdb_that_allows_eviction_causes_no_warning() -> None:
    assert (
        get_warnings(
            make_owned_pod(),
            make_owned_pod("web-2"),
            budgets=(make_pdb_with_expected_pods("b", allowed=1, expected=4),),
        )
        == []
    )


def test_pdbs_cause_no_warning_with_disable_eviction() -> None:
    assert get_warnings(make_owned_pod(), budgets=(make_pdb_with_expected_pods("b"),), disableEviction=True) == []


def test_pods_that_two_pdbs_select_cause_warning() -> None:
    assert get_warnings(
        make_owned_pod(),
        budgets=(make_pdb_with_expected_pods("a", allowed=1), make_pdb_with_expected_pods("b", allowed=1)),
    ) == ["1 pod cannot be evicted under several disruption budgets; delete or narrow one of the budgets: ns/web"]


@pytest.mark.parametrize(
    ("expected", "needed", "expected_result"), [(3, 3, True), (3, 4, True), (4, 3, False), (0, 0, False), (0, 1, False)]
)
def test_requires_all_pods_compares_desired_with_expected_pods(
    expected: int, needed: int, expected_result: bool
) -> None:
    """Check that a PDB requires all pods if and only if it has pods and `desiredHealthy` is at least `expectedPods`.

    This covers `maxUnavailable: 0` as well as a `minAvailable` of all replicas.
    """
    assert requires_all_pods(make_pdb_with_expected_pods("b", expected=expected, needed=needed)) is expected_result


def test_warning_names_only_control_plane_node() -> None:
    assert build_sole_control_plane_warning("cp-1").startswith(
        "node cp-1 is the only control-plane node: while it is down"
    )
