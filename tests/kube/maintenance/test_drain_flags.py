"""Tests of `spec.drain`, on plain dicts: which pods a maintenance drains, and which pods its flags block."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.maintenance import drain_flags
from kube.maintenance import objects as m
from kube.maintenance.drain_flags import (
    SKIPPED,
    UNSELECTED,
    drain_of,
    going,
    known_orphans,
    left_out,
    options_of,
    refused,
    sorted_for,
    warned,
)
from kube.paths import Object
from kube.pods import NODE_MAINTENANCE, DrainOptions, sort, uid
from kube.selectors import parsed
from tests.kube.samples import maintenance, pod, pods

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
STRICT = DrainOptions(force=False, ignore_daemonsets=False, delete_emptydir_data=False)
EMPTY_DIR = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
WEB, DB = {"app": "web"}, {"app": "db"}


def item(drain: object, status: Object | None = None) -> Object:
    """Return a maintenance with this `spec.drain`."""
    made = maintenance(status)
    return {**made, "spec": {**made["spec"], "drain": drain}}


def scratch(**more: str) -> Object:
    """Return a pod with an emptyDir volume."""
    return {**pod(**more), "spec": EMPTY_DIR}  # type: ignore[arg-type]


def reasons(leaving: list[Object], options: DrainOptions, orphans: set[str] | None = None) -> list[str]:
    return [item.reason for item in refused(sorted_for(leaving, options, NOW, orphans or set()), options)]


@pytest.mark.parametrize(
    ("drain", "options"),
    [
        pytest.param(None, NODE_MAINTENANCE, id="unset"),
        pytest.param({}, NODE_MAINTENANCE, id="empty"),
        pytest.param("all", NODE_MAINTENANCE, id="no object"),
        pytest.param({"force": False}, DrainOptions(force=False), id="force"),
        pytest.param({"force": "false"}, NODE_MAINTENANCE, id="no boolean"),
        pytest.param({"deleteEmptyDirData": False}, DrainOptions(delete_emptydir_data=False), id="emptyDir"),
        pytest.param({"ignoreDaemonSets": False}, DrainOptions(ignore_daemonsets=False), id="DaemonSets"),
        pytest.param({"podSelector": "app=web"}, DrainOptions(pod_selector="app=web"), id="selector"),
        pytest.param({"gracePeriodSeconds": -1}, NODE_MAINTENANCE, id="own grace period"),
        pytest.param({"gracePeriodSeconds": 0}, DrainOptions(grace_period_seconds=0), id="no grace period"),
        pytest.param({"disableEviction": True}, DrainOptions(disable_eviction=True), id="deletion"),
        pytest.param({"skipWaitForDeleteTimeoutSeconds": 5}, DrainOptions(skip_wait_seconds=5), id="skip"),
        pytest.param({"skipWaitForDeleteTimeoutSeconds": True}, NODE_MAINTENANCE, id="no number"),
    ],
)
def test_what_the_spec_asks_for(drain: object, options: DrainOptions) -> None:
    """DRN-1a: unset and invalid fields have the defaults of the drain in the requirement documents."""
    assert options_of(item(drain)) == options


@given(pods)
def test_unset_it_is_the_drain_of_the_documents(listed: list[Object]) -> None:
    """DRN-1a: without `spec.drain`, the same pods leave as in the documents' drain, and no pod is blocked."""
    found = sorted_for(listed, options_of(maintenance()), NOW)

    assert found == sort(listed)
    assert refused(found, NODE_MAINTENANCE) == []


@pytest.mark.parametrize(
    ("waiting", "options", "reason"),
    [
        pytest.param(pod(), DrainOptions(force=False), "Force", id="bare"),
        pytest.param(pod(owner="Job"), STRICT, "", id="of a controller"),
        pytest.param(scratch(), DrainOptions(delete_emptydir_data=False), "DeleteEmptyDirData", id="emptyDir"),
        pytest.param(scratch(), STRICT, "DeleteEmptyDirData", id="emptyDir before force, as kubectl does"),
        pytest.param(pod(owner="DaemonSet"), STRICT, "IgnoreDaemonSets", id="daemon"),
        pytest.param(scratch(owner="DaemonSet"), STRICT, "IgnoreDaemonSets", id="daemon first, as kubectl does"),
        pytest.param(pod(phase="Succeeded"), STRICT, "", id="finished"),
        pytest.param(pod(owner="DaemonSet", phase="Failed"), STRICT, "", id="finished daemon"),
        pytest.param(pod(deletionTimestamp="2026-01-02T03:05:00Z"), STRICT, "", id="on its way"),
    ],
)
def test_what_a_flag_refuses(waiting: Object, options: DrainOptions, reason: str) -> None:
    """DRN-1a: a pod that a flag blocks still has to leave; all other pods are evicted."""
    other = pod("other", owner="ReplicaSet")
    found = sorted_for([waiting, other], options, NOW)

    assert found.leaving == [waiting, other]
    assert reasons([waiting, other], options) == ([reason] if reason else [])
    assert going(found, options) == ([other] if reason else [waiting, other])


@pytest.mark.parametrize(
    ("waiting", "message"),
    [
        (pod(), "no controller makes it again: set spec.drain.force, or delete it"),
        (scratch(), "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete it"),
        (
            pod(owner="DaemonSet"),
            "its DaemonSet makes it again here at once: set spec.drain.ignoreDaemonSets, "
            "or keep the DaemonSet off the node",
        ),
    ],
)
def test_a_refusal_names_flag_and_remedy(waiting: Object, message: str) -> None:
    (blocked,) = refused(sorted_for([waiting], STRICT, NOW), STRICT)

    assert blocked.message == message
    assert blocked.retry_after == ""


@pytest.mark.parametrize("static", [{"kubernetes.io/config.mirror": "x"}])
def test_static_pods_are_nobodys_business(static: dict[str, str]) -> None:
    assert sorted_for([pod(annotations=static)], STRICT, NOW).leaving == []


def test_pods_that_are_not_selected_are_none_of_its() -> None:
    """DRN-1a, DRN-5: unselected pods are neither pending nor blocked, even DaemonSet pods and unmanaged pods."""
    web, listed = pod("web", labels=WEB), [pod("db", labels=DB), pod("agent", owner="DaemonSet"), pod("none")]

    found = sorted_for([web, *listed], DrainOptions(pod_selector="app=web", ignore_daemonsets=False), NOW)

    assert (found.leaving, found.daemons) == ([web], [])


def test_a_selector_that_cannot_be_read_lets_nobody_go() -> None:
    """DRN-1a: an invalid selector, which an older schema admits, blocks all pods, because it may select any of them."""
    options = DrainOptions(pod_selector="app=(")
    found = sorted_for([pod("a", owner="Job"), pod("b")], options, NOW)

    assert going(found, options) == []
    assert {item.reason for item in refused(found, options)} == {"PodSelector"}
    assert refused(found, options)[0].message == (
        "spec.drain.podSelector cannot be read: 'app=(' is no condition on a label, such as app=web; "
        "correct it, or leave it out"
    )


@pytest.mark.parametrize(
    ("skip", "until", "waited"),
    [
        (0, "2026-01-01T00:00:00Z", True),
        (10, "", True),
        (10, "2026-01-02T03:03:55Z", True),
        (10, "2026-01-02T03:03:54Z", False),
        (10, "2026-01-02T03:05:00Z", True),
    ],
    ids=["never skipped", "not deleted", "ten seconds", "eleven seconds", "has time left"],
)
def test_who_is_not_waited_for(skip: int, until: str, waited: bool) -> None:
    """DRN-1a: `skipWaitForDeleteTimeoutSeconds` has the effect of kubectl's --skip-wait-for-delete-timeout."""
    waiting = pod(deletionTimestamp=until) if until else pod()

    options = DrainOptions(skip_wait_seconds=skip)
    assert (sorted_for([waiting], options, NOW).leaving == [waiting]) is waited
    assert left_out(waiting, options, NOW) == ("" if waited else SKIPPED)
    assert left_out(waiting, DrainOptions(pod_selector="app=other"), NOW) == UNSELECTED


def test_a_daemon_without_its_daemonset_is_bare() -> None:
    """DRN-1a, NMO-7: `force: false` blocks a DaemonSet pod without a DaemonSet, and its status entry identifies it."""
    orphan = pod("agent", owner="DaemonSet")
    blocked = {"namespace": "ns", "name": "agent", "reason": "Force"}

    assert reasons([orphan], DrainOptions(force=False), {uid(orphan)}) == ["Force"]
    assert reasons([orphan], STRICT, {uid(orphan)}) == ["Force"]
    assert known_orphans([orphan, pod("bare")], [blocked]) == {uid(orphan)}
    assert known_orphans([orphan], [{**blocked, "reason": "IgnoreDaemonSets"}]) == set()


def test_the_warning_names_whom_it_concerns() -> None:
    """NMO-8a: the warning names no blocked pod, neither as deleted nor as ignored."""
    listed = [pod("agent", owner="DaemonSet"), pod("bare"), scratch(name="scratch")]
    kept = DrainOptions(delete_emptydir_data=False)

    assert warned(sorted_for(listed, kept, NOW), kept).startswith("ignoring DaemonSet-managed Pods: ns/agent; deleting")
    assert warned(sorted_for(listed, kept, NOW), kept).endswith(": ns/bare")
    assert warned(sorted_for(listed, STRICT, NOW), STRICT) == ""


def test_what_is_told_already() -> None:
    """DRN-1a: a refusal counts as reported only if the status lists the pod with the same reason."""
    (one,) = refused(sorted_for([pod()], STRICT, NOW), STRICT)
    told = {"namespace": "ns", "name": "pod", "reason": "Force"}

    assert drain_flags.are_told([one], item({}, {"blockedPods": [told]}))
    assert drain_flags.are_told([], item({}))
    assert not drain_flags.are_told([one], item({}, {"blockedPods": [{**told, "reason": "DisruptionBudget"}]}))
    assert not drain_flags.are_told([one], item({}))


@pytest.mark.parametrize(
    ("seen", "changed"), [(1, True), (2, False), (3, False), (None, False)], ids=["older", "same", "newer", "none"]
)
def test_a_spec_that_the_status_does_not_speak_of_is_changed(seen: int | None, changed: bool) -> None:
    status = {"conditions": [{"type": "Drained", **({"observedGeneration": seen} if seen else {})}]}
    made = item({}, status)
    made["metadata"]["generation"] = 2

    assert m.is_changed(made) is changed


@given(st.dictionaries(st.sampled_from(["force", "podSelector"]), st.sampled_from([None, False, "app=web"])))
def test_what_is_not_given_is_not_set(given_flags: dict[str, object]) -> None:
    spec = drain_of(given_flags)

    assert spec.get("drain", {}) == {name: value for name, value in given_flags.items() if value is not None}
    assert spec == {} or spec["drain"]


def test_a_selector_that_cannot_be_read_is_read_once() -> None:
    """Rule 9: an invalid selector is parsed once, although each pass needs it for each pod and it may be long."""
    options, before = DrainOptions(pod_selector="once in (" + " " * 2000), parsed.cache_info().misses

    found = sorted_for([pod(str(number)) for number in range(250)], options, NOW)

    assert len(refused(found, options)) == 250
    assert parsed.cache_info().misses - before == 1


@given(pods)
def test_by_default_no_flag_refuses_anybody(leaving: list[Object]) -> None:
    """DRN-1a: with the default flags, neither emptyDir data nor DaemonSets block any pod."""
    everybody = [{**it, "spec": EMPTY_DIR} for it in leaving]

    assert reasons(everybody, NODE_MAINTENANCE, {uid(it) for it in everybody}) == []
