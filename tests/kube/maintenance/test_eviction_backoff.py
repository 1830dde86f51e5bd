"""Tests of the backoff for pods whose eviction changes nothing (design rule 9)."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.budgets import Blocked
from kube.maintenance.eviction_backoff import LONGEST, SHORTEST, dated, is_resting, parted, pause
from kube.paths import Object
from kube.pods import tolerates, tolerates_everything
from kube.times import timestamp
from tests.kube.samples import maintenance, pod

CORDONED = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
EVERYTHING = [{"operator": "Exists"}]
OURS = [{"key": key, "operator": "Exists"} for key in ("medik8s.io/drain", "node.kubernetes.io/unschedulable")]


def item(*blocked: Object, cordoned: str = "True") -> Object:
    """Return a maintenance whose node has been cordoned since `CORDONED`."""
    condition = {"type": "Cordoned", "status": cordoned, "lastTransitionTime": timestamp(CORDONED)}
    return maintenance({"conditions": [condition], "blockedPods": list(blocked)})


def returned(seconds: float = 5, tolerations: list[Object] = EVERYTHING, owner: str = "ReplicaSet") -> Object:
    """Return a pod that was created this many seconds after the cordon."""
    made = pod("web", owner=owner, creationTimestamp=timestamp(CORDONED + timedelta(seconds=seconds)))
    return {**made, "spec": {"tolerations": tolerations}}


@given(st.integers(0, 10_000))
def test_a_pause_is_as_long_as_it_has_been_so(seconds: int) -> None:
    """Keep the backoff between `SHORTEST` and `LONGEST`, and never let it shrink as time passes."""
    elapsed = timedelta(seconds=seconds)

    assert SHORTEST <= pause(elapsed) <= LONGEST
    assert pause(elapsed) <= pause(elapsed + timedelta(seconds=1))


def test_a_pod_that_always_returns_is_evicted_ever_more_seldom() -> None:
    """Evict a pod that is always recreated within a second ever less often.

    It is evicted at most four times in the first minute, and at most twice in each later one.
    """
    evictions, now = [0.0], 0.0
    while now < 600:
        back = now + 1
        now = back + pause(timedelta(seconds=back)).total_seconds()
        evictions.append(now)

    assert sum(at < 60 for at in evictions) <= 4
    assert all(sum(minute <= at < minute + 60 for at in evictions) <= 2 for minute in range(60, 540, 60))


@pytest.mark.parametrize(("seconds", "due"), [(14, False), (15, True)])
def test_a_pod_that_returned_is_left_alone_and_then_evicted(seconds: int, due: bool) -> None:
    """Delay the eviction of a pod created 5 s after the cordon until it is 10 s old."""
    found, resting = parted([returned(5)], item(), CORDONED + timedelta(seconds=seconds))

    assert bool(found) is due
    assert [blocked.retry_after for blocked in resting] == ([] if due else ["2026-01-02T03:04:20Z"])


def test_on_a_node_that_was_opened_a_pod_returns_since_the_beginning() -> None:
    """Use the maintenance's creation time if the status reports the node as not cordoned.

    The transition time of that condition is not the time of the cordon.
    """
    begun = item(cordoned="False")
    begun["metadata"]["creationTimestamp"] = timestamp(CORDONED - timedelta(seconds=10))

    _, resting = parted([returned(-5)], begun, CORDONED)

    assert [blocked.reason for blocked in resting] == ["Returns"]


def test_a_cordon_that_is_still_to_come_is_of_a_wrong_clock() -> None:
    """Use the maintenance's creation time, set by the API server's clock, if the reported cordon lies in the future."""
    begun = item()
    begun["metadata"]["creationTimestamp"] = timestamp(CORDONED)
    begun["status"]["conditions"][0]["lastTransitionTime"] = timestamp(CORDONED + timedelta(minutes=5))

    found, resting = parted([returned(5)], begun, CORDONED + timedelta(seconds=6))

    assert (found, [blocked.reason for blocked in resting]) == ([], ["Returns"])


def test_what_was_refused_under_another_spec_is_tried_at_once() -> None:
    """DRN-1a: a changed spec ends the backoff of earlier refusals."""
    refused = {"namespace": "ns", "name": "a", "reason": "Forbidden", "retryAfter": timestamp(CORDONED + LONGEST)}
    waits = {**item({**refused, "since": timestamp(CORDONED)})}
    drained = {"type": "Drained", "status": "False", "observedGeneration": 1}
    waits["status"]["conditions"].append(drained)
    changed = {**waits, "metadata": {**waits["metadata"], "generation": 2}}

    assert [bool(parted([pod("a")], it, CORDONED)[0]) for it in (waits, changed)] == [False, True]


@pytest.mark.parametrize(("ahead", "rests"), [(LONGEST, True), (timedelta(hours=1), False)])
def test_a_pause_that_is_longer_than_any_is_none(ahead: timedelta, rests: bool) -> None:
    """Rule 11: a retry time far in the future, written by a clock that was set back since, causes no backoff."""
    held = {"namespace": "ns", "name": "a", "reason": "Error", "retryAfter": timestamp(CORDONED + ahead)}

    assert bool(parted([pod("a")], item(held), CORDONED)[1]) is rests


def test_it_says_why_and_what_to_do() -> None:
    _, (blocked,) = parted([returned()], item(), CORDONED)

    assert blocked.reason == "Returns"
    assert blocked.message == (
        "tolerates every taint; ReplicaSet replicaset makes it again on this node: take that toleration off, "
        "or scale it down"
    )
    assert blocked.as_data()["retryAfter"] == "2026-01-02T03:04:20Z"
    _, (narrow,) = parted([returned(tolerations=OURS)], item(), CORDONED)
    assert narrow.message.startswith("tolerates the taints of the maintenance; ")


@pytest.mark.parametrize("tolerations", [[], OURS[:1]], ids=["none", "one"])
def test_a_pod_that_passes_the_scheduler_by_returns(tolerations: list[Object]) -> None:
    """Rule 9: a pod whose template names the node bypasses the scheduler and is recreated here without tolerations."""
    due, (blocked,) = parted([returned(2, tolerations)], item(), CORDONED + timedelta(seconds=3))

    assert (due, blocked.reason) == ([], "Returns")
    assert blocked.message == (
        "came although the node is closed, or while it was open; if the template of ReplicaSet replicaset, or of what "
        "owns it, has spec.nodeName, it is made again on this node: take that out, or scale the owner down"
    )


@pytest.mark.parametrize(
    ("one", "of"),
    [
        pytest.param(returned(-1), item(), id="made before the cordon"),
        pytest.param(returned(owner=""), item(), id="nobody makes it again"),
        pytest.param(returned(1, tolerations=[]), item(), id="the scheduler had it in its hands"),
        pytest.param(returned(tolerations=[]), item(cordoned="False"), id="the node may have been open"),
        pytest.param(returned(1, tolerations=OURS[:1]), item(), id="tolerates one taint"),
        pytest.param(returned(), maintenance({}), id="no times yet"),
    ],
)
def test_an_honest_pod_waits_for_nobody(one: Object, of: Object) -> None:
    """Evict at once each pod that was not recreated here, although another pod is in backoff."""
    back = returned()
    back["metadata"]["name"] = "back"

    due, _ = parted([back, one], of, CORDONED)

    assert one in due


def test_before_the_status_says_cordoned_the_time_of_the_request_counts() -> None:
    """Use the maintenance's creation time before the first status, because the first pods are recreated earlier."""
    asked = item(cordoned="False")
    asked["metadata"]["creationTimestamp"] = timestamp(CORDONED)

    assert [blocked.reason for blocked in parted([returned()], asked, CORDONED)[1]] == ["Returns"]


def test_a_refused_pod_is_left_alone_until_its_time() -> None:
    """Keep a pod that a policy refused in backoff until the retry time in the status, with the same reason."""
    refused = {
        "namespace": "ns",
        "name": "a",
        "reason": "Forbidden",
        "message": "no",
        "retryAfter": "2026-01-02T03:05:00Z",
    }
    early = datetime(2026, 1, 2, 3, 4, 59, tzinfo=timezone.utc)

    due, (blocked,) = parted([pod("a"), pod("b")], item(refused), early)

    assert [found["metadata"]["name"] for found in due] == ["b"]
    assert (blocked.reason, blocked.message, blocked.retry_after) == ("Forbidden", "no", "2026-01-02T03:05:00Z")
    assert len(parted([pod("a")], item(refused), early + timedelta(seconds=1))[0]) == 1


def test_a_terminating_pod_is_on_its_way() -> None:
    """Do not treat a terminating pod as blocked."""
    gone = pod("a", deletionTimestamp="2026-01-02T03:04:00Z")
    refused = {"namespace": "ns", "name": "a", "reason": "Error", "retryAfter": "2026-01-02T03:05:00Z"}

    assert parted([gone], item(refused), CORDONED) == ([gone], [])


@pytest.mark.parametrize(
    ("known", "after"),
    [([], 10), ([("Error", 30)], 30), ([("Error", 3000)], 60), ([("Forbidden", 30)], 10)],
    ids=["new", "since 30 s", "since long", "another reason before"],
)
def test_what_is_refused_gets_a_time(known: list[tuple[str, int]], after: int) -> None:
    """Increase the backoff with the time for which the pod has been refused for this reason."""
    before = [
        {"namespace": "ns", "name": "a", "reason": reason, "since": timestamp(CORDONED - timedelta(seconds=seconds))}
        for reason, seconds in known
    ]
    refused = Blocked({"namespace": "ns", "name": "a", "uid": "u"}, "Error", "no")

    (found,) = dated([refused], item(*before), CORDONED)

    assert found.retry_after == timestamp(CORDONED + timedelta(seconds=after))


@pytest.mark.parametrize("reason", ["DisruptionBudget", "MultipleBudgets"])
def test_a_budget_says_by_itself_when_it_opens(reason: str) -> None:
    waiting = Blocked({"namespace": "ns", "name": "a", "uid": "u"}, reason, "no")

    assert dated([waiting], item(), CORDONED) == [waiting]


@pytest.mark.parametrize(
    ("toleration", "taint", "everything"),
    [
        ({"operator": "Exists"}, True, True),
        ({"operator": "Exists", "effect": "NoSchedule"}, True, True),
        ({"operator": "Exists", "effect": "NoExecute"}, False, True),
        ({"key": "a", "operator": "Exists"}, True, False),
        ({"key": "a", "operator": "Equal", "value": ""}, True, False),
        ({"key": "a"}, True, False),
        ({"key": "a", "value": "x"}, False, False),
        ({"key": "b", "operator": "Exists"}, False, False),
        ({"key": "a", "operator": "Exists", "effect": "NoExecute"}, False, False),
    ],
)
def test_tolerations_as_the_scheduler_reads_them(toleration: Object, taint: bool, everything: bool) -> None:
    one = {"metadata": {}, "spec": {"tolerations": [toleration]}}

    assert (tolerates(one, "a", "NoSchedule"), tolerates_everything(one)) == (taint, everything)


@pytest.mark.parametrize(
    ("first", "last", "rests"),
    [
        (9, 9, True),
        (10, 10, False),
        (50, 29, False),
        (50, 10, True),
        (100, 41, True),
        (3600, 59, True),
        (3600, 60, False),
    ],
    ids=["a moment ago", "ten seconds ago", "over", "so long already", "again", "for a minute", "no longer"],
)
def test_what_is_undone_again_and_again_rests_ever_longer(first: int, last: int, rests: bool) -> None:
    """Rule 9: the backoff is as long as the repetition has lasted, between ten seconds and a minute.

    A correction without an Event is not in backoff.
    """
    announced = {
        name: timestamp(CORDONED - timedelta(seconds=seconds))
        for name, seconds in (("firstTimestamp", first), ("lastTimestamp", last))
    }

    assert is_resting(announced, CORDONED) is rests
    assert not is_resting(None, CORDONED)


@pytest.mark.parametrize("foreign", ["soon", 7, None, {}])
def test_a_pause_that_nobody_can_read_is_none(foreign: object) -> None:
    """X-6: invalid times from another program cause no backoff, and the next refusal gets the shortest backoff."""
    held = {"namespace": "ns", "name": "pod", "reason": "Error", "retryAfter": foreign, "since": foreign}
    due, resting = parted([pod()], item(held), CORDONED)
    (again,) = dated([Blocked({"namespace": "ns", "name": "pod", "uid": "u"}, "Error", "m")], item(held), CORDONED)

    assert (len(due), resting) == (1, [])
    assert again.retry_after == timestamp(CORDONED + SHORTEST)
    assert not is_resting({"firstTimestamp": foreign, "lastTimestamp": foreign}, CORDONED)


def test_a_pause_in_another_zone_is_obeyed() -> None:
    """X-6: a retry time in another time zone means the same instant."""
    held = {"namespace": "ns", "name": "pod", "reason": "Error", "retryAfter": "2026-01-02T05:04:06.5+02:00"}

    assert parted([pod()], item(held), CORDONED)[0] == []
    assert parted([pod()], item(held), CORDONED + timedelta(seconds=1))[1] == []


def test_a_node_that_was_closed_at_the_end_of_time_holds_nobody_back() -> None:
    """Ignore a cordon time in the year 9999, which another program may have written."""
    closed = item()
    closed["status"]["conditions"][0]["lastTransitionTime"] = "9999-12-31T23:59:59Z"

    assert parted([returned()], closed, CORDONED)[1] == []


def test_an_event_of_the_end_of_time_rests_nobody() -> None:
    """Ignore an Event from the year 9999: any client may write it, or a clock may have been set back."""
    last = {"firstTimestamp": timestamp(CORDONED), "lastTimestamp": "9999-12-31T23:59:59Z"}

    assert not is_resting(last, CORDONED)
