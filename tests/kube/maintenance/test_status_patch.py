"""Tests of the status of a NodeMaintenance, on plain dicts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.maintenance import objects as m
from kube.maintenance.status_patch import Findings, progress, status_patch
from kube.maintenance.node_snapshot import Looked, Shown
from kube.paths import Object
from kube.times import timestamp
from tests.kube.samples import IN_MAINTENANCE, maintenance, node, pod

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
STAMP = "2026-01-02T03:04:05Z"
LATER = NOW + timedelta(minutes=1)
DRAINED = Findings(drained=True)


def shown(pods: Sequence[Object], where: Object | None = IN_MAINTENANCE) -> Shown:
    """Return the snapshot of a node and its pods."""
    return Shown.of(maintenance(), where, pods)


def written(item: Object, *pods: Object, findings: Findings | None = None, now: datetime = NOW) -> Object:
    """Return the complete status after the patch; fails without a patch."""
    patch = status_patch(item, shown(pods), [findings or Findings()], now)
    assert patch is not None
    merged = {**(item.get("status") or {}), **patch["status"]}
    return {key: value for key, value in merged.items() if value is not None}


def after(item: Object, *pods: Object, findings: Findings | None = None, now: datetime = NOW) -> Object:
    """Return the object after the patch, as the API server would store it."""
    return {**item, "status": written(item, *pods, findings=findings, now=now)}


def condition_of(item: Object, kind: str) -> tuple[str, str, str]:
    found = m.condition(item, kind)
    return found["status"], found["reason"], found["lastTransitionTime"]


@pytest.mark.parametrize(
    ("eviction_pods", "pending", "before", "percent"),
    [
        pytest.param(5, 3, 0, 40, id="the document's sample"),
        pytest.param(3, 2, 0, 33, id="rounded down"),
        pytest.param(5, 5, 0, 0, id="none gone"),
        pytest.param(5, 0, 0, 100, id="all gone"),
        pytest.param(5, 7, 0, 0, id="more than at first"),
        pytest.param(5, 4, 60, 60, id="never back"),
        pytest.param(0, 0, 0, 100, id="nothing to do"),
    ],
)
def test_progress(eviction_pods: int, pending: int, before: int, percent: int) -> None:
    """NMO-10: progress is (evictionPods - pending) * 100 // evictionPods, and never less than before."""
    assert progress(eviction_pods, pending, before) == percent


@given(st.integers(0, 50), st.lists(st.integers(0, 60), max_size=20))
def test_progress_never_decreases(eviction_pods: int, pendings: list[int]) -> None:
    """NMO-10: for any sequence of pending pods, progress only increases and stays within 0 to 100."""
    seen = [0]
    for pending in pendings:
        seen.append(progress(eviction_pods, pending, seen[-1]))

    assert seen == sorted(seen)
    assert 0 <= seen[-1] <= 100


def test_the_status_of_a_running_drain() -> None:
    """NMO-10, NMO-12, KNM-2, C1: a running drain has a phase, progress, both spellings, and pods with namespaces."""
    status = written(maintenance(), pod("a"), pod("b", namespace="other"), pod("c", owner="DaemonSet"))

    assert (status["phase"], status["drainProgress"]) == ("Running", 60)
    assert (status["evictionPods"], status["totalpods"], status["totalPods"]) == (5, 9, 9)
    assert (status["pendingPods"], status["pendingCount"]) == (["a", "b"], 2)
    assert status["pendingPodsRefs"] == [{"namespace": "ns", "name": "a"}, {"namespace": "other", "name": "b"}]
    assert status["lastUpdate"] == STAMP
    assert "lastError" not in status
    assert "blocked" not in m.condition({"status": status}, "Drained")["message"]


def test_the_patch_holds_for_the_version_that_was_read() -> None:
    """X-6: the patch conflicts with another client's write after the read, instead of overwriting it."""
    patch = status_patch(maintenance(), shown([]), [DRAINED], NOW)

    assert patch is not None
    assert patch["metadata"] == {"resourceVersion": "7"}


@pytest.mark.parametrize("pods", [[], [pod("a")]], ids=["drained", "running"])
def test_nothing_is_written_when_only_the_time_changes(pods: list[Object]) -> None:
    """NMO-12, X-2: the same state one minute later gives no patch, so that a status write does not cause another."""
    item = after(maintenance(), *pods, findings=DRAINED)

    assert status_patch(item, shown(pods), [DRAINED], LATER) is None


def test_only_what_changes_is_sent() -> None:
    """NMO-12: after a pod has left, the patch has the progress and the pending pods, but not the counts."""
    item = after(maintenance(), pod("a"), pod("b"))

    patch = status_patch(item, shown([pod("a")]), [Findings()], LATER)

    assert patch is not None
    assert set(patch["status"]) == {
        *("drainProgress", "pendingPods", "pendingPodsRefs", "pendingCount"),
        *("conditions", "lastUpdate"),
    }


@pytest.mark.parametrize(
    ("before", "pods", "findings", "phase"),
    [
        pytest.param(None, [], Findings(), "Running", id="an empty list alone proves nothing"),
        pytest.param(None, [], DRAINED, "Succeeded", id="drained"),
        pytest.param(None, [pod("a")], DRAINED, "Running", id="drained, but a pod is there"),
        pytest.param("Succeeded", [], Findings(), "Succeeded", id="stays"),
        pytest.param("Succeeded", [pod("a")], Findings(), "Running", id="a pod came later"),
        pytest.param("Failed", [], Findings(), "Running", id="begun after a failure"),
    ],
)
def test_the_phase(before: str | None, pods: list[Object], findings: Findings, phase: str) -> None:
    """NMO-10: the phase is Succeeded only after a drained event, and only as long as no pod is left."""
    item = maintenance({"phase": before} if before else None)

    assert written(item, *pods, findings=findings)["phase"] == phase


def test_success_is_complete() -> None:
    """NMO-10, NMO-13: after success, progress is 100, no pod is pending or blocked, and `lastError` is unset."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    item = after(maintenance(), pod("a"), findings=Findings(error="a is blocked", blocked=[blocked]))

    status = written(item, findings=DRAINED, now=LATER)

    assert (status["phase"], status["drainProgress"]) == ("Succeeded", 100)
    assert (status["pendingPods"], status["pendingCount"], status["blockedPods"]) == ([], 0, [])
    assert "lastError" not in status


def test_a_clean_step_clears_the_error() -> None:
    """NMO-13, C20: `lastError` holds the latest error, and a step without errors clears it."""
    item = after(maintenance(), pod("a"), findings=Findings(error="no right to cordon"))

    assert item["status"]["lastError"] == "no right to cordon"
    assert "lastError" not in written(item, pod("a"))


def test_a_step_that_says_nothing_of_blocked_pods_leaves_their_error() -> None:
    """NMO-12, NMO-13: an event without blocked pods keeps their error; the next pass would only set it again."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    item = after(maintenance(), pod("a"), findings=Findings(error="a is blocked", blocked=[blocked]))

    assert status_patch(item, shown([pod("a")]), [Findings()], LATER) is None
    assert "lastError" not in written(item, pod("a"), findings=Findings(blocked=[]))


def test_since_stays_while_the_reason_does() -> None:
    """NMO-12: `since` of a blocked pod stays while the reason does, and starts again with another reason."""
    first = {"namespace": "ns", "name": "a", "uid": "u", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    item = after(maintenance(), pod("a"), findings=Findings(blocked=[{**first, "healthy": 3}]))
    same = after(item, pod("a"), findings=Findings(blocked=[{**first, "healthy": 2}]), now=LATER)
    other = after(same, pod("a"), findings=Findings(blocked=[{**first, "reason": "Forbidden"}]), now=LATER)

    assert [it["since"] for it in item["status"]["blockedPods"]] == [STAMP]
    assert [it["since"] for it in same["status"]["blockedPods"]] == [STAMP]
    assert [it["since"] for it in other["status"]["blockedPods"]] == [timestamp(LATER)]
    assert "uid" not in item["status"]["blockedPods"][0]


def test_another_budget_is_another_time() -> None:
    """NMO-12: `since` starts again if another budget blocks the pod."""
    first = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    item = after(maintenance(), pod("a"), findings=Findings(blocked=[first]))
    other = after(item, pod("a"), findings=Findings(blocked=[{**first, "budget": "c"}]), now=LATER)

    assert [it["since"] for it in other["status"]["blockedPods"]] == [timestamp(LATER)]


def test_events_that_are_written_together_follow_each_other() -> None:
    """X-6: events in one patch apply one after another, so that two failed renewals count as two."""
    findings = [Findings("x", lease_errors=1), Findings("y", lease_errors=2)]

    patch = status_patch(maintenance({}), shown([pod("a")]), findings, NOW)

    assert patch is not None
    assert m.lease_errors({"status": patch["status"]}) == 2


def test_pods_of_one_name_in_two_namespaces_are_two() -> None:
    """NMO-12: pods with the same name in two namespaces have a `since` each."""
    first, second = (
        {"namespace": name, "name": "a", "reason": "Forbidden", "message": "m"} for name in ("ns", "other")
    )
    pods = (pod("a"), pod("a", namespace="other"))
    item = after(maintenance(), *pods, findings=Findings(blocked=[first]))
    both = after(item, *pods, findings=Findings(blocked=[first, second]), now=LATER)

    assert [(it["namespace"], it["since"]) for it in both["status"]["blockedPods"]] == [
        ("ns", STAMP),
        ("other", timestamp(LATER)),
    ]


def test_a_blocked_pod_that_is_gone_or_on_its_way_is_not_blocked() -> None:
    """NMO-12: a pod that an event reports as blocked is omitted if it is terminating or no longer exists."""
    said = [
        {"namespace": "ns", "name": name, "reason": "DisruptionBudget", "message": "m", "budget": "b"} for name in "abc"
    ]
    on_its_way = pod("b", deletionTimestamp="2027-01-01T00:00:00Z")

    status = written(maintenance(), pod("a"), on_its_way, findings=Findings(blocked=said))

    assert [item["name"] for item in status["blockedPods"]] == ["a"]


@pytest.mark.parametrize(("reason", "pending"), [("Force", ["agent"]), ("", [])], ids=["orphan", "with its DaemonSet"])
def test_a_daemon_that_force_alone_would_evict_is_pending(reason: str, pending: list[str]) -> None:
    """DRN-1a, NMO-7: with `force: false`, a DaemonSet pod that the step reported as an orphan is pending."""
    item = maintenance()
    item["spec"]["drain"] = {"force": False}
    said = [{"namespace": "ns", "name": "agent", "reason": reason, "message": "m"}] if reason else []

    status = written(item, pod("agent", owner="DaemonSet"), findings=Findings(blocked=said))

    assert status["pendingPods"] == pending


@pytest.mark.parametrize(
    ("finalizers", "ended", "reason"),
    [
        pytest.param(["example.com/hold"], "2026-01-02T03:04:00Z", "Finalizers", id="held by a finalizer"),
        pytest.param([], "2026-01-02T03:04:00Z", "Terminating", id="not ended by its kubelet"),
        pytest.param(["example.com/hold"], "2026-01-02T03:05:00Z", "", id="still in its grace period"),
    ],
)
def test_a_pod_that_is_stuck_is_named(finalizers: list[str], ended: str, reason: str) -> None:
    """OSV-15: a pod that outlives its grace period is blocked, and its message names the finalizers."""
    stuck = pod("a", deletionTimestamp=ended, finalizers=finalizers)

    status = written(maintenance(), stuck)

    assert [item["reason"] for item in status["blockedPods"]] == ([reason] if reason else [])
    assert all(name in status["blockedPods"][0]["message"] for name in finalizers if reason)
    assert [item["budget"] for item in status["blockedPods"]] == ([""] if reason else [])
    assert status["pendingPods"] == ["a"]


def test_conditions_move_with_their_status_only() -> None:
    """NMO-10: `lastTransitionTime` changes with the condition's status, not with its reason and message."""
    blocked = {"namespace": "ns", "name": "a", "reason": "DisruptionBudget", "message": "m", "budget": "b"}
    first = after(maintenance(), pod("a"))
    second = after(first, pod("a"), findings=Findings(blocked=[blocked]), now=LATER)
    third = after(second, findings=DRAINED, now=LATER)

    assert condition_of(first, "Drained") == ("False", "Draining", STAMP)
    assert condition_of(second, "Drained") == ("False", "Blocked", STAMP)
    assert condition_of(third, "Drained") == ("True", "Drained", timestamp(LATER))
    assert condition_of(third, "Cordoned") == ("True", "Cordoned", STAMP)


def test_what_a_step_has_seen_is_said_as_if_it_were_read() -> None:
    """NMO-10, NMO-12: the pods in an event give the same status as the same pods read from the cluster."""
    stuck = pod("b", finalizers=("example.com/hold",))
    stuck["metadata"]["deletionTimestamp"] = STAMP
    left = [pod("a"), stuck]
    told = Looked("1", is_closed=True, left=left).as_data()
    seen = Shown(told["closed"], left=[{"metadata": item} for item in told["left"]])

    assert status_patch(maintenance(), seen, [Findings()], LATER) == status_patch(
        maintenance(), shown(left), [Findings()], LATER
    )


@pytest.mark.parametrize("where", [None, node(), node(cordoned=True)], ids=["gone", "free", "not tainted"])
def test_a_node_that_is_not_ready_for_it_is_told(where: Object | None) -> None:
    """NMO-5: the condition Cordoned is True only with cordon and taints."""
    patch = status_patch(maintenance(), shown([pod("a")], where), [Findings()], NOW)

    assert patch is not None
    found = m.condition(patch, "Cordoned")
    assert (found["status"], found["reason"]) == ("False", "NotCordoned")


def test_what_never_began_fails_with_the_reason() -> None:
    """NMO-19, NMO-22: a maintenance that could not begin is Failed with the error, without counts and pods."""
    status = written(maintenance(counts=""), pod("a"), findings=Findings(error='nodes "x" not found'))

    assert (status["phase"], status["lastError"]) == ("Failed", 'nodes "x" not found')
    assert "evictionPods" not in status
    assert [(item["type"], item["status"], item["reason"]) for item in status["conditions"]] == [
        ("Drained", "False", "Failed")
    ]


def test_one_that_waits_for_a_lease_has_not_failed() -> None:
    """NMO-27a: while another tool holds the lease, the phase stays, and `lastError` names the holder."""
    status = written(maintenance(counts=""), findings=Findings("the lease is held by x", waits=True))

    assert "phase" not in status
    assert status["lastError"] == "the lease is held by x"
    assert condition_of({"status": status}, "Drained") == ("False", "Waiting", STAMP)


@pytest.mark.parametrize(
    ("before", "told", "count"),
    [(None, 1, 1), (2, None, 2), (2, 3, 3), (3, 0, None)],
    ids=["first", "not told", "next", "renewed"],
)
def test_failed_renewals_are_counted_and_forgotten(before: int | None, told: int | None, count: int | None) -> None:
    """NMO-27a: `errorOnLeaseCount` counts consecutive failures; as long as there are any, success keeps the error."""
    item = maintenance(
        {"phase": m.SUCCEEDED, "errorOnLeaseCount": before, "lastError": "held by x" if before else None}
    )
    status = written(item, findings=Findings("held by x" if told else "", lease_errors=told))

    assert (status["phase"], status.get("errorOnLeaseCount")) == (m.SUCCEEDED, count)
    assert status.get("lastError") == ("held by x" if count else None)


@pytest.mark.parametrize(("before", "told"), [(None, 2), (None, 4), (1, 4), (3, 1)])
def test_a_failed_renewal_that_is_not_the_next_one_is_old_news(before: int | None, told: int) -> None:
    """X-2: a late event with an unexpected number of failed renewals changes neither the count nor the error."""
    item = maintenance({"phase": m.RUNNING, "errorOnLeaseCount": before})

    assert status_patch(item, shown([pod()]), [Findings("late", lease_errors=told)], NOW) is None


@pytest.mark.parametrize("phase", [m.RUNNING, m.SUCCEEDED])
@pytest.mark.parametrize("waits", [True, False])
def test_why_it_could_not_begin_is_old_news_once_it_has(phase: str, waits: bool) -> None:
    """X-2: after the maintenance has begun, a late event about a failed begin changes nothing.

    A failed lease renewal still counts, because it also concerns a drained node.
    """
    item, pods = maintenance({"phase": phase}), [pod()] if phase == m.RUNNING else []

    late = Findings("taken", renewing=True, beginning=True, waits=waits)
    assert status_patch(item, shown(pods), [late], NOW) is None
    assert written(item, *pods, findings=Findings("forbidden", renewing=True))["lastError"] == "forbidden"


def test_at_more_than_three_it_gives_up_for_good() -> None:
    """NMO-27a: after four failed renewals, the phase is Failed with [SRC]'s wording, and the status is final."""
    blocked = [{"namespace": "ns", "name": "pod", "reason": "DisruptionBudget", "message": "m"}]
    third = after(maintenance({"errorOnLeaseCount": 2}), pod(), findings=Findings("x", blocked=blocked, lease_errors=3))
    given_up = after(third, pod(), findings=Findings("x", lease_errors=4))

    assert (given_up["status"]["phase"], given_up["status"]["errorOnLeaseCount"]) == (m.FAILED, 4)
    error = "maintenance failed: lease could not be extended after 4 attempts"
    assert given_up["status"]["lastError"] == error
    remedy = "to go on, delete this object and create it anew once the lease is released"
    moved = {"status": "False", "observedGeneration": 1, "lastTransitionTime": STAMP}
    assert given_up["status"]["conditions"] == [
        {**moved, "type": "Cordoned", "reason": "GivenBack", "message": "another tool holds the lease of the node"},
        {**moved, "type": "Drained", "reason": "Failed", "message": f"{error}; {remedy}"},
    ]
    left = ("pendingPods", "pendingPodsRefs", "pendingCount", "blockedPods")
    assert all(third["status"][name] for name in left)
    assert not any(given_up["status"][name] for name in left)
    for findings in (Findings(), DRAINED, Findings(lease_errors=0), Findings("x", lease_errors=5)):
        assert status_patch(given_up, shown([]), [findings], NOW) is None


def test_there_is_nothing_to_say_before_it_began_or_when_it_ends() -> None:
    """X-2: nothing is written for a maintenance that has not begun and has no error, or that is being deleted."""
    ending = maintenance()
    ending["metadata"]["deletionTimestamp"] = STAMP

    assert status_patch(maintenance(counts=""), shown([pod()]), [Findings()], NOW) is None
    assert status_patch(ending, shown([pod()]), [Findings(error="x")], NOW) is None


def test_of_an_ending_one_it_says_alone_why_the_node_is_not_given_back() -> None:
    """NMO-13: while the object is being deleted, the status reports once why the node could not be restored."""
    ending = maintenance()
    ending["metadata"]["deletionTimestamp"] = STAMP
    findings = Findings(error="no right", restoring=True)

    patch = status_patch(ending, shown([pod()]), [findings], NOW)

    assert patch is not None
    written = {key: value for key, value in patch["status"].items() if key != "lastUpdate"}
    assert written == {"lastError": "the node is not given back: no right"}
    ending["status"] = patch["status"]
    assert status_patch(ending, shown([pod()]), [findings], LATER) is None


pending_sets = st.lists(st.sets(st.sampled_from("abcdefgh"), max_size=8), max_size=10)


@given(pending_sets, st.booleans())
def test_the_status_over_any_sequence(sets: list[set[str]], drained: bool) -> None:
    """NMO-10, NMO-11, NMO-12: progress only increases, counts are fixed, and Succeeded requires that no pod is left."""
    item, progress_before = maintenance(), 0
    for names in sets:
        pods = [pod(name) for name in sorted(names)]
        patch = status_patch(item, shown(pods), [Findings(drained=drained)], NOW)
        item = {**item, "status": {**(item.get("status") or {}), **(patch["status"] if patch else {})}}
        status = item["status"]
        assert status["drainProgress"] >= progress_before
        assert (status["evictionPods"], status["totalpods"]) == (5, 9)
        assert status["pendingPods"] == sorted(names)
        assert (status["phase"] == "Succeeded") <= (not names and drained)
        assert status_patch(item, shown(pods), [Findings(drained=drained)], LATER) is None
        progress_before = status["drainProgress"]


ETCD_LIMIT = 1536 * 1024
LONGEST = "x" * 253
HUGE = "ü" * 1_000_000


def crowd(count: int) -> tuple[list[Object], Findings]:
    """Return many pods with the longest possible names, and an event that blocks all of them with long messages."""
    pods = [pod(f"{number:05}{LONGEST}"[:253], namespace=LONGEST[:63]) for number in range(count)]
    blocked = [
        {**{key: item["metadata"][key] for key in ("namespace", "name")}, "reason": "Error", "message": HUGE[:4000]}
        for item in pods
    ]
    return pods, Findings(error=HUGE, blocked=blocked)


@pytest.mark.parametrize(("count", "pending", "blocked"), [(250, 250, 200), (500, 500, 200), (3000, 600, 200)])
def test_the_status_of_a_crowd_can_be_stored(count: int, pending: int, blocked: int) -> None:
    """NMO-12: long lists are truncated to the size limit, and the status reports how many entries are omitted."""
    pods, findings = crowd(count)

    status = written(maintenance(), *pods, findings=findings)

    assert len(json.dumps(status, ensure_ascii=False).encode()) < ETCD_LIMIT
    assert status["pendingCount"] == count
    assert len(status["pendingPods"]) == len(status["pendingPodsRefs"]) >= pending
    assert len(status["blockedPods"]) >= blocked
    told = m.condition({"status": status}, "Drained")["message"]
    assert told.startswith(f"{count} pods left, {count} of them blocked")
    assert f"{count - len(status['blockedPods'])} more than blockedPods has" in told
    assert ("more than pendingPods has" in told) is (len(status["pendingPods"]) < count)


def test_an_error_that_is_too_long_is_cut() -> None:
    """NMO-13: a long error is truncated at its end, also before the maintenance begins."""
    for item in (maintenance(), maintenance(counts="")):
        error = written(item, pod("a"), findings=Findings(error=HUGE))["lastError"]
        assert error.startswith("üüü")
        assert error.endswith("more characters)")
        assert len(error) < 10_000


@pytest.mark.parametrize("foreign", ["yesterday", "2026-01-02T03:04:05.5+00:00", 7, None])
def test_a_status_that_another_program_wrote_is_gone_on_with(foreign: object) -> None:
    """NMO-12: invalid values that another program wrote to the status are replaced by valid ones."""
    held = {"namespace": "ns", "name": "a", "reason": "Error", "since": foreign, "more": {"x": 1}}
    before = {"drainProgress": "half" if foreign == 7 else 250, "blockedPods": [held, "x"], "lastUpdate": foreign}

    status = written(maintenance(before), pod("a"))

    assert status["blockedPods"][0]["since"] == STAMP
    assert 0 <= status["drainProgress"] <= 100
