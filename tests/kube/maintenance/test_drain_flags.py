"""Tests for the flags in `spec.drain`, which determine the pods to evict and the blocked pods, on plain dicts."""

from __future__ import annotations

from datetime import datetime, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube.maintenance import drain_flags
from kube.maintenance import objects as m
from kube.maintenance.drain_flags import (
    SKIPPED_MESSAGE,
    UNSELECTED_MESSAGE,
    build_drain_spec,
    build_drain_warning,
    classify_for_drain,
    find_pods_blocked_by_flags,
    find_reported_orphan_uids,
    get_exclusion_reason,
    parse_drain_options,
    select_evictable_pods,
)
from kube.paths import Object
from kube.pods import DEFAULT_DRAIN_OPTIONS, DrainOptions, classify_pods, get_uid
from kube.selectors import parse_selector
from tests.kube.samples import make_maintenance, make_pod, pod_lists

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=timezone.utc)
STRICT_OPTIONS = DrainOptions(force=False, ignore_daemonsets=False, delete_emptydir_data=False)
EMPTY_DIR_SPEC = {"volumes": [{"name": "scratch", "emptyDir": {}}]}
WEB_LABELS, DB_LABELS = {"app": "web"}, {"app": "db"}


def make_maintenance_with_drain(drain: object, status: Object | None = None) -> Object:
    """Return a maintenance with this `spec.drain`."""
    maintenance = make_maintenance(status)
    return {**maintenance, "spec": {**maintenance["spec"], "drain": drain}}


def make_pod_with_empty_dir(**pod_arguments: str) -> Object:
    """Return a pod with an emptyDir volume."""
    return {**make_pod(**pod_arguments), "spec": EMPTY_DIR_SPEC}  # type: ignore[arg-type]


def get_block_reasons(pods: list[Object], options: DrainOptions, orphans: set[str] | None = None) -> list[str]:
    refusals = find_pods_blocked_by_flags(classify_for_drain(pods, options, NOW, orphans or set()), options)
    return [refusal.reason for refusal in refusals]


@pytest.mark.parametrize(
    ("drain", "options"),
    [
        pytest.param(None, DEFAULT_DRAIN_OPTIONS, id="unset"),
        pytest.param({}, DEFAULT_DRAIN_OPTIONS, id="empty"),
        pytest.param("all", DEFAULT_DRAIN_OPTIONS, id="not an object"),
        pytest.param({"force": False}, DrainOptions(force=False), id="force"),
        pytest.param({"force": "false"}, DEFAULT_DRAIN_OPTIONS, id="not a boolean"),
        pytest.param({"deleteEmptyDirData": False}, DrainOptions(delete_emptydir_data=False), id="emptyDir"),
        pytest.param({"ignoreDaemonSets": False}, DrainOptions(ignore_daemonsets=False), id="DaemonSets"),
        pytest.param({"podSelector": "app=web"}, DrainOptions(pod_selector="app=web"), id="selector"),
        pytest.param({"gracePeriodSeconds": -1}, DEFAULT_DRAIN_OPTIONS, id="pod's own grace period"),
        pytest.param({"gracePeriodSeconds": 0}, DrainOptions(grace_period_seconds=0), id="no grace period"),
        pytest.param({"disableEviction": True}, DrainOptions(disable_eviction=True), id="deletion"),
        pytest.param({"skipWaitForDeleteTimeoutSeconds": 5}, DrainOptions(skip_wait_seconds=5), id="skip"),
        pytest.param({"skipWaitForDeleteTimeoutSeconds": True}, DEFAULT_DRAIN_OPTIONS, id="not a number"),
    ],
)
def test_drain_options_are_parsed_from_spec_drain(drain: object, options: DrainOptions) -> None:
    """DRN-1a: unset and invalid fields get the default values in the requirement documents."""
    assert parse_drain_options(make_maintenance_with_drain(drain)) == options


@given(pod_lists)
def test_default_drain_options_select_documented_pods(pods: list[Object]) -> None:
    """DRN-1a: without `spec.drain`, the pods to evict are those in the requirement documents, and no pod is blocked."""
    classification = classify_for_drain(pods, parse_drain_options(make_maintenance()), NOW)

    assert classification == classify_pods(pods)
    assert find_pods_blocked_by_flags(classification, DEFAULT_DRAIN_OPTIONS) == []


@pytest.mark.parametrize(
    ("blocked_pod", "options", "reason"),
    [
        pytest.param(make_pod(), DrainOptions(force=False), "Force", id="bare"),
        pytest.param(make_pod(owner="Job"), STRICT_OPTIONS, "", id="managed by a controller"),
        pytest.param(
            make_pod_with_empty_dir(), DrainOptions(delete_emptydir_data=False), "DeleteEmptyDirData", id="emptyDir"
        ),
        pytest.param(
            make_pod_with_empty_dir(),
            STRICT_OPTIONS,
            "DeleteEmptyDirData",
            id="emptyDir is checked before force, as in kubectl",
        ),
        pytest.param(make_pod(owner="DaemonSet"), STRICT_OPTIONS, "IgnoreDaemonSets", id="DaemonSet pod"),
        pytest.param(
            make_pod_with_empty_dir(owner="DaemonSet"),
            STRICT_OPTIONS,
            "IgnoreDaemonSets",
            id="DaemonSet is checked first, as in kubectl",
        ),
        pytest.param(make_pod(phase="Succeeded"), STRICT_OPTIONS, "", id="finished"),
        pytest.param(make_pod(owner="DaemonSet", phase="Failed"), STRICT_OPTIONS, "", id="finished DaemonSet pod"),
        pytest.param(make_pod(deletionTimestamp="2026-01-02T03:05:00Z"), STRICT_OPTIONS, "", id="terminating"),
    ],
)
def test_drain_flag_blocks_only_pods_that_it_excludes(blocked_pod: Object, options: DrainOptions, reason: str) -> None:
    """DRN-1a: a pod that a flag blocks still counts as a pod to evict, and all other pods are evicted."""
    other_pod = make_pod("other", owner="ReplicaSet")
    classification = classify_for_drain([blocked_pod, other_pod], options, NOW)

    assert classification.leaving == [blocked_pod, other_pod]
    assert get_block_reasons([blocked_pod, other_pod], options) == ([reason] if reason else [])
    assert select_evictable_pods(classification, options) == ([other_pod] if reason else [blocked_pod, other_pod])


@pytest.mark.parametrize(
    ("blocked_pod", "message"),
    [
        (make_pod(), "no controller would recreate it: set spec.drain.force, or delete the pod"),
        (
            make_pod_with_empty_dir(),
            "its emptyDir data would be lost: set spec.drain.deleteEmptyDirData, or delete the pod",
        ),
        (
            make_pod(owner="DaemonSet"),
            "its DaemonSet would recreate it on this node immediately: set spec.drain.ignoreDaemonSets, "
            "or exclude the node from the DaemonSet",
        ),
    ],
)
def test_message_of_blocked_pod_names_drain_flag_and_remedy(blocked_pod: Object, message: str) -> None:
    (blocked,) = find_pods_blocked_by_flags(classify_for_drain([blocked_pod], STRICT_OPTIONS, NOW), STRICT_OPTIONS)

    assert blocked.message == message
    assert blocked.retry_after == ""


@pytest.mark.parametrize("annotations", [{"kubernetes.io/config.mirror": "x"}])
def test_static_pods_are_never_pods_to_evict(annotations: dict[str, str]) -> None:
    assert classify_for_drain([make_pod(annotations=annotations)], STRICT_OPTIONS, NOW).leaving == []


def test_pods_that_pod_selector_does_not_match_are_not_drained() -> None:
    """DRN-1a, DRN-5: pods that `podSelector` does not match are neither pending nor blocked, for any other flags."""
    selected, unselected = (
        make_pod("web", labels=WEB_LABELS),
        [make_pod("db", labels=DB_LABELS), make_pod("agent", owner="DaemonSet"), make_pod("none")],
    )

    classification = classify_for_drain(
        [selected, *unselected], DrainOptions(pod_selector="app=web", ignore_daemonsets=False), NOW
    )

    assert (classification.leaving, classification.daemonset_pods) == ([selected], [])


def test_invalid_pod_selector_blocks_all_pods() -> None:
    """DRN-1a: an invalid `podSelector`, which an older schema admits, blocks all pods, as it may select any of them."""
    options = DrainOptions(pod_selector="app=(")
    classification = classify_for_drain([make_pod("a", owner="Job"), make_pod("b")], options, NOW)

    assert select_evictable_pods(classification, options) == []
    assert {refusal.reason for refusal in find_pods_blocked_by_flags(classification, options)} == {"PodSelector"}
    assert find_pods_blocked_by_flags(classification, options)[0].message == (
        "spec.drain.podSelector cannot be read: 'app=(' is not a condition on a label, such as app=web; "
        "correct the selector, or omit the field"
    )


@pytest.mark.parametrize(
    ("skip_wait_seconds", "deletion_timestamp", "is_pending"),
    [
        (0, "2026-01-01T00:00:00Z", True),
        (10, "", True),
        (10, "2026-01-02T03:03:55Z", True),
        (10, "2026-01-02T03:03:54Z", False),
        (10, "2026-01-02T03:05:00Z", True),
    ],
    ids=["never skipped", "not deleted", "ten seconds", "eleven seconds", "grace period has not ended"],
)
def test_long_terminating_pods_are_skipped(skip_wait_seconds: int, deletion_timestamp: str, is_pending: bool) -> None:
    """DRN-1a: `skipWaitForDeleteTimeoutSeconds` has the effect of kubectl's --skip-wait-for-delete-timeout."""
    pod = make_pod(deletionTimestamp=deletion_timestamp) if deletion_timestamp else make_pod()

    options = DrainOptions(skip_wait_seconds=skip_wait_seconds)
    assert (classify_for_drain([pod], options, NOW).leaving == [pod]) is is_pending
    assert get_exclusion_reason(pod, options, NOW) == ("" if is_pending else SKIPPED_MESSAGE)
    assert get_exclusion_reason(pod, DrainOptions(pod_selector="app=other"), NOW) == UNSELECTED_MESSAGE


def test_pod_of_deleted_daemonset_needs_force() -> None:
    """DRN-1a, NMO-7: `force: false` blocks a pod of a deleted DaemonSet, which the status marks as an orphan."""
    orphan = make_pod("agent", owner="DaemonSet")
    blocked = {"namespace": "ns", "name": "agent", "reason": "Force"}

    assert get_block_reasons([orphan], DrainOptions(force=False), {get_uid(orphan)}) == ["Force"]
    assert get_block_reasons([orphan], STRICT_OPTIONS, {get_uid(orphan)}) == ["Force"]
    assert find_reported_orphan_uids([orphan, make_pod("bare")], [blocked]) == {get_uid(orphan)}
    assert find_reported_orphan_uids([orphan], [{**blocked, "reason": "IgnoreDaemonSets"}]) == set()


def test_drain_warning_names_no_blocked_pod() -> None:
    """NMO-8a: the drain's warning names blocked pods neither as deleted nor as ignored."""
    pods = [make_pod("agent", owner="DaemonSet"), make_pod("bare"), make_pod_with_empty_dir(name="scratch")]
    options = DrainOptions(delete_emptydir_data=False)

    assert build_drain_warning(classify_for_drain(pods, options, NOW), options).startswith(
        "ignoring DaemonSet-managed Pods: ns/agent; deleting"
    )
    assert build_drain_warning(classify_for_drain(pods, options, NOW), options).endswith(": ns/bare")
    assert build_drain_warning(classify_for_drain(pods, STRICT_OPTIONS, NOW), STRICT_OPTIONS) == ""


def test_blocked_pod_counts_as_reported_only_with_same_reason() -> None:
    """DRN-1a: a blocked pod counts as reported only if the status lists the pod with the same reason."""
    (refusal,) = find_pods_blocked_by_flags(classify_for_drain([make_pod()], STRICT_OPTIONS, NOW), STRICT_OPTIONS)
    reported_pod = {"namespace": "ns", "name": "pod", "reason": "Force"}

    assert drain_flags.are_refusals_reported(
        [refusal], make_maintenance_with_drain({}, {"blockedPods": [reported_pod]})
    )
    assert drain_flags.are_refusals_reported([], make_maintenance_with_drain({}))
    assert not drain_flags.are_refusals_reported(
        [refusal], make_maintenance_with_drain({}, {"blockedPods": [{**reported_pod, "reason": "DisruptionBudget"}]})
    )
    assert not drain_flags.are_refusals_reported([refusal], make_maintenance_with_drain({}))


@pytest.mark.parametrize(
    ("observed_generation", "is_changed"),
    [(1, True), (2, False), (3, False), (None, False)],
    ids=["older", "same", "newer", "none"],
)
def test_spec_counts_as_changed_if_newer_than_status(observed_generation: int | None, is_changed: bool) -> None:
    status = {
        "conditions": [
            {"type": "Drained", **({"observedGeneration": observed_generation} if observed_generation else {})}
        ]
    }
    maintenance = make_maintenance_with_drain({}, status)
    maintenance["metadata"]["generation"] = 2

    assert m.is_spec_changed(maintenance) is is_changed


@given(st.dictionaries(st.sampled_from(["force", "podSelector"]), st.sampled_from([None, False, "app=web"])))
def test_unset_drain_flags_are_omitted_from_spec(given_flags: dict[str, object]) -> None:
    spec = build_drain_spec(given_flags)

    assert spec.get("drain", {}) == {name: value for name, value in given_flags.items() if value is not None}
    assert spec == {} or spec["drain"]


def test_invalid_pod_selector_is_parsed_once() -> None:
    """Design rule 9: an invalid `podSelector`, which may be long, is parsed only once for all pods."""
    options, initial_misses = DrainOptions(pod_selector="once in (" + " " * 2000), parse_selector.cache_info().misses

    classification = classify_for_drain([make_pod(str(number)) for number in range(250)], options, NOW)

    assert len(find_pods_blocked_by_flags(classification, options)) == 250
    assert parse_selector.cache_info().misses - initial_misses == 1


@given(pod_lists)
def test_default_drain_flags_block_no_pod(leaving: list[Object]) -> None:
    """DRN-1a: with the default flags, neither emptyDir data nor DaemonSets block any pod."""
    pods = [{**pod, "spec": EMPTY_DIR_SPEC} for pod in leaving]

    assert get_block_reasons(pods, DEFAULT_DRAIN_OPTIONS, {get_uid(pod) for pod in pods}) == []
