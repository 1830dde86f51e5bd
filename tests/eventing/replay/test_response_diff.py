"""Unit tests for the comparison of two responses, and for the object changes that cause a difference."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing import events
from eventing.journal.entries import Attempt, StructuredEvent
from eventing.replay.function_client import FunctionResponse
from eventing.replay.object_changes import (
    BUDGET_KIND,
    MAINTENANCE_KIND,
    NO_CHANGES,
    NODE_KIND,
    POD_KIND,
    BudgetCounts,
    ObjectChange,
    ObjectChanges,
    RecordedObject,
    RunProgress,
)
from eventing.replay.response_diff import Difference, compare_responses

FIXED_TIME = datetime(2026, 1, 2, tzinfo=timezone.utc)
MAINTENANCE_UID, NODE_NAME = "uid-1", "node-1"
MAINTENANCE_1 = RecordedObject(MAINTENANCE_KIND, "nm", MAINTENANCE_UID, "")
NODE_1 = RecordedObject(NODE_KIND, NODE_NAME, "", "")


def build_reply(
    event_type: str, *, uid: str = MAINTENANCE_UID, data: dict[str, Any] | None = None, **extensions: Any
) -> StructuredEvent:
    """Build an event in structured mode, as in a function's response."""
    reference = {"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "name": "nm", "uid": uid}
    full_data = {"maintenance": reference, "node": NODE_NAME, **(data or {})}
    attributes = {"type": event_type, "id": "1", "source": "s", "subject": "nm", "maintenance": uid, "node": NODE_NAME}
    return {**attributes, **extensions, "data": full_data}


def build_pod(name: str, **fields: Any) -> dict[str, Any]:
    return {"namespace": "default", "name": name, "uid": f"uid-{name}", **fields}


def build_recorded_pod(name: str) -> RecordedObject:
    return RecordedObject(POD_KIND, f"default/{name}", f"uid-{name}", "")


def build_pods_evicted(*names: str, blocked: tuple[dict[str, Any], ...] = (), **fields: Any) -> StructuredEvent:
    data = {"evicted": [build_pod(name) for name in names], "blocked": list(blocked), "error": "", **fields}
    return build_reply(events.PODS_EVICTED, data=data)


def compare_replies(
    function: str,
    recorded: list[StructuredEvent],
    current: list[StructuredEvent],
    changes: dict[RecordedObject, ObjectChange] | None = None,
) -> list[Difference]:
    attempt = Attempt("s", "e-1", function, FIXED_TIME, 0.1, 200, tuple(recorded))
    return compare_responses(
        attempt, FunctionResponse(function, 200, 0.2, tuple(current)), ObjectChanges(changes or {})
    )


def summarize_differences(differences: list[Difference]) -> list[tuple[str, bool]]:
    """Return each difference's field, and whether a known cause explains the difference."""
    return [(difference.field, bool(difference.explained)) for difference in differences]


BEGUN, CORDONED, DRAINED = (
    build_reply(event_type) for event_type in (events.MAINTENANCE_BEGUN, events.NODE_CORDONED, events.NODE_DRAINED)
)
TAINTED, DRIFTED, RESTORED, FAILED, PENDING = (
    build_reply(event_type)
    for event_type in (
        events.NODE_TAINTED,
        events.NODE_DRIFTED,
        events.NODE_RESTORED,
        events.MAINTENANCE_STEP_FAILED,
        events.MAINTENANCE_PENDING,
    )
)


def test_difference_names_event_function_field_and_values() -> None:
    """X-2: a difference names the event, the function, the field, and the recorded and the current value."""
    (difference,) = compare_replies("cordon", [CORDONED], [build_reply(events.NODE_CORDONED, data={"note": "new"})])

    assert difference == Difference("e-1", "cordon", "data.note", None, "new")


@pytest.mark.parametrize(
    "invalid_fields", [{"maintenance": []}, {"node": {}}, {"data": "x"}, {"data": ["x"]}, {"subject": {}}]
)
@pytest.mark.parametrize("function", ["evict", "status", "cordon"])
def test_malformed_responses_are_compared(invalid_fields: dict[str, Any], function: str) -> None:
    """X-1: comparing malformed responses raises no error, because any client may have sent the recorded event."""
    recorded = {"id": "1", "type": events.PODS_EVICTED, **invalid_fields}

    assert compare_replies(function, [recorded], [])
    assert compare_replies(function, [recorded], [build_pods_evicted("a")])


@pytest.mark.parametrize("name", ["id", "time", "traceparent", "replay", "dryrun"])
def test_volatile_attributes_are_not_compared(name: str) -> None:
    """X-2: attributes that differ in every execution are not compared: ids, times, traces and replay extensions."""
    assert compare_replies("cordon", [CORDONED], [{**CORDONED, name: "another"}]) == []


@pytest.mark.parametrize("name", ["podsVersion", "budgetsVersion"])
def test_resource_versions_of_listed_objects_are_not_compared(name: str) -> None:
    """X-2: the resourceVersions of the listed pods and PDBs in the event's data are not compared."""
    recorded, current = (
        build_reply(events.PODS_EVICTED, data={"evicted": [build_pod("a")], name: version}) for version in "12"
    )

    assert compare_replies("evict", [recorded], [current]) == []


FAILURE_CASES = {
    "same text": (
        (503, "other clients keep changing the status"),
        (503, "other clients keep\nchanging the status "),
        [],
    ),
    "different text": (
        *((503, "other clients keep changing the status"), (503, "no response from the API server")),
        [("503 other clients keep changing the status", "503 no response from the API server")],
    ),
    "different status": ((503, "away"), (500, "away"), [("503 away", "500 away")]),
    "repaired": ((503, "away"), (200, ""), [("503 away", "200")]),
    "broken": ((204, ""), (503, "away"), [("204", "503 away")]),
}


@pytest.mark.parametrize(("recorded", "current", "expected"), FAILURE_CASES.values(), ids=FAILURE_CASES)
def test_failures_are_compared_by_status_and_text(
    recorded: tuple[int, str], current: tuple[int, str], expected: list[tuple[str, str]]
) -> None:
    """X-2: two failures are equal if their status and text are equal."""
    status, error = recorded
    attempt = Attempt("s", "e-1", "status", FIXED_TIME, 0.1, status, error=error)
    status, error = current

    differences = compare_responses(attempt, FunctionResponse("status", status, 0.2, error=error), NO_CHANGES)

    assert [(difference.then, difference.now) for difference in differences if difference.field == "status"] == expected
    assert len(differences) == len(expected)


REPLY_CASES = {
    "begin, drained since": ("begin", [BEGUN], [], {MAINTENANCE_1: ObjectChange.SUCCEEDED}, True),
    "begin, gone": ("begin", [BEGUN], [], {MAINTENANCE_1: ObjectChange.DELETED}, True),
    "begin, replaced": ("begin", [BEGUN], [], {MAINTENANCE_1: ObjectChange.REPLACED}, True),
    "begin, no reply": ("begin", [BEGUN], [], {}, False),
    "begin, node gone": ("begin", [BEGUN], [FAILED], {NODE_1: ObjectChange.DELETED}, True),
    "begin, failed": ("begin", [BEGUN], [FAILED], {}, False),
    "cordon, gone": ("cordon", [CORDONED], [], {MAINTENANCE_1: ObjectChange.DELETED}, True),
    "cordon, terminating": ("cordon", [CORDONED], [], {MAINTENANCE_1: ObjectChange.TERMINATING}, True),
    "cordon, drained since": ("cordon", [CORDONED], [], {MAINTENANCE_1: ObjectChange.SUCCEEDED}, False),
    "cordon, no reply": ("cordon", [CORDONED], [], {NODE_1: ObjectChange.CORDONED_AND_TAINTED}, False),
    "cordon, different type": ("cordon", [CORDONED], [TAINTED], {MAINTENANCE_1: ObjectChange.DELETED}, False),
    "cordon, now replies": ("cordon", [], [CORDONED], {MAINTENANCE_1: ObjectChange.DELETED}, False),
    "evict, gone": ("evict", [DRAINED], [], {MAINTENANCE_1: ObjectChange.DELETED}, True),
    "evict, drained since": ("evict", [DRAINED], [], {MAINTENANCE_1: ObjectChange.SUCCEEDED}, True),
    "evict, pods gone": (
        "evict",
        [build_pods_evicted("a")],
        [DRAINED],
        {build_recorded_pod("a"): ObjectChange.DELETED},
        True,
    ),
    "evict, some pods gone": (
        "evict",
        [build_pods_evicted("a", "b")],
        [DRAINED],
        {build_recorded_pod("a"): ObjectChange.DELETED},
        False,
    ),
    "evict, pods terminating": (
        "evict",
        [build_pods_evicted("a")],
        [],
        {build_recorded_pod("a"): ObjectChange.TERMINATING},
        True,
    ),
    "evict, pods still exist": ("evict", [build_pods_evicted("a")], [DRAINED], {}, False),
    "evict, no longer drained": ("evict", [DRAINED], [build_pods_evicted("a")], {}, False),
    "evict, prepared since": (
        "evict",
        [DRIFTED],
        [build_pods_evicted("a")],
        {NODE_1: ObjectChange.CORDONED_AND_TAINTED},
        True,
    ),
    "evict, drifted": ("evict", [build_pods_evicted("a")], [DRIFTED], {}, False),
    "restore, gone": ("restore", [RESTORED], [], {MAINTENANCE_1: ObjectChange.DELETED}, True),
    "restore, still terminating": ("restore", [RESTORED], [], {MAINTENANCE_1: ObjectChange.TERMINATING}, False),
    "guard, cordoned again": ("guard", [DRIFTED], [], {NODE_1: ObjectChange.CORDONED_AND_TAINTED}, True),
    "guard, no reply": ("guard", [DRIFTED], [], {}, False),
    "guard, node gone": ("guard", [DRIFTED], [], {NODE_1: ObjectChange.DELETED}, True),
    "resync, drained since": ("resync", [TAINTED], [], {MAINTENANCE_1: ObjectChange.SUCCEEDED}, True),
    "status, step has begun": ("status", [build_reply(events.DRAIN_ESCALATED)], [], {}, True),
    "status, step is due": ("status", [], [build_reply(events.DRAIN_ESCALATED)], {}, True),
    "evict, coalesced": ("evict", [], [build_pods_evicted("a")], {}, True),
    "cordon, new": ("cordon", [], [TAINTED], {}, False),
    "resync, another maintenance waits": ("resync", [], [build_reply(events.NODE_TAINTED, uid="2")], {}, True),
    "resync, waits for another event": ("resync", [PENDING], [TAINTED], {}, False),
}


@pytest.mark.parametrize(
    ("function", "recorded", "current", "changes", "is_explained"), REPLY_CASES.values(), ids=REPLY_CASES
)
def test_different_reply_is_explained_by_changed_objects(
    function: str,
    recorded: list[StructuredEvent],
    current: list[StructuredEvent],
    changes: dict[RecordedObject, ObjectChange],
    is_explained: bool,
) -> None:
    """X-2: a missing reply, or one of another type, is explained by a matching change of an object in the reply."""
    assert summarize_differences(compare_replies(function, recorded, current, changes)) == [("answer", is_explained)]


BLOCKED_POD = build_pod("b", reason="DisruptionBudget", budget="web", healthy=3, needed=2, message="needs 2")
UNPROCESSED_POD = build_pod("b", reason="NoTime", budget="", message="not evicted yet")
BLOCKED_POD_MORE_HEALTHY = {**BLOCKED_POD, "healthy": 5}

POD_LIST_CASES = {
    "same pods in different order": (build_pods_evicted("a", "b"), build_pods_evicted("b", "a"), {}, []),
    "one pod gone": (
        build_pods_evicted("a", "b"),
        build_pods_evicted("b"),
        {build_recorded_pod("a"): ObjectChange.DELETED},
        [("data.evicted[default/a]", True)],
    ),
    "one pod missing": (
        build_pods_evicted("a", "b"),
        build_pods_evicted("b"),
        {},
        [("data.evicted[default/a]", False)],
    ),
    "one pod missing, another deleted": (
        build_pods_evicted("a", "b"),
        build_pods_evicted(),
        {build_recorded_pod("a"): ObjectChange.DELETED},
        [("data.evicted[default/a]", True), ("data.evicted[default/b]", False)],
    ),
    "one pod new": (build_pods_evicted("a"), build_pods_evicted("a", "c"), {}, [("data.evicted[default/c]", False)]),
    "different healthy count": (
        build_pods_evicted("a", blocked=(BLOCKED_POD,)),
        build_pods_evicted("a", blocked=(BLOCKED_POD_MORE_HEALTHY,)),
        {},
        [("data.blocked[default/b].healthy", False)],
    ),
    "deferred pod evicted, another deleted": (
        build_pods_evicted("a", blocked=(UNPROCESSED_POD,)),
        build_pods_evicted("a", "b"),
        {build_recorded_pod("a"): ObjectChange.DELETED},
        [("data.evicted[default/b]", True), ("data.blocked[default/b]", True)],
    ),
    "different error, one pod deleted": (
        build_pods_evicted("a", error="pod a waits"),
        build_pods_evicted("a"),
        {build_recorded_pod("a"): ObjectChange.DELETED},
        [("data.error", True)],
    ),
    "unknown field, one pod deleted": (
        build_pods_evicted("a", note="1"),
        build_pods_evicted("a", note="2"),
        {build_recorded_pod("a"): ObjectChange.DELETED},
        [("data.note", False)],
    ),
}


WEB_BUDGET = RecordedObject(BUDGET_KIND, "default/web", "", "")
BUDGET_NAME = "poddisruptionbudget default/web"
EVICTED_REPLY, BLOCKED_REPLY = build_pods_evicted("a", "b"), build_pods_evicted("a", blocked=(BLOCKED_POD,))
POD_A_DELETED = {build_recorded_pod("a"): ObjectChange.DELETED}
BUDGET_CASES = {
    "nothing changed": ({}, BudgetCounts(3, 2), ""),
    "another pod deleted": (POD_A_DELETED, BudgetCounts(3, 2), ""),
    "budget counts more pods": (
        {build_recorded_pod("a"): ObjectChange.DELETED},
        BudgetCounts(5, 2),
        f"{BUDGET_NAME} needs 2 healthy pods and has 5 now",
    ),
    "budget needs fewer pods": ({}, BudgetCounts(3, 1), f"{BUDGET_NAME} needs 1 healthy pods and has 3 now"),
    "budget open, its counts were stale": (
        POD_A_DELETED,
        BudgetCounts(3, 2, 1),
        f"{BUDGET_NAME} needs 2 healthy pods and has 3 now, and allows 1 eviction",
    ),
    "budget deleted": ({WEB_BUDGET: ObjectChange.DELETED}, None, f"{BUDGET_NAME} no longer exists"),
    "budget unknown": ({}, None, ""),
    "pod terminating": (
        {build_recorded_pod("b"): ObjectChange.TERMINATING},
        BudgetCounts(3, 2),
        "the pod is being deleted",
    ),
}


@pytest.mark.parametrize(
    "current",
    [build_pods_evicted("a", "b"), build_pods_evicted("a", blocked=(BLOCKED_POD_MORE_HEALTHY,))],
    ids=["evicted", "blocked"],
)
@pytest.mark.parametrize(("changes_by_object", "counts", "explanation"), BUDGET_CASES.values(), ids=BUDGET_CASES)
def test_difference_in_blocked_pod_is_explained_only_by_its_pod_or_budget(
    changes_by_object: dict[RecordedObject, ObjectChange],
    counts: BudgetCounts | None,
    explanation: str,
    current: StructuredEvent,
) -> None:
    """X-2: a difference in a blocked pod is explained only by changes of this pod or its PDB, not of other pods."""
    recorded = Attempt("s", "e-1", "evict", FIXED_TIME, 0.1, 200, (build_pods_evicted("a", blocked=(BLOCKED_POD,)),))
    changes = ObjectChanges(changes_by_object, budgets={"default/web": counts} if counts else {})

    differences = compare_responses(recorded, FunctionResponse("evict", 200, 0.2, (current,)), changes)

    assert {difference.explained for difference in differences} == {explanation}


@pytest.mark.parametrize(
    ("changes_by_object", "counts", "current", "explanation"),
    [
        pytest.param(POD_A_DELETED, BudgetCounts(3, 2), EVICTED_REPLY, "", id="another pod deleted"),
        pytest.param(
            {WEB_BUDGET: ObjectChange.DELETED},
            None,
            EVICTED_REPLY,
            f"{BUDGET_NAME} no longer exists",
            id="budget deleted",
        ),
        pytest.param(
            {},
            BudgetCounts(5, 2, 3),
            EVICTED_REPLY,
            f"{BUDGET_NAME} needs 2 healthy pods and has 5 now, and allows 3 evictions",
            id="open",
        ),
        pytest.param(
            {}, BudgetCounts(3, 2), BLOCKED_REPLY, f"{BUDGET_NAME} needs 2 healthy pods and has 3 now", id="counted now"
        ),
    ],
)
def test_current_budget_counts_explain_difference_if_recorded_counts_are_missing(
    changes_by_object: dict[RecordedObject, ObjectChange],
    counts: BudgetCounts | None,
    current: StructuredEvent,
    explanation: str,
) -> None:
    """X-2: if a blocked pod was recorded without its PDB's counts, the current counts explain a difference.

    Counts are missing if the API server's message contained none, or if the PDB was new.
    """
    blocked = build_pod("b", reason="DisruptionBudget", budget="web", message="The disruption budget web needs 2 ...")
    recorded = Attempt("s", "e-1", "evict", FIXED_TIME, 0.1, 200, (build_pods_evicted("a", blocked=(blocked,)),))
    changes = ObjectChanges(changes_by_object, budgets={"default/web": counts} if counts else {})

    differences = compare_responses(recorded, FunctionResponse("evict", 200, 0.2, (current,)), changes)

    assert {difference.explained for difference in differences} == {explanation}


@pytest.mark.parametrize(("recorded", "current", "changes", "expected"), POD_LIST_CASES.values(), ids=POD_LIST_CASES)
def test_lists_of_pods_are_compared_pod_by_pod(
    recorded: StructuredEvent,
    current: StructuredEvent,
    changes: dict[RecordedObject, ObjectChange],
    expected: list[tuple[str, bool]],
) -> None:
    """X-2: lists of pods are compared pod by pod; the deletion of a pod explains why it is not evicted again."""
    assert summarize_differences(compare_replies("evict", [recorded], [current], changes)) == expected


@pytest.mark.parametrize(("recorded", "current", "is_equal"), [(204, 204, True), (204, 503, False), (503, 204, False)])
def test_success_and_failure_are_reported_as_different(recorded: int, current: int, is_equal: bool) -> None:
    """X-6: a success and a failure are different, and two successes are equal."""
    attempt = Attempt("s", "e-1", "status", FIXED_TIME, 0.1, recorded, error="busy" if recorded > 400 else "")

    differences = compare_responses(
        attempt, FunctionResponse("status", current, 0.1, error="" if current < 400 else "busy"), NO_CHANGES
    )

    assert [difference.field for difference in differences] == ([] if is_equal else ["status"])


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DATA = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=4),
    st.recursive(
        LEAVES,
        lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(max_size=3), children),
        max_leaves=8,
    ),
    max_size=5,
)


@pytest.mark.slow
@given(data=DATA, status=st.sampled_from([200, 204]))
def test_equal_responses_have_no_differences(data: dict[str, Any], status: int) -> None:
    """X-2: equal responses have no differences, whatever their data."""
    reply = build_reply(events.NODE_CORDONED, data=data)

    assert compare_replies("cordon", [reply], [dict(reply)]) == []


@pytest.mark.slow
@given(data=DATA, name=st.text("abcxyz", min_size=1, max_size=4), value=st.integers(1, 9))
def test_changed_field_is_one_unexplained_difference(data: dict[str, Any], name: str, value: int) -> None:
    """X-2: a changed field is one unexplained difference, even if all objects in the reply have been deleted."""
    recorded, current = build_reply(events.NODE_CORDONED, data={**data, name: 0}), {**data, name: value}
    changes = {MAINTENANCE_1: ObjectChange.DELETED, NODE_1: ObjectChange.DELETED}

    assert summarize_differences(
        compare_replies("cordon", [recorded], [build_reply(events.NODE_CORDONED, data=current)], changes)
    ) == [(f"data.{name}", False)]


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(recorded=NAMES, random=st.randoms())
def test_order_of_pods_is_not_compared(recorded: list[str], random: Any) -> None:
    """NMO-6: the order of pods is not compared, because evictions run concurrently."""
    current = list(recorded)
    random.shuffle(current)

    assert compare_replies("evict", [build_pods_evicted(*recorded)], [build_pods_evicted(*current)]) == []


@given(recorded=NAMES, deleted_names=st.sets(st.sampled_from("abcdefgh")))
def test_missing_eviction_is_explained_only_if_pod_was_deleted(recorded: list[str], deleted_names: set[str]) -> None:
    """X-2: a missing eviction in the current response is explained if and only if the pod was deleted."""
    changes = {build_recorded_pod(name): ObjectChange.DELETED for name in deleted_names}

    differences = compare_replies("evict", [build_pods_evicted(*recorded)], [build_pods_evicted()], changes)

    assert {difference.field[-2] for difference in differences if difference.explained} == set(recorded) & deleted_names
    assert {difference.field[-2] for difference in differences if not difference.explained} == set(
        recorded
    ) - deleted_names


RUN_1 = RecordedObject("mutexrunconfig", "ns/run", "uid-r", "")


def build_run_reply(event_type: str, node: str = "") -> StructuredEvent:
    """Build a reply event about an upgrade run."""
    extensions = {"run": "uid-r", "subject": "run", **({"node": node, "partitionkey": node} if node else {})}
    data = {"run": {"name": "run", "uid": "uid-r"}, **({"node": node} if node else {})}
    return {"type": event_type, "id": "1", "source": "s", **extensions, "data": data}


def compare_with_run_progress(
    progress: RunProgress, function: str, recorded: list[StructuredEvent], current: list[StructuredEvent]
) -> list[tuple[str, bool]]:
    """Compare the replies for an existing run with this progress, and return a summary of the differences."""
    attempt = Attempt("s", "e-1", function, FIXED_TIME, 0.1, 200, tuple(recorded))
    changes = ObjectChanges({}, {"uid-r": progress})
    return summarize_differences(
        compare_responses(attempt, FunctionResponse(function, 200, 0.2, tuple(current)), changes)
    )


def test_different_reply_is_explained_if_run_has_advanced() -> None:
    """X-2: a different reply is explained if the upgrade run now waits for a different event or node."""
    progress = RunProgress("node.prejobs_done", "n2")
    assert compare_with_run_progress(progress, "pause-pools", [build_run_reply(events.POOLS_PAUSED)], []) == [
        ("answer", True)
    ]
    assert compare_with_run_progress(progress, "run-job", [], [build_run_reply(events.NODE_PREJOBS_DONE, "n2")]) == [
        ("answer", True)
    ]
    both_replies = [build_run_reply(events.NODE_PREJOBS_DONE, "n1")], [build_run_reply(events.NODE_PREJOBS_DONE, "n2")]
    assert compare_with_run_progress(progress, "run-job", *both_replies) == [
        ("node", True),
        ("partitionkey", True),
        ("data.node", True),
    ]
    assert compare_with_run_progress(
        progress, "resync-runs", [build_run_reply(events.NODE_PREJOBS_DONE, "n2")], []
    ) == [("answer", True)]


def test_different_reply_is_not_explained_if_run_is_unchanged() -> None:
    """X-2: an upgrade run with unchanged progress explains no difference."""
    progress = RunProgress("pools.paused", "n1")
    assert compare_with_run_progress(progress, "pause-pools", [build_run_reply(events.POOLS_PAUSED)], []) == [
        ("answer", False)
    ]
    assert compare_with_run_progress(progress, "run-job", [], [build_run_reply(events.NODE_PREJOBS_DONE, "n1")]) == [
        ("answer", False)
    ]
    both_replies = [build_run_reply(events.NODE_PREJOBS_DONE, "n1")], [build_run_reply(events.NODE_PREJOBS_DONE, "n2")]
    assert not any(is_explained for _, is_explained in compare_with_run_progress(progress, "run-job", *both_replies))


@pytest.mark.parametrize("change", [ObjectChange.DELETED, ObjectChange.REPLACED, ObjectChange.TERMINATING])
def test_deletion_of_run_explains_only_missing_reply(change: ObjectChange) -> None:
    """X-2: the deletion of an upgrade run explains a missing reply, but no other difference."""
    changes = {RUN_1: change}
    assert summarize_differences(
        compare_replies("pause-pools", [build_run_reply(events.POOLS_PAUSED)], [], changes)
    ) == [("answer", True)]
    other = [build_run_reply(events.POOLS_CLAIMED)]
    assert summarize_differences(
        compare_replies("pause-pools", [build_run_reply(events.POOLS_PAUSED)], other, changes)
    ) == [("answer", False)]


def test_missing_or_additional_reply_from_protect_is_explained() -> None:
    """Check that a missing or additional reply of `protect` is explained, and that a different reply is not.

    `protect` replies only if it has written something, which depends on the current state.
    """
    reply = build_reply(events.VIRT_LAUNCHERS_WAIT_CHANGED)

    removed, added = compare_replies("protect", [reply], []), compare_replies("protect", [], [reply])
    assert [difference.explained for difference in removed] == ["the recorded write is still in place"]
    assert [difference.explained for difference in added] == ["the state that the function writes has changed since"]
    assert summarize_differences(compare_replies("protect", [reply], [FAILED])) == [("answer", False)]
