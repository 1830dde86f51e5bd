"""Unit tests of when two responses are the same, and of what explains a difference."""

from __future__ import annotations

from datetime import datetime, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventing import events
from eventing.journal.entries import Attempt, Structured
from eventing.replay.function_client import Answer
from eventing.replay.object_changes import (
    BUDGET,
    MAINTENANCE,
    NO_CHANGES,
    NODE,
    POD,
    Change,
    Changes,
    Counts,
    RecordedObject,
    Standing,
)
from eventing.replay.response_diff import Difference, compare

AT = datetime(2026, 1, 2, tzinfo=timezone.utc)
UID, NODE_NAME = "uid-1", "node-1"
MINE = RecordedObject(MAINTENANCE, "nm", UID, "")
NODE_1 = RecordedObject(NODE, NODE_NAME, "", "")


def reply(kind: str, *, uid: str = UID, data: dict[str, Any] | None = None, **more: Any) -> Structured:
    """Build an event of a response, in structured mode."""
    reference = {"apiVersion": "nodemaintenance.medik8s.io/v1beta1", "name": "nm", "uid": uid}
    said = {"maintenance": reference, "node": NODE_NAME, **(data or {})}
    attributes = {"type": kind, "id": "1", "source": "s", "subject": "nm", "maintenance": uid, "node": NODE_NAME}
    return {**attributes, **more, "data": said}


def pod(name: str, **more: Any) -> dict[str, Any]:
    return {"namespace": "default", "name": name, "uid": f"uid-{name}", **more}


def named(name: str) -> RecordedObject:
    return RecordedObject(POD, f"default/{name}", f"uid-{name}", "")


def evicted(*names: str, blocked: tuple[dict[str, Any], ...] = (), **more: Any) -> Structured:
    data = {"evicted": [pod(name) for name in names], "blocked": list(blocked), "error": "", **more}
    return reply(events.PODS_EVICTED, data=data)


def differences(
    function: str, then: list[Structured], now: list[Structured], changes: dict[RecordedObject, Change] | None = None
) -> list[Difference]:
    attempt = Attempt("s", "e-1", function, AT, 0.1, 200, tuple(then))
    return compare(attempt, Answer(function, 200, 0.2, tuple(now)), Changes(changes or {}))


def explained_fields(found: list[Difference]) -> list[tuple[str, bool]]:
    """Return each difference's field, and whether it is explained."""
    return [(difference.field, bool(difference.explained)) for difference in found]


BEGUN, CORDONED, DRAINED = (
    reply(kind) for kind in (events.MAINTENANCE_BEGUN, events.NODE_CORDONED, events.NODE_DRAINED)
)
TAINTED, DRIFTED, RESTORED, FAILED, FOUND = (
    reply(kind)
    for kind in (
        events.NODE_TAINTED,
        events.NODE_DRIFTED,
        events.NODE_RESTORED,
        events.MAINTENANCE_FAILED,
        events.MAINTENANCE_FOUND,
    )
)


def test_a_difference_names_event_function_field_then_and_now() -> None:
    """X-2: A difference names the event, the function, the field, and the recorded and the current value."""
    (found,) = differences("cordon", [CORDONED], [reply(events.NODE_CORDONED, data={"note": "new"})])

    assert found == Difference("e-1", "cordon", "data.note", None, "new")


@pytest.mark.parametrize("odd", [{"maintenance": []}, {"node": {}}, {"data": "x"}, {"data": ["x"]}, {"subject": {}}])
@pytest.mark.parametrize("function", ["evict", "status", "cordon"])
def test_an_answer_of_any_shape_is_compared(odd: dict[str, Any], function: str) -> None:
    """X-1: Responses of any shape are compared, since the recorded event may come from any client."""
    then = {"id": "1", "type": events.PODS_EVICTED, **odd}

    assert differences(function, [then], [])
    assert differences(function, [then], [evicted("a")])


@pytest.mark.parametrize("name", ["id", "time", "traceparent", "replay", "dryrun"])
def test_what_differs_each_time_is_not_compared(name: str) -> None:
    """X-2: Attributes that differ in every execution are not compared: ids, times, traces and replay extensions."""
    assert differences("cordon", [CORDONED], [{**CORDONED, name: "another"}]) == []


@pytest.mark.parametrize("name", ["podsVersion", "budgetsVersion"])
def test_versions_are_not_compared(name: str) -> None:
    """X-2: The resource versions of lists in the data are not compared."""
    then, now = (reply(events.PODS_EVICTED, data={"evicted": [pod("a")], name: version}) for version in "12")

    assert differences("evict", [then], [now]) == []


FAILURES = {
    "the same words": ((503, "others keep writing"), (503, "others keep\nwriting "), []),
    "other words": (
        *((503, "others keep writing"), (503, "no answer from the API server")),
        [("503 others keep writing", "503 no answer from the API server")],
    ),
    "another number": ((503, "away"), (500, "away"), [("503 away", "500 away")]),
    "mended": ((503, "away"), (200, ""), [("503 away", "200")]),
    "broken": ((204, ""), (503, "away"), [("204", "503 away")]),
}


@pytest.mark.parametrize(("then", "now", "expected"), FAILURES.values(), ids=FAILURES)
def test_a_failure_is_compared_by_number_and_words(
    then: tuple[int, str], now: tuple[int, str], expected: list[tuple[str, str]]
) -> None:
    """X-2: Two failures are the same if their status and text are the same."""
    status, error = then
    attempt = Attempt("s", "e-1", "status", AT, 0.1, status, error=error)
    status, error = now

    found = compare(attempt, Answer("status", status, 0.2, error=error), NO_CHANGES)

    assert [(each.then, each.now) for each in found if each.field == "status"] == expected
    assert len(found) == len(expected)


ACTED = {
    "begin, drained since": ("begin", [BEGUN], [], {MINE: Change.SUCCEEDED}, True),
    "begin, gone": ("begin", [BEGUN], [], {MINE: Change.DELETED}, True),
    "begin, made anew": ("begin", [BEGUN], [], {MINE: Change.REPLACED}, True),
    "begin, silent": ("begin", [BEGUN], [], {}, False),
    "begin, node gone": ("begin", [BEGUN], [FAILED], {NODE_1: Change.DELETED}, True),
    "begin, failed": ("begin", [BEGUN], [FAILED], {}, False),
    "cordon, gone": ("cordon", [CORDONED], [], {MINE: Change.DELETED}, True),
    "cordon, ending": ("cordon", [CORDONED], [], {MINE: Change.TERMINATING}, True),
    "cordon, drained since": ("cordon", [CORDONED], [], {MINE: Change.SUCCEEDED}, False),
    "cordon, silent": ("cordon", [CORDONED], [], {NODE_1: Change.PREPARED}, False),
    "cordon, another type": ("cordon", [CORDONED], [TAINTED], {MINE: Change.DELETED}, False),
    "cordon, speaks up": ("cordon", [], [CORDONED], {MINE: Change.DELETED}, False),
    "evict, gone": ("evict", [DRAINED], [], {MINE: Change.DELETED}, True),
    "evict, drained since": ("evict", [DRAINED], [], {MINE: Change.SUCCEEDED}, True),
    "evict, pods gone": ("evict", [evicted("a")], [DRAINED], {named("a"): Change.DELETED}, True),
    "evict, some pods gone": ("evict", [evicted("a", "b")], [DRAINED], {named("a"): Change.DELETED}, False),
    "evict, pods going": ("evict", [evicted("a")], [], {named("a"): Change.TERMINATING}, True),
    "evict, pods there": ("evict", [evicted("a")], [DRAINED], {}, False),
    "evict, drained no more": ("evict", [DRAINED], [evicted("a")], {}, False),
    "evict, prepared since": ("evict", [DRIFTED], [evicted("a")], {NODE_1: Change.PREPARED}, True),
    "evict, drifted": ("evict", [evicted("a")], [DRIFTED], {}, False),
    "restore, gone": ("restore", [RESTORED], [], {MINE: Change.DELETED}, True),
    "restore, still ending": ("restore", [RESTORED], [], {MINE: Change.TERMINATING}, False),
    "guard, cordoned again": ("guard", [DRIFTED], [], {NODE_1: Change.PREPARED}, True),
    "guard, silent": ("guard", [DRIFTED], [], {}, False),
    "guard, node gone": ("guard", [DRIFTED], [], {NODE_1: Change.DELETED}, True),
    "resync, drained since": ("resync", [TAINTED], [], {MINE: Change.SUCCEEDED}, True),
    "evict, absorbed": ("evict", [], [evicted("a")], {}, True),
    "cordon, new": ("cordon", [], [TAINTED], {}, False),
    "resync, another waits": ("resync", [], [reply(events.NODE_TAINTED, uid="2")], {}, True),
    "resync, waits for another": ("resync", [FOUND], [TAINTED], {}, False),
}


@pytest.mark.parametrize(("function", "then", "now", "changes", "explained"), ACTED.values(), ids=ACTED)
def test_another_answer_is_explained_by_what_became_of_its_objects(
    function: str, then: list[Structured], now: list[Structured], changes: dict[RecordedObject, Change], explained: bool
) -> None:
    """X-2: A reply of another type, or none, is explained if an object that it names has changed accordingly."""
    assert explained_fields(differences(function, then, now, changes)) == [("answer", explained)]


BLOCKED = pod("b", reason="DisruptionBudget", budget="web", healthy=3, needed=2, message="needs 2")
WAITING = pod("b", reason="NoTime", budget="", message="its turn did not come")
LOOSER = {**BLOCKED, "healthy": 5}

LISTS = {
    "the same": (evicted("a", "b"), evicted("b", "a"), {}, []),
    "one is gone": (
        evicted("a", "b"),
        evicted("b"),
        {named("a"): Change.DELETED},
        [("data.evicted[default/a]", True)],
    ),
    "one is forgotten": (evicted("a", "b"), evicted("b"), {}, [("data.evicted[default/a]", False)]),
    "one is forgotten, another gone": (
        evicted("a", "b"),
        evicted(),
        {named("a"): Change.DELETED},
        [("data.evicted[default/a]", True), ("data.evicted[default/b]", False)],
    ),
    "one is new": (evicted("a"), evicted("a", "c"), {}, [("data.evicted[default/c]", False)]),
    "a count": (
        evicted("a", blocked=(BLOCKED,)),
        evicted("a", blocked=(LOOSER,)),
        {},
        [("data.blocked[default/b].healthy", False)],
    ),
    "its turn, a pod less": (
        evicted("a", blocked=(WAITING,)),
        evicted("a", "b"),
        {named("a"): Change.DELETED},
        [("data.evicted[default/b]", True), ("data.blocked[default/b]", True)],
    ),
    "the error, a pod less": (
        evicted("a", error="a waits"),
        evicted("a"),
        {named("a"): Change.DELETED},
        [("data.error", True)],
    ),
    "a foreign field, a pod less": (
        evicted("a", note="1"),
        evicted("a", note="2"),
        {named("a"): Change.DELETED},
        [("data.note", False)],
    ),
}


WEB = RecordedObject(BUDGET, "default/web", "", "")
SAID = "poddisruptionbudget default/web"
OUT, STILL = evicted("a", "b"), evicted("a", blocked=(BLOCKED,))
LESS = {named("a"): Change.DELETED}
KEPT = {
    "nothing changed": ({}, Counts(3, 2), ""),
    "another pod gone": (LESS, Counts(3, 2), ""),
    "the budget counts more": (
        {named("a"): Change.DELETED},
        Counts(5, 2),
        f"{SAID} needs 2 healthy pods and has 5 now",
    ),
    "the budget asks for less": ({}, Counts(3, 1), f"{SAID} needs 1 healthy pods and has 3 now"),
    "the budget open, whose counts were old": (
        LESS,
        Counts(3, 2, 1),
        f"{SAID} needs 2 healthy pods and has 3 now, and lets 1 pod go",
    ),
    "the budget gone": ({WEB: Change.DELETED}, None, f"{SAID} no longer exists"),
    "the budget unknown": ({}, None, ""),
    "the pod going": ({named("b"): Change.TERMINATING}, Counts(3, 2), "pod default/b is being deleted"),
}


@pytest.mark.parametrize("now", [evicted("a", "b"), evicted("a", blocked=(LOOSER,))], ids=["evicted", "blocked"])
@pytest.mark.parametrize(("changed", "counts", "why"), KEPT.values(), ids=KEPT)
def test_a_blocked_pod_is_explained_by_itself_and_its_budget_alone(
    changed: dict[RecordedObject, Change], counts: Counts | None, why: str, now: Structured
) -> None:
    """X-2: A difference in a blocked pod is explained by changes of this pod or its budget only, not of other pods."""
    then = Attempt("s", "e-1", "evict", AT, 0.1, 200, (evicted("a", blocked=(BLOCKED,)),))
    changes = Changes(changed, budgets={"default/web": counts} if counts else {})

    found = compare(then, Answer("evict", 200, 0.2, (now,)), changes)

    assert {difference.explained for difference in found} == {why}


@pytest.mark.parametrize(
    ("changed", "counts", "now", "why"),
    [
        pytest.param(LESS, Counts(3, 2), OUT, "", id="another pod gone"),
        pytest.param({WEB: Change.DELETED}, None, OUT, f"{SAID} no longer exists", id="the budget gone"),
        pytest.param(
            {}, Counts(5, 2, 3), OUT, f"{SAID} needs 2 healthy pods and has 5 now, and lets 3 pods go", id="open"
        ),
        pytest.param({}, Counts(3, 2), STILL, f"{SAID} needs 2 healthy pods and has 3 now", id="counted now"),
    ],
)
def test_who_was_kept_by_a_budget_without_counts_is_explained_by_that(
    changed: dict[RecordedObject, Change], counts: Counts | None, now: Structured, why: str
) -> None:
    """X-2: A pod that was blocked without counts is explained by its budget's current counts.

    The counts are missing if the API server's message has none, or if the budget was new.
    """
    refused = pod("b", reason="DisruptionBudget", budget="web", message="The disruption budget web needs 2 ...")
    then = Attempt("s", "e-1", "evict", AT, 0.1, 200, (evicted("a", blocked=(refused,)),))
    changes = Changes(changed, budgets={"default/web": counts} if counts else {})

    found = compare(then, Answer("evict", 200, 0.2, (now,)), changes)

    assert {difference.explained for difference in found} == {why}


@pytest.mark.parametrize(("then", "now", "changes", "expected"), LISTS.values(), ids=LISTS)
def test_lists_of_pods_are_compared_pod_by_pod(
    then: Structured, now: Structured, changes: dict[RecordedObject, Change], expected: list[tuple[str, bool]]
) -> None:
    """X-2: Lists of pods are compared pod by pod; a missing pod explains that it is not evicted again."""
    assert explained_fields(differences("evict", [then], [now], changes)) == expected


@pytest.mark.parametrize(("then", "now", "same"), [(204, 204, True), (204, 503, False), (503, 204, False)])
def test_success_and_failure_are_told_apart(then: int, now: int, same: bool) -> None:
    """X-6: A success and a failure differ, while 200 and 204 are both successes."""
    attempt = Attempt("s", "e-1", "status", AT, 0.1, then, error="busy" if then > 400 else "")

    found = compare(attempt, Answer("status", now, 0.1, error="" if now < 400 else "busy"), NO_CHANGES)

    assert [difference.field for difference in found] == ([] if same else ["status"])


LEAVES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)
DATA = st.dictionaries(
    st.text("abcxyz", min_size=1, max_size=4),
    st.recursive(
        LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner), max_leaves=8
    ),
    max_size=5,
)


@pytest.mark.slow
@given(data=DATA, status=st.sampled_from([200, 204]))
def test_the_same_answer_never_differs(data: dict[str, Any], status: int) -> None:
    """X-2: Equal responses have no differences, whatever their data."""
    said = reply(events.NODE_CORDONED, data=data)

    assert differences("cordon", [said], [dict(said)]) == []


@pytest.mark.slow
@given(data=DATA, name=st.text("abcxyz", min_size=1, max_size=4), value=st.integers(1, 9))
def test_one_changed_field_is_one_difference(data: dict[str, Any], name: str, value: int) -> None:
    """X-2: A changed field is exactly one difference, unexplained even if all named objects are gone."""
    then, now = reply(events.NODE_CORDONED, data={**data, name: 0}), {**data, name: value}
    gone = {MINE: Change.DELETED, NODE_1: Change.DELETED}

    assert explained_fields(differences("cordon", [then], [reply(events.NODE_CORDONED, data=now)], gone)) == [
        (f"data.{name}", False)
    ]


NAMES = st.lists(st.sampled_from("abcdefgh"), unique=True)


@given(then=NAMES, order=st.randoms())
def test_the_order_of_pods_is_chance(then: list[str], order: Any) -> None:
    """NMO-6: The order of pods does not matter, because evictions run concurrently."""
    now = list(then)
    order.shuffle(now)

    assert differences("evict", [evicted(*then)], [evicted(*now)]) == []


@given(then=NAMES, gone=st.sets(st.sampled_from("abcdefgh")))
def test_what_is_gone_is_explained_and_nothing_else(then: list[str], gone: set[str]) -> None:
    """X-2: A pod that is not evicted again is explained if and only if it no longer exists."""
    changes = {named(name): Change.DELETED for name in gone}

    found = differences("evict", [evicted(*then)], [evicted()], changes)

    assert {difference.field[-2] for difference in found if difference.explained} == set(then) & gone
    assert {difference.field[-2] for difference in found if not difference.explained} == set(then) - gone


RUN_1 = RecordedObject("mutexrunconfig", "ns/run", "uid-r", "")


def of_run(kind: str, node: str = "", **more: Any) -> Structured:
    """Build a reply about a run of the upgrade mutex."""
    about = {"run": "uid-r", "subject": "run", **({"node": node, "partitionkey": node} if node else {})}
    data = {"run": {"name": "run", "uid": "uid-r"}, **({"node": node} if node else {})}
    return {"type": kind, "id": "1", "source": "s", **about, **more, "data": data}


def amid(standing: Standing, function: str, then: list[Structured], now: list[Structured]) -> list[tuple[str, bool]]:
    """Return the differences if the run still exists with this progress."""
    attempt = Attempt("s", "e-1", function, AT, 0.1, 200, tuple(then))
    changes = Changes({}, {"uid-r": standing})
    return explained_fields(compare(attempt, Answer(function, 200, 0.2, tuple(now)), changes))


def test_a_run_that_has_gone_on_explains_another_answer() -> None:
    """X-2: A run that now waits for another event, or for another node, explains a different reply."""
    later = Standing("node.cleared", "n2")
    assert amid(later, "pause-pools", [of_run(events.POOLS_PAUSED)], []) == [("answer", True)]
    assert amid(later, "run-job", [], [of_run(events.NODE_CLEARED, "n2")]) == [("answer", True)]
    both = [of_run(events.NODE_CLEARED, "n1")], [of_run(events.NODE_CLEARED, "n2")]
    assert amid(later, "run-job", *both) == [("node", True), ("partitionkey", True), ("data.node", True)]
    assert amid(later, "resync-runs", [of_run(events.NODE_CLEARED, "n2")], []) == [("answer", True)]


def test_a_run_that_stands_where_it_stood_explains_nothing() -> None:
    """X-2: A run with unchanged progress explains no difference."""
    still = Standing("pools.paused", "n1")
    assert amid(still, "pause-pools", [of_run(events.POOLS_PAUSED)], []) == [("answer", False)]
    assert amid(still, "run-job", [], [of_run(events.NODE_CLEARED, "n1")]) == [("answer", False)]
    both = [of_run(events.NODE_CLEARED, "n1")], [of_run(events.NODE_CLEARED, "n2")]
    assert not any(explained for _, explained in amid(still, "run-job", *both))


@pytest.mark.parametrize("change", [Change.DELETED, Change.REPLACED, Change.TERMINATING])
def test_a_run_that_is_gone_explains_silence_and_nothing_else(change: Change) -> None:
    """X-2: A deleted run explains a missing reply, and no other difference."""
    gone = {RUN_1: change}
    assert explained_fields(differences("pause-pools", [of_run(events.POOLS_PAUSED)], [], gone)) == [("answer", True)]
    other = [of_run(events.POOLS_CLAIMED)]
    assert explained_fields(differences("pause-pools", [of_run(events.POOLS_PAUSED)], other, gone)) == [
        ("answer", False)
    ]


def test_what_has_been_written_is_not_written_again() -> None:
    """Check that differences between `protect` writing and not writing are explained, and other replies are not.

    `protect` replies only if it has written something.
    """
    told = reply(events.LAUNCHERS_CHANGED)

    assert [found.explained for found in differences("protect", [told], [])] == ["what it wrote then stands"]
    assert [found.explained for found in differences("protect", [], [told])] == ["what it writes has changed since"]
    assert explained_fields(differences("protect", [told], [FAILED])) == [("answer", False)]
