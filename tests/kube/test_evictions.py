"""Evictions as data: what is asked of the subresource, and what its refusals mean."""

from __future__ import annotations

import pytest

from kube.evictions import eviction_of, eviction_path, refusal_of, summary
from kube.paths import Object
from tests.kube.samples import pod

Answer = tuple[int, str, Object]
"""Status, message and body of an error."""


def refused(status: int, message: str, *causes: Object) -> Answer:
    return status, message, {"message": message, "details": {"causes": list(causes)}}


SENTENCE = "The disruption budget keep needs 3 healthy pods and has 3 currently"
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
        pytest.param(
            refused(504, 'Timeout: couldn\'t update PodDisruptionBudget "keep" due to conflicts'),
            *("Changing", ""),
            id="504 by conflicts",
        ),
        pytest.param(refused(504, "Timeout: request did not complete"), "Error", "", id="504"),
    ],
)
def test_a_refused_eviction_is_data(answer: Answer, reason: str, budget: str) -> None:
    """NMO-6, X-6: a refusal says which pod, why in one word, by which budget, and the server's sentence."""
    blocked = refusal_of(pod("a"), *answer)

    assert (blocked.reason, blocked.budget) == (reason, budget)
    assert blocked.pod == {"namespace": "ns", "name": "a", "uid": "ns-a-uid"}
    assert blocked.message


def test_an_eviction_is_of_this_very_pod() -> None:
    """NMO-6: policy/v1, with uid and version as preconditions and the pod's own grace period."""
    assert eviction_path(pod("a")) == "/api/v1/namespaces/ns/pods/a/eviction"
    assert eviction_of(pod("a"))["deleteOptions"] == {"preconditions": {"uid": "ns-a-uid", "resourceVersion": "1"}}


def test_the_summary_names_five() -> None:
    """NMO-13: lastError is one line, however many pods are blocked; those of one reason share its words."""
    blocked = [refusal_of(pod(name), *refused(429, "no", BUDGET)) for name in "gfedca"]
    other = refusal_of(pod("b"), *refused(429, "slow down"))

    assert summary([*blocked, other]) == f"ns/a, ns/c, ns/d, ns/e: {SENTENCE}; ns/b: {other.message}; and 2 more"
    assert summary([]) == ""
