"""Tests of the virt-launcher pods that are evicted although a budget refuses it, so that KubeVirt migrates them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kube.budgets import CREATED_BY, WAITS, WAITS_FOR_KUBEVIRT, Blocked, Plan, plan
from kube.evacuation_requests import request, worded
from kube.paths import Object
from tests.kube.samples import budget, pod
from tests.proofs import proves

LAUNCHER = pod("launcher", labels={CREATED_BY: "u"})
OTHER = pod("other", labels={"app": "web"})


def planned(reason: str) -> Plan:
    """Return the plan for both pods, where the budget of the virt-launcher pod states this reason."""
    words: Object = {f"{WAITS}reason": reason, f"{WAITS}message": "in its words"}
    known = budget("theirs", healthy=1, needed=1, selector={"matchLabels": {CREATED_BY: "u"}})
    known["metadata"].update(annotations=words, ownerReferences=[{"kind": "VirtualMachineInstance", "uid": "u"}])
    return plan([LAUNCHER, OTHER], [known])


@proves("DRN-10")
def test_who_waits_for_kubevirt_is_requested() -> None:
    """Queue a pod that waits for KubeVirt next to the others, and report its budget's reason instead of the refusal."""
    found = planned(WAITS_FOR_KUBEVIRT)
    (known,) = request(found, [LAUNCHER, OTHER], lambda _item: True).values()

    assert (found.free, found.queues, found.blocked) == ([OTHER], {"ns/theirs": [LAUNCHER]}, [])
    refused = replace(known, reason="Error", message="denied")
    assert worded([refused], {known.pod["uid"]: known}) == [known]
    assert known.message == "in its words"
    assert worded([refused], {}) == [refused]


@proves("DRN-10")
def test_who_waits_for_something_else_or_was_requested_is_not() -> None:
    """Queue no pod that already migrates, or whose request is not due."""
    asked: list[tuple[str, Callable[[Blocked], bool]]]
    asked = [("Migrating", lambda _item: True), (WAITS_FOR_KUBEVIRT, lambda _item: False)]
    for reason, is_due in asked:
        found = planned(reason)
        before = list(found.blocked)
        assert request(found, [LAUNCHER, OTHER], is_due) == {}
        assert (found.queues, found.blocked) == ({}, before)
        assert [item.reason for item in before] == [reason]
