"""Tests for building eviction requests and for interpreting the responses to rejected evictions."""

from __future__ import annotations

import pytest

from kube.client.api_errors import ApiError
from kube.evictions.requests import (
    DELETION_REMEDY,
    ESCALATION_REMEDY,
    MAX_MESSAGE_CHARACTERS,
    build_eviction,
    build_eviction_path,
    build_grace_options,
    interpret_error,
)
from kube.paths import Object
from kube.pods import DrainOptions
from tests.kube.samples import make_pod


def make_error(status: int, message: str, *causes: Object) -> ApiError:
    return ApiError(status, message, {"message": message, "details": {"causes": list(causes)}})


BUDGET_MESSAGE = "The disruption budget keep needs 3 healthy pods and has 3 currently"
WEBHOOK_DENIAL = 'admission webhook "w.example.com" denied the request:'
BUDGET_CAUSE = {"reason": "DisruptionBudget", "message": BUDGET_MESSAGE}


@pytest.mark.parametrize(
    ("error", "reason", "budget"),
    [
        pytest.param(
            make_error(429, "Cannot evict", BUDGET_CAUSE),
            "DisruptionBudget",
            "keep",
            id="429 because of a PDB",
        ),
        pytest.param(
            make_error(403, "Forbidden", BUDGET_CAUSE),
            "DisruptionBudget",
            "keep",
            id="403 because a PDB's status is outdated",
        ),
        pytest.param(make_error(429, "too many requests"), "Busy", "", id="429 because the server is busy"),
        pytest.param(
            make_error(500, "This pod has more than one PodDisruptionBudget, which the eviction subresource does not"),
            *("MultipleBudgets", ""),
            id="500 because of two PDBs",
        ),
        pytest.param(
            make_error(403, "is being terminated", {"reason": "NamespaceTerminating"}),
            *("NamespaceTerminating", ""),
            id="namespace",
        ),
        pytest.param(make_error(403, "cannot create resource"), "Forbidden", "", id="no permission"),
        pytest.param(make_error(500, "etcd is unavailable"), "Error", "", id="500"),
        pytest.param(make_error(429, f"{WEBHOOK_DENIAL} not yet"), "Error", "", id="429 from a webhook"),
        pytest.param(
            make_error(429, f"{WEBHOOK_DENIAL} not yet", BUDGET_CAUSE),
            "Error",
            "",
            id="429 from a webhook that names a PDB",
        ),
        pytest.param(make_error(404, f"{WEBHOOK_DENIAL} not found"), "Error", "", id="404 from a webhook"),
        pytest.param(make_error(403, f"{WEBHOOK_DENIAL} no"), "Forbidden", "", id="403 from a webhook"),
        pytest.param(
            make_error(504, 'Timeout: couldn\'t update PodDisruptionBudget "keep" due to conflicts'),
            *("Changing", ""),
            id="504 because of conflicts",
        ),
        pytest.param(make_error(504, "Timeout: request did not complete"), "Error", "", id="504"),
        pytest.param(make_error(0, "timeout"), "NoAnswer", "", id="no response"),
    ],
)
def test_error_response_gives_reason_and_pdb_name(error: ApiError, reason: str, budget: str) -> None:
    """NMO-6, X-6: an error response gives a blocked pod with one-word reason, PDB name and the server's message."""
    blocked = interpret_error(make_pod("a"), error)

    assert (blocked.reason, blocked.budget) == (reason, budget)
    assert blocked.pod == {"namespace": "ns", "name": "a", "uid": "ns-a-uid"}
    assert blocked.message


@pytest.mark.parametrize(
    "error",
    [make_error(500, "x" * 10**6), make_error(429, "no", {**BUDGET_CAUSE, "message": "x" * 10**6})],
)
def test_long_error_message_of_eviction_is_truncated(error: ApiError) -> None:
    """NMO-12: a long error message is truncated, because a status may contain hundreds of messages."""
    message = interpret_error(make_pod("a"), error).message

    assert message == "x" * MAX_MESSAGE_CHARACTERS + f"… ({10**6 - MAX_MESSAGE_CHARACTERS} more characters)"


def test_eviction_of_pod_with_pdb_has_no_resource_version_precondition() -> None:
    """X-6: the eviction of a pod that a PDB selects has no resourceVersion precondition.

    The API server compares the resourceVersion only after it has counted the disruption. A mismatch would use up one
    allowed disruption for two minutes.
    """
    options = build_eviction(make_pod("a"), has_budget=True)["deleteOptions"]

    assert options == {"preconditions": {"uid": "ns-a-uid"}}


def test_eviction_has_uid_and_resource_version_preconditions() -> None:
    """NMO-6: an eviction is policy/v1, has uid and resourceVersion as preconditions, and sets no grace period."""
    assert build_eviction_path(make_pod("a")) == "/api/v1/namespaces/ns/pods/a/eviction"
    assert build_eviction(make_pod("a")) == {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": "a", "namespace": "ns"},
        "deleteOptions": {"preconditions": {"uid": "ns-a-uid", "resourceVersion": "1"}},
    }


@pytest.mark.parametrize(
    ("budget_message", "budget"),
    [
        (BUDGET_MESSAGE, "keep"),
        ("The disruption budget keep", "keep"),
        ("The disruption budget ", ""),
        ("Too many pods are gone already", ""),
        ("No", ""),
    ],
)
def test_pdb_name_is_parsed_from_error_message(budget_message: str, budget: str) -> None:
    """X-6: the PDB's name is parsed only from a message of the API server's known form."""
    cause = {"reason": "DisruptionBudget", "message": budget_message}

    assert interpret_error(make_pod(), make_error(429, "Cannot evict", cause)).budget == budget


def test_eviction_of_pending_pod_has_no_resource_version_precondition() -> None:
    """X-6a: the eviction of a pending pod has no resourceVersion precondition.

    The pod may become ready before the eviction. A mismatch would then use up one allowed disruption for two minutes.
    """
    metadata = {"namespace": "a", "name": "p", "uid": "u", "resourceVersion": "1"}
    eviction = build_eviction({"metadata": metadata, "spec": {}, "status": {"phase": "Pending"}})

    assert eviction["deleteOptions"]["preconditions"] == {"uid": "u"}


def test_forbidden_deletion_has_api_server_message_and_remedy() -> None:
    """DRN-1a: a forbidden deletion has the API server's message and a remedy; other errors are as for an eviction."""
    options = DrainOptions(disable_eviction=True)
    forbidden = interpret_error(make_pod("a"), make_error(403, "pods is forbidden"), options)

    assert (forbidden.pod["name"], forbidden.reason) == ("a", "DisableEviction")
    assert forbidden.message == f"pods is forbidden: {DELETION_REMEDY}"
    for error in (make_error(403, f"{WEBHOOK_DENIAL} no"), make_error(429, "slow down")):
        assert interpret_error(make_pod("a"), error, options) == interpret_error(make_pod("a"), error)


@pytest.mark.parametrize(
    ("error", "reason", "message"),
    [
        (make_error(403, "may not"), "Escalation", f"escalation step Delete: may not: {ESCALATION_REMEDY}"),
        (make_error(403, f"{WEBHOOK_DENIAL} no"), "Escalation", f"escalation step Delete: {WEBHOOK_DENIAL} no"),
        (make_error(500, "etcd is unavailable"), "Escalation", "escalation step Delete: etcd is unavailable"),
        (make_error(429, "slow down"), "Busy", "slow down"),
    ],
    ids=["no permission", "webhook", "error", "busy"],
)
def test_rejected_deletion_of_escalation_names_step_and_remedy(error: ApiError, reason: str, message: str) -> None:
    """Check that a rejected deletion names the escalation step, and the missing component if that is the cause."""
    options = DrainOptions(disable_eviction=True, escalation_action="Delete")

    refusal = interpret_error(make_pod("a"), error, options)

    assert (refusal.reason, refusal.message) == (reason, message)


@pytest.mark.parametrize(
    ("seconds", "delete_options"), [(None, {}), (0, {"gracePeriodSeconds": 0}), (30, {"gracePeriodSeconds": 30})]
)
def test_eviction_contains_grace_period_only_if_set(seconds: int | None, delete_options: Object) -> None:
    """DRN-1a: the grace period is sent only if it is set; zero counts as set."""
    options = DrainOptions(grace_period_seconds=seconds)

    assert build_grace_options(options) == delete_options
    sent_options = build_eviction(make_pod("a"), has_budget=True, options=options)["deleteOptions"]
    assert sent_options == {"preconditions": {"uid": "ns-a-uid"}, **delete_options}
