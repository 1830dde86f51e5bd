"""Tests of eviction requests, and of the meaning of refused evictions."""

from __future__ import annotations

import pytest

from kube.evictions import (
    DELETING,
    LONGEST_MESSAGE,
    eviction_of,
    eviction_path,
    grace_of,
    refusal_of,
    refusal_of_deletion,
)
from kube.paths import Object
from kube.pods import DrainOptions
from tests.kube.samples import pod

Answer = tuple[int, str, Object]
"""HTTP status, message and body of an error response."""


def refused(status: int, message: str, *causes: Object) -> Answer:
    return status, message, {"message": message, "details": {"causes": list(causes)}}


SENTENCE = "The disruption budget keep needs 3 healthy pods and has 3 currently"
DENIED = 'admission webhook "w.example.com" denied the request:'
BUDGET = {"reason": "DisruptionBudget", "message": SENTENCE}


@pytest.mark.parametrize(
    ("answer", "reason", "budget"),
    [
        pytest.param(refused(429, "Cannot evict", BUDGET), "DisruptionBudget", "keep", id="429 by a budget"),
        pytest.param(refused(429, "too many requests"), "Busy", "", id="429 of the server itself"),
        pytest.param(
            refused(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"),
            *("MultipleBudgets", ""),
            id="500 by two budgets",
        ),
        pytest.param(
            refused(403, "is being terminated", {"reason": "NamespaceTerminating"}),
            *("NamespaceTerminating", ""),
            id="namespace",
        ),
        pytest.param(refused(403, "cannot create resource"), "Forbidden", "", id="no right"),
        pytest.param(refused(500, "etcd is away"), "Error", "", id="500"),
        pytest.param(refused(429, f"{DENIED} not yet"), "Error", "", id="429 by a webhook"),
        pytest.param(refused(429, f"{DENIED} not yet", BUDGET), "Error", "", id="429 by a webhook that names a budget"),
        pytest.param(refused(404, f"{DENIED} not found"), "Error", "", id="404 by a webhook"),
        pytest.param(refused(403, f"{DENIED} no"), "Forbidden", "", id="403 by a webhook"),
        pytest.param(
            refused(504, 'Timeout: couldn\'t update PodDisruptionBudget "keep" due to conflicts'),
            *("Changing", ""),
            id="504 by conflicts",
        ),
        pytest.param(refused(504, "Timeout: request did not complete"), "Error", "", id="504"),
    ],
)
def test_a_refused_eviction_is_data(answer: Answer, reason: str, budget: str) -> None:
    """NMO-6, X-6: a refusal has the pod, a one-word reason, the budget's name and the server's message."""
    blocked = refusal_of(pod("a"), *answer)

    assert (blocked.reason, blocked.budget) == (reason, budget)
    assert blocked.pod == {"namespace": "ns", "name": "a", "uid": "ns-a-uid"}
    assert blocked.message


@pytest.mark.parametrize("answer", [refused(500, "x" * 10**6), refused(429, "no", {**BUDGET, "message": "x" * 10**6})])
def test_of_long_words_the_beginning_is_kept(answer: Answer) -> None:
    """NMO-12: long messages are truncated, because one status may contain hundreds of them."""
    message = refusal_of(pod("a"), *answer).message

    assert message == "x" * LONGEST_MESSAGE + f"… ({10**6 - LONGEST_MESSAGE} more characters)"


def test_behind_a_budget_the_uid_alone_is_the_precondition() -> None:
    """X-6: an eviction under a budget has no resourceVersion precondition.

    The API server compares the version only after the budget has counted the pod. A mismatch would use up one allowed
    disruption for two minutes.
    """
    options = eviction_of(pod("a"), budgeted=True)["deleteOptions"]

    assert options == {"preconditions": {"uid": "ns-a-uid"}}


def test_an_eviction_is_of_this_very_pod() -> None:
    """NMO-6: an eviction is policy/v1, has uid and version as preconditions, and uses the pod's own grace period."""
    assert eviction_path(pod("a")) == "/api/v1/namespaces/ns/pods/a/eviction"
    assert eviction_of(pod("a")) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "ns-a-uid", "resourceVersion": "1"}},
    }


@pytest.mark.parametrize(
    ("sentence", "budget"),
    [
        (SENTENCE, "keep"),
        ("The disruption budget keep", "keep"),
        ("The disruption budget ", ""),
        ("Too many pods are gone already", ""),
        ("No", ""),
    ],
)
def test_the_budget_is_the_one_that_the_server_names(sentence: str, budget: str) -> None:
    """X-6: the budget's name is taken only from a message in the known form."""
    cause = {"reason": "DisruptionBudget", "message": sentence}

    assert refusal_of(pod(), *refused(429, "Cannot evict", cause)).budget == budget


def test_a_pod_that_waits_is_evicted_by_its_uid_alone() -> None:
    """X-6a: the eviction of a pending pod has no resourceVersion precondition.

    The pod may become ready before the eviction. A mismatch would then use up one allowed disruption for two minutes.
    """
    metadata = {"namespace": "a", "name": "p", "uid": "u", "resourceVersion": "1"}
    waiting = eviction_of({"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})

    assert waiting["deleteOptions"]["preconditions"] == {"uid": "u"}


def test_a_deletion_without_the_right_names_the_component() -> None:
    """DRN-1a: a forbidden deletion has the server's message and the remedy; other refusals are those of an eviction."""
    right = refusal_of_deletion(pod("a"), *refused(403, "pods is forbidden"))
    webhook: Answer = (403, 'admission webhook "w" denied the request: no', {})
    busy = refused(429, "slow down")

    assert (right.pod["name"], right.reason) == ("a", "DisableEviction")
    assert right.message == f"pods is forbidden: {DELETING}"
    assert refusal_of_deletion(pod("a"), *webhook) == refusal_of(pod("a"), *webhook)
    assert refusal_of_deletion(pod("a"), *busy) == refusal_of(pod("a"), *busy)


@pytest.mark.parametrize(
    ("seconds", "sent"), [(None, {}), (0, {"gracePeriodSeconds": 0}), (30, {"gracePeriodSeconds": 30})]
)
def test_the_grace_period_is_the_pods_own_or_that_of_the_drain(seconds: int | None, sent: Object) -> None:
    """DRN-1a: the grace period is sent only if it is set; zero counts as set."""
    options = DrainOptions(grace_period_seconds=seconds)

    assert grace_of(options) == sent
    sends = eviction_of(pod("a"), budgeted=True, options=options)["deleteOptions"]
    assert sends == {"preconditions": {"uid": "ns-a-uid"}, **sent}
