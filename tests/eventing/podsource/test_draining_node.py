"""Unit tests for the rules by which pods on a draining node wait for PodDisruptionBudgets."""

from __future__ import annotations

import pytest

from eventing.podsource.draining_node import DrainingNode, admits_any_pod, compute_capacity, selects_pod
from eventing.podsource.hint_scheduler import BudgetCapacity
from kube.paths import Object
from tests.kube.samples import make_budget, make_maintenance, make_pod

DB_LABELS, WEB_LABELS = {"app": "db"}, {"app": "web"}
DELETION_TIME = "2026-01-01T00:00:00Z"


def build_db_pod(name: str = "one", *, ready: bool = True, **fields: object) -> Object:
    return make_pod(name, labels=DB_LABELS, ready=ready, **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("budget", "pods", "expected"),
    [
        pytest.param(make_budget(), [], None, id="no waiting pod"),
        pytest.param(make_budget(), [make_pod(labels=WEB_LABELS)], None, id="selects other pods"),
        pytest.param(make_budget(allowed=0), [build_db_pod()], BudgetCapacity(), id="closed"),
        pytest.param(
            make_budget(allowed=1), [build_db_pod(), build_db_pod("two")], BudgetCapacity(counted=True), id="open"
        ),
        pytest.param(make_budget(allowed=1, observed=0), [build_db_pod()], BudgetCapacity(), id="not counted yet"),
        pytest.param(
            make_budget(allowed=0, healthy=3, needed=3),
            [build_db_pod(ready=False)],
            BudgetCapacity(uncounted=True),
            id="unready",
        ),
        pytest.param(
            make_budget(allowed=1),
            [build_db_pod(), build_db_pod("two", ready=False)],
            BudgetCapacity(True, True),
            id="both",
        ),
        pytest.param(
            make_budget(allowed=0, healthy=2, needed=3),
            [build_db_pod(ready=False)],
            BudgetCapacity(),
            id="unready and budget not met",
        ),
    ],
)
def test_capacity_of_budget_equals_evictions_that_api_server_allows(
    budget: Object, pods: list[Object], expected: BudgetCapacity | None
) -> None:
    """NMO-6: the capacity that a PDB has for a node agrees with the rules of the eviction subresource."""
    assert compute_capacity(budget, pods, [budget]) == expected


def test_pod_selected_by_two_budgets_may_not_be_evicted() -> None:
    first, second = make_budget("one", allowed=1), make_budget("two", allowed=1)

    assert compute_capacity(first, [build_db_pod()], [first, second]) == BudgetCapacity()


def test_pods_that_changed_budget_no_longer_covers_may_be_evicted() -> None:
    """Check that pods that a PDB no longer covers may be evicted, unless another PDB blocks them."""
    old, new = (
        make_budget("b", selector={"matchLabels": DB_LABELS}),
        make_budget("b", selector={"matchLabels": WEB_LABELS}, observed=0),
    )

    assert admits_any_pod((old, new), [build_db_pod()], [new])
    assert not admits_any_pod((old, new), [make_pod(labels=WEB_LABELS)], [new])
    assert not admits_any_pod((old,), [build_db_pod()], [make_budget("other")])
    assert admits_any_pod((old,), [build_db_pod()], [make_budget("other", allowed=1)])
    assert not admits_any_pod((old,), [make_pod(labels=WEB_LABELS)], [])


def test_pods_excluded_by_spec_do_not_wait_for_budgets() -> None:
    """DRN-1a, design rule 8: pods that `spec.drain` excludes wait for no PDB until the spec includes them.

    A hint about such a pod would have no effect, so PodSource would repeat the hint.
    """
    maintenance = make_maintenance()
    without_force = {**maintenance, "spec": {**maintenance["spec"], "drain": {"force": False}}}
    with_selector = {**maintenance, "spec": {**maintenance["spec"], "drain": {"podSelector": "app=web"}}}
    bare_pod, web, agent = build_db_pod(), build_db_pod("web", owner="ReplicaSet"), make_pod("agent", owner="DaemonSet")
    node = DrainingNode("node-1")
    for pod in (bare_pod, web, agent):
        node.update_pod(pod)

    assert node.update_maintenance(without_force)
    assert not node.update_maintenance(without_force)
    assert (node.list_leaving_pods(), node.list_evictable_pods(node.classify_pods()), node.list_waiting_pods("ns")) == (
        [bare_pod, web],
        [web],
        [web],
    )
    node.remove_pod(web)
    assert (node.list_leaving_pods(), node.list_waiting_pods("ns")) == ([bare_pod], [])
    assert node.update_maintenance(with_selector)
    assert (node.list_leaving_pods(), node.list_waiting_pods("ns")) == ([], [])
    assert node.update_maintenance(maintenance)
    assert node.list_waiting_pods("ns") == [bare_pod]


def test_budget_selects_completed_pod() -> None:
    """Check that a PDB selects a pod that has run to completion, although the PDB does not count the pod."""
    assert selects_pod(make_budget(), build_db_pod(phase="Succeeded"))
    assert not selects_pod(make_budget(), make_pod(labels=WEB_LABELS))
    assert not selects_pod(make_budget(namespace="other"), build_db_pod())


def test_daemon_set_pods_wait_for_budgets_only_if_no_other_pods_remain() -> None:
    """NMO-7: DaemonSet pods wait for PodDisruptionBudgets only if no other pods remain.

    `evict` determines only after all other pods have left which DaemonSets no longer exist.
    """
    node, daemon, last_pod = (
        DrainingNode("node-1"),
        make_pod("daemon", owner="DaemonSet"),
        make_pod("last", owner="ReplicaSet"),
    )
    node.update_pod(daemon)
    node.update_pod(last_pod)
    assert node.list_waiting_pods("ns") == [last_pod]

    node.update_pod({**last_pod, "metadata": {**last_pod["metadata"], "deletionTimestamp": DELETION_TIME}})
    assert node.list_waiting_pods("ns") == []

    node.remove_pod(last_pod)
    assert node.list_waiting_pods("ns") == [daemon]
    assert node.list_waiting_pods("other") == []


def test_update_pod_returns_previous_version_of_pod() -> None:
    node, pod = DrainingNode("node-1"), build_db_pod()

    assert node.update_pod(pod) is None
    assert node.update_pod({**pod, "spec": {"x": 1}}) is pod
    assert node.remove_pod(pod) == {**pod, "spec": {"x": 1}}
    assert node.remove_pod(pod) is None


def test_pods_may_be_evicted_only_if_maintenance_has_begun_and_pods_are_listed() -> None:
    node = DrainingNode("node-1")
    node.maintenances["1"] = make_maintenance(counts="")
    node.is_synced = True
    assert not node.may_evict

    node.maintenances["2"] = make_maintenance()
    assert node.may_evict

    node.is_synced = False
    assert not node.may_evict
