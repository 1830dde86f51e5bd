"""Reports the outcomes of eviction passes: event data, log lines and a metric; decides which hints a pass has handled.

Each eviction must be in the journal (NMO-17, NMO-17a), but the API server may respond to an eviction request after its
pass has ended. Usually the next pass in this process reports such a late eviction (one whose response arrives after
its pass). If no pass follows in this process, the late eviction is published as an additional reply to the event of
its pass. This happens after a delay, or when the process exits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from operator import itemgetter
from typing import Any, TypeAlias

from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from eventing.http_binding import BadEvent
from eventing.signatures import sign_event
from functions.event_data import is_nonempty_string, parse_resource_version, require_data
from functions.maintenance.event_objects import log_about, parse_node_name, parse_reference
from functions.maintenance.metrics import EVICTIONS
from functions.work_queue import HintPolicy, Replies, ResourceVersions, WorkKey
from kube.budgets import LOOSER_BUDGET_PATTERN, PROGRESSING_REASONS
from kube.client.sync_client import SyncClient
from kube.evictions.executor import EvictionOutcome
from kube.evictions.tracker import EvictionTracker, LateEvictionReporter
from kube.maintenance.blocked_pods import format_summary
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.node_snapshot import StepSnapshot, parse_leaving_entry
from kube.maintenance.objects import Maintenance, get_group, is_valid_pod_count, trim_maintenance
from kube.maintenance.status_patch import MAX_ERROR_CHARACTERS
from kube.paths import Object
from kube.resource_versions import find_newest_resource_version, is_at_least_as_new
from kube.text_limits import format_count, take_within_bytes, truncate
from kube.times import parse_time_or_none

PublishReplies: TypeAlias = Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]
"""Function that publishes additional replies to the event that triggered a pass."""
VERSION_FIELDS = ("podsVersion", "budgetsVersion")
"""Data fields of a hint that contain resourceVersions; the pass for the hint must not read an older state."""
HINT_VERSION_FIELDS = {
    events.PODS_GONE: VERSION_FIELDS[:1],
    events.PODS_ADDED: VERSION_FIELDS[:1],
    events.BUDGET_OPENED: VERSION_FIELDS,
}
"""Map from a hint's type to its resourceVersion fields; a pass that has read these versions has handled the hint."""
REQUIRED_FIELDS = ("namespace", "name", "reason")
FIELD_CHECKS: Mapping[str, Callable[[object], bool]] = {
    **dict.fromkeys(("namespace", "name", "reason", "uid"), is_nonempty_string),
    **dict.fromkeys(("message", "budget"), lambda value: value == "" or is_nonempty_string(value)),
    **dict.fromkeys(("healthy", "needed"), is_valid_pod_count),
    "allowsNone": lambda value: isinstance(value, bool),
    "looserBudget": lambda value: isinstance(value, str) and bool(LOOSER_BUDGET_PATTERN.fullmatch(value)),
    "retryAfter": lambda value: parse_time_or_none(value) is not None,
}
"""Map from a field of a blocked pod to the function that validates the field's value; all other fields are dropped."""
MAX_BLOCKED_BYTES = 1_200_000
"""Maximum size in bytes of the list of blocked pods in one event.

The number of pods and the length of the API server's messages are unbounded, but brokers limit the size of an event.
"""


def _build_work_key(event: BaseCloudEvent) -> WorkKey:
    """Return the work queue key of the event: node and maintenance. Raises `BadEvent` if the event is malformed."""
    for name in VERSION_FIELDS:
        parse_resource_version(event, name)
    return WorkKey(f"node {parse_node_name(event)}", parse_reference(event).uid)


class PodHintPolicy(HintPolicy):
    """Coalescing policy of `evict`: hints about the same node and maintenance share a pass."""

    def __init__(self) -> None:
        super().__init__(_build_work_key)

    def may_replace(self, waiting: BaseCloudEvent, newer: BaseCloudEvent) -> bool:
        """Return whether the waiting hint is neither `node.tainted` nor `drain.overdue`.

        For these two types, `evict` also reports a drifted node and repeats evacuation requests. For a newer hint
        about a pod or PodDisruptionBudget, `evict` would do neither.
        """
        return waiting.get_type() not in (events.NODE_TAINTED, events.DRAIN_OVERDUE)

    def merge_hints(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return the last hint with the newest `podsVersion` and `budgetsVersion` of all hints."""
        versions = {
            name: find_newest_resource_version(parse_resource_version(hint, name) for hint in hints)
            for name in VERSION_FIELDS
        }
        return sign_event(events.copy_with_added_data(hints[-1], versions))

    def read_versions(self, replies: Replies) -> ResourceVersions:
        """Return the `podsVersion` and `budgetsVersion` in the last reply."""
        data = require_data(replies[-1]) if replies else {}
        return {name: str(data.get(name) or "") for name in VERSION_FIELDS}

    def has_seen(self, versions: ResourceVersions, hint: BaseCloudEvent) -> bool:
        """Return whether a pass that has read `versions` has already handled the hint.

        A hint whose type is not in `HINT_VERSION_FIELDS` needs a pass. So does a repeated `budget.opened`, which
        PodSource emits without `podsVersion` because no pass has acted on the first one.
        """
        names = HINT_VERSION_FIELDS.get(hint.get_type(), ())
        return bool(names) and all(
            is_at_least_as_new(versions.get(name, ""), parse_resource_version(hint, name)) for name in names
        )


def build_blocked_data(blocked: list[Object], error: str) -> Object:
    """Build the event data for as many blocked pods as fit into an event, in the order of their uids.

    With a fixed order, each event lists the same pods. If an event omitted a pod that an earlier event listed, the
    status would lose the start time of the pod's blockage, which determines the pod's backoff.
    """
    ordered = sorted(blocked, key=itemgetter("uid"))
    return {
        "blocked": take_within_bytes(ordered, MAX_BLOCKED_BYTES, ascii_only=True),
        "error": truncate(error, MAX_ERROR_CHARACTERS),
    }


def build_evicted_data(outcome: EvictionOutcome, pods_version: str, budgets_version: str) -> Object:
    """Build the data of `pods.evicted`, except the snapshot of the node."""
    error = format_summary(item for item in outcome.blocked if item.reason not in PROGRESSING_REASONS)
    return {
        "evicted": outcome.evicted,
        **build_blocked_data([item.as_data() for item in outcome.blocked], error),
        "podsVersion": pods_version,
        **({"budgetsVersion": budgets_version} if budgets_version else {}),
    }


def parse_blocked_pods(event: BaseCloudEvent) -> list[Object] | None:
    """Return `data.blocked`, or None if it is missing. Raises a `BadEvent` that names the malformed field."""
    blocked = require_data(event).get("blocked")
    if blocked is None:
        return None
    if not isinstance(blocked, list):
        raise BadEvent("data.blocked is not a list")
    return [_parse_blocked_pod(pod) for pod in blocked]


def _parse_blocked_pod(pod: Any) -> Object:
    if not isinstance(pod, dict):
        raise BadEvent("data.blocked contains an item that is not an object")
    for name, is_valid in FIELD_CHECKS.items():
        if not is_valid(pod[name]) if name in pod else name in REQUIRED_FIELDS:
            raise BadEvent(f"{name} of a pod in data.blocked is missing or malformed")
    return {name: pod[name] for name in pod if name in FIELD_CHECKS}


def parse_snapshot(event: BaseCloudEvent) -> StepSnapshot | None:
    """Return the snapshot of the node in the event's data, or None. Raises `BadEvent` if the snapshot is malformed."""
    version, leaving = parse_resource_version(event, "maintenanceVersion"), require_data(event).get("left")
    if not version:
        return None
    if not isinstance(leaving, list | None) or not all(map(_is_valid_remaining_pod, leaving or [])):
        raise BadEvent("data.left is not a list of pods")
    return StepSnapshot(
        version,
        require_data(event).get("closed") is True,
        list(map(parse_leaving_entry, leaving or [])),
        require_data(event).get("unreachable") is True,
    )


def _is_valid_remaining_pod(pod: Any) -> bool:
    """Return whether all fields of the remaining pod `pod` that the status reports are valid."""
    if not isinstance(pod, dict) or not all(is_nonempty_string(pod.get(name)) for name in ("namespace", "name")):
        return False
    deleted_at, phase = pod.get("deletionTimestamp"), pod.get("phase")
    lists = [pod.get(name, []) for name in ("finalizers", "claims")]
    return (
        (deleted_at is None or parse_time_or_none(deleted_at) is not None)
        and (phase is None or is_nonempty_string(phase))
        and all(isinstance(names, list) and all(map(is_nonempty_string, names)) for names in lists)
    )


def report_outcome(maintenance: Maintenance, outcome: EvictionOutcome, event: BaseCloudEvent) -> None:
    """Log the outcome of an eviction pass, and count its pods in the metric unless the event is a replay."""
    if not extensions.is_replay(event):
        EVICTIONS.labels("evicted").inc(len(outcome.evicted))
        EVICTIONS.labels("gone").inc(len(outcome.already_gone))
        EVICTIONS.labels("blocked").inc(len(outcome.blocked))
    if outcome.evicted:
        log_about("Evict all Pods from Node", maintenance)
    for pod in outcome.evicted:
        pod_name = f"{pod['namespace']}/{pod['name']}"
        # The format of the log line depends on the maintenance's API group.
        logged_name = pod_name if get_group(maintenance) is MEDIK8S else f'"{pod["name"]}"'
        verb = f"deleting (step {pod['action']})" if "action" in pod else "evicting"
        log_about(f"{verb} pod {logged_name}", maintenance, pod=pod_name)
    if outcome.blocked:
        log_about(
            f"{format_count(len(outcome.blocked), 'pod')} blocked", maintenance, error=format_summary(outcome.blocked)
        )


class LateEvictionPublisher:
    """Publisher of the evictions that were granted after their pass had ended and that no later pass has reported."""

    def __init__(self) -> None:
        self._clients: set[SyncClient] = set()
        self._publish: PublishReplies | None = None

    def set_publisher(self, publish: PublishReplies) -> None:
        """Set the function that publishes late evictions, which are granted after their pass has ended."""
        self._publish = publish

    def build_reporter(self, event: BaseCloudEvent, maintenance: Maintenance) -> LateEvictionReporter:
        """Return the function that publishes this pass's late evictions as an additional reply to `event`.

        A late eviction is granted after its pass has ended.
        """
        # The function keeps only the trimmed maintenance, because the status may contain long pod lists.
        trimmed = {"apiVersion": maintenance["apiVersion"], **trim_maintenance(maintenance)}
        return partial(self._publish_late_evictions, event, trimmed)

    def track_client(self, client: SyncClient) -> None:
        """Remember an API client with in-flight evictions, for which `close` waits."""
        self._clients.add(client)

    def close(self) -> None:
        """Wait briefly for in-flight evictions, and publish those granted after their pass has ended.

        The process calls this function before it exits.
        """
        while self._clients:
            client = self._clients.pop()
            client.run(EvictionTracker.for_client(client.api).report_late_evictions())

    def _publish_late_evictions(
        self, event: BaseCloudEvent, maintenance: Maintenance, pods: list[dict[str, str]]
    ) -> None:
        report_outcome(maintenance, EvictionOutcome(evicted=pods), event)
        if self._publish:
            reference, node, seed = parse_reference(event), parse_node_name(event), pods[0]["uid"]
            late = events.build_event(
                events.PODS_EVICTED, "evict", reference, node, cause=event, seed=seed, data={"evicted": pods}
            )
            self._publish(event, [late])
