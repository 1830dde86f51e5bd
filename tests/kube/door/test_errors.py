"""What an answer of the API server means, and what an eviction's refusal says."""

from __future__ import annotations

import pytest

from kube.door.api import Object
from kube.door.errors import ApiError, Conflict, Denied, NotFound, Rejected, Unavailable, error_of
from kube.eviction import eviction_of, eviction_path, refusal_of, summary
from tests.kube.samples import pod

CAUSES = {"details": {"causes": [{"reason": "FieldValueInvalid"}]}}


@pytest.mark.parametrize(
    ("status", "body", "patch", "kind"),
    [
        pytest.param(404, {}, False, NotFound, id="404"),
        pytest.param(410, {}, False, NotFound, id="410"),
        pytest.param(409, {}, False, Conflict, id="409"),
        pytest.param(422, {}, True, Conflict, id="failed test of a JSON patch"),
        pytest.param(422, CAUSES, True, Rejected, id="JSON patch to an invalid value"),
        pytest.param(422, {}, False, Rejected, id="422 of anything else"),
        pytest.param(400, {}, True, Rejected, id="400"),
        pytest.param(401, {}, False, Denied, id="401"),
        pytest.param(403, {}, False, Denied, id="403"),
        pytest.param(429, {}, False, Unavailable, id="429"),
        pytest.param(500, {}, False, Unavailable, id="500"),
        pytest.param(503, {}, False, Unavailable, id="503"),
    ],
)
def test_an_answer_is_one_of_five_errors(status: int, body: Object, patch: bool, kind: type[ApiError]) -> None:
    """X-6, NMO-4: each status is the error that tells what to do next."""
    error = error_of(status, {**body, "message": "its own words"}, patch=patch)

    assert type(error) is kind
    assert (error.status, error.message, str(error)) == (status, "its own words", "its own words")


def test_an_answer_without_words_gets_some() -> None:
    """X-6: a proxy's answer has no Status object."""
    assert error_of(502, {}).message == "the API server answered 502"


def refused(status: int, message: str, *causes: Object) -> ApiError:
    return error_of(status, {"message": message, "details": {"causes": list(causes)}})


SAID = "The disruption budget keep needs 3 healthy pods and has 3 currently"
BUDGET = {"reason": "DisruptionBudget", "message": SAID}


@pytest.mark.parametrize(
    ("error", "reason", "budget"),
    [
        pytest.param(refused(429, "Cannot evict", BUDGET), "DisruptionBudget", "keep", id="429 by a budget"),
        pytest.param(refused(429, "too many requests"), "DisruptionBudget", "", id="429 without a cause"),
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
    ],
)
def test_a_refused_eviction_is_data(error: ApiError, reason: str, budget: str) -> None:
    """NMO-6, X-6: a refusal says which pod, why in one word, by which budget, and the server's sentence."""
    blocked = refusal_of(pod("a"), error)

    assert (blocked.reason, blocked.budget) == (reason, budget)
    assert blocked.pod == {"namespace": "ns", "name": "a", "uid": "ns-a-uid"}
    assert blocked.message


def test_an_eviction_is_of_this_very_pod() -> None:
    """NMO-6: policy/v1, with uid and version as preconditions and the pod's own grace period."""
    assert eviction_path(pod("a")) == "/api/v1/namespaces/ns/pods/a/eviction"
    assert eviction_of(pod("a"))["deleteOptions"] == {"preconditions": {"uid": "ns-a-uid", "resourceVersion": "1"}}


def test_the_summary_names_five() -> None:
    """NMO-13: lastError is one line, however many pods are blocked; those of one reason share its words."""
    blocked = [refusal_of(pod(name), refused(429, "no", BUDGET)) for name in "gfedca"]
    other = refusal_of(pod("b"), refused(429, "slow down"))

    assert summary([*blocked, other]) == f"ns/a, ns/c, ns/d, ns/e: {SAID}; ns/b: {other.message}; and 2 more"
    assert summary([]) == ""
