"""Tests for evacuation requests: evictions of virt-launcher pods, which a budget refuses but which notify KubeVirt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kube.budgets import (
    CREATED_BY_LABEL,
    WAIT_ANNOTATION_PREFIX,
    WAITS_FOR_KUBEVIRT,
    BlockedPod,
    EvictionPlan,
    plan_evictions,
)
from kube.evacuation_requests import add_evacuation_requests, replace_expected_refusals
from kube.paths import Object
from tests.kube.samples import make_budget, make_pod
from tests.proofs import proves

VIRT_LAUNCHER_POD = make_pod("launcher", labels={CREATED_BY_LABEL: "u"})
OTHER_POD = make_pod("other", labels={"app": "web"})


def plan_evictions_of_both_pods(reason: str) -> EvictionPlan:
    """Return the plan for the two sample pods, with this reason in the budget of the virt-launcher pod."""
    annotations: Object = {
        f"{WAIT_ANNOTATION_PREFIX}reason": reason,
        f"{WAIT_ANNOTATION_PREFIX}message": "reported message",
    }
    budget = make_budget("theirs", healthy=1, needed=1, selector={"matchLabels": {CREATED_BY_LABEL: "u"}})
    budget["metadata"].update(annotations=annotations, ownerReferences=[{"kind": "VirtualMachineInstance", "uid": "u"}])
    return plan_evictions([VIRT_LAUNCHER_POD, OTHER_POD], [budget])


@proves("DRN-10")
def test_evacuation_is_requested_for_pod_that_waits_for_kubevirt() -> None:
    """Check that a pod that waits for KubeVirt is queued, and its budget's reason reported instead of the refusal."""
    plan = plan_evictions_of_both_pods(WAITS_FOR_KUBEVIRT)
    (requested,) = add_evacuation_requests(plan, [VIRT_LAUNCHER_POD, OTHER_POD], lambda _blocked_pod: True).values()

    assert (plan.unbudgeted, plan.queues_by_budget, plan.blocked) == (
        [OTHER_POD],
        {"ns/theirs": [VIRT_LAUNCHER_POD]},
        [],
    )
    with_refusal = replace(requested, reason="Error", message="denied")
    assert replace_expected_refusals([with_refusal], {requested.pod["uid"]: requested}) == [requested]
    assert requested.message == "reported message"
    assert replace_expected_refusals([with_refusal], {}) == [with_refusal]


@proves("DRN-10")
def test_evacuation_is_not_requested_for_migrating_or_recently_requested_pod() -> None:
    """Check that a pod is not queued if its VMI already migrates, or if its next request is not due."""
    cases: list[tuple[str, Callable[[BlockedPod], bool]]]
    cases = [("Migrating", lambda _blocked_pod: True), (WAITS_FOR_KUBEVIRT, lambda _blocked_pod: False)]
    for reason, is_due in cases:
        plan = plan_evictions_of_both_pods(reason)
        initially_blocked = list(plan.blocked)
        assert add_evacuation_requests(plan, [VIRT_LAUNCHER_POD, OTHER_POD], is_due) == {}
        assert (plan.queues_by_budget, plan.blocked) == ({}, initially_blocked)
        assert [blocked_pod.reason for blocked_pod in initially_blocked] == [reason]
