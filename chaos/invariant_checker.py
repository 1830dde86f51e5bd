"""Checks observations in resourceVersion order for forbidden evictions and deletions, and for premature success.

This module does no I/O. The observations arrive out of order, so each check waits until all observations that it needs
have arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple

from chaos.audit_requests import DeletionRequest, EvictionRequest
from chaos.step_checks import EscalationDeletion, EscalationStepKey, find_forbidden_deletion
from kube.maintenance.escalation import find_current_escalation_step
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import SUCCEEDED, get_node_name, get_phase, is_deleting
from kube.nodes import is_cordoned_and_tainted
from kube.paths import Object
from kube.pods import format_key, is_never_evicted, is_ready, is_terminating
from kube.times import parse_time

GRACE_SECONDS = 2.0
"""Tolerance in seconds for requests that were already on their way.

The product may decide on an eviction shortly before the maintenance is deleted, the node is uncordoned, or the pod
starts to terminate. The eviction request may arrive up to this time after that change.
"""
MAX_DUPLICATE_SHARE = 0.01
"""Maximum share of the evicted pods for which two evictions may be granted within `GRACE_SECONDS`."""
NODES, PODS, MAINTENANCES = "nodes", "pods", "nodemaintenances"


class ObservedVersion(NamedTuple):
    """A resourceVersion, and the time at which it was observed."""

    version: int
    seen_at: float


@dataclass
class PodHistory:
    """The observed changes of a pod; `ready_by_version` maps its resourceVersions to whether the pod was ready."""

    name: str
    must_leave: bool = True
    node: str = ""
    bound_at: ObservedVersion | None = None
    terminating_at: ObservedVersion | None = None
    deleted_version: int | None = None
    ready_by_version: dict[int, bool] = field(default_factory=dict)

    def find_next_version(self, version: int) -> int | None:
        """Return the pod's next resourceVersion after `version`, or None if no later version was observed."""
        versions = [*self.ready_by_version, *([self.deleted_version] if self.deleted_version else [])]
        return min((item for item in versions if item > version), default=None)


NEVER_ENDED: tuple[ObservedVersion, EscalationStepKey | None] = (ObservedVersion(0, inf), None)
"""The entry after the last escalation step of a maintenance, which has not ended."""


@dataclass
class MaintenanceHistory:
    """The observed changes of a NodeMaintenance.

    Attributes:
        name: The maintenance's name.
        node: The name of its node.
        created_at: The time of its creation, in seconds since the epoch.
        phase: The latest observed phase.
        deletion_seen_at: When the deletion was first observed, or None.
        steps: The changes of the current escalation step; None stands for no step.
    """

    name: str
    node: str
    created_at: float
    phase: str = ""
    deletion_seen_at: float | None = None
    steps: list[tuple[ObservedVersion, EscalationStepKey | None]] = field(default_factory=list)

    def list_steps(self, version: int, requested_at: float) -> list[EscalationStepKey]:
        """Return the steps that began before `version`, and had not ended `GRACE_SECONDS` before the request."""
        return [
            step
            for (began, step), (ended, _) in pairwise([*self.steps, NEVER_ENDED])
            if step and began.version < version and requested_at <= ended.seen_at + GRACE_SECONDS
        ]


@dataclass
class Tally:
    """The numbers of completed checks, of checks that a watch gap prevented, and of granted evictions by pod uid."""

    checked: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    grants: Counter[str] = field(default_factory=Counter)


class InvariantChecker:
    """Records observations; `check_until` checks the recorded observations and returns the violations."""

    def __init__(self) -> None:
        self.tally = Tally()
        self.escalation_deletions: list[EscalationDeletion] = []
        self._pods: dict[str, PodHistory] = {}
        self._nodes: dict[str, list[tuple[ObservedVersion, bool]]] = defaultdict(list)
        self._maintenances: dict[str, MaintenanceHistory] = {}
        self._gaps: list[WatchGap] = []
        self._pending_checks: list[tuple[float, Callable[[], Iterator[str]]]] = []

    def record(self, observation: Observation) -> None:
        """Record an observation, and schedule its check if it needs one."""
        if isinstance(observation, WatchGap):
            self._gaps.append(observation)
        elif isinstance(observation, EvictionRequest):
            self._pending_checks.append((observation.requested_at, lambda: self._check_eviction(observation)))
        elif isinstance(observation, DeletionRequest):
            self._pending_checks.append((observation.requested_at, lambda: self._check_deletion(observation)))
        else:
            {NODES: self._record_node, PODS: self._record_pod, MAINTENANCES: self._record_maintenance}[
                observation.collection
            ](observation)

    def check_until(self, end_time: float) -> list[str]:
        """Run the pending checks of observations from before `end_time`, and return the violations."""
        due_checks = [check for at, check in self._pending_checks if at < end_time]
        self._pending_checks = [(at, check) for at, check in self._pending_checks if at >= end_time]
        return [violation for check in due_checks for violation in check()]

    def check_totals(self) -> list[str]:
        """Return violations of limits on a run's totals; call this method after the last `check_until`."""
        duplicates, pod_count = sum(count > 1 for count in self.tally.grants.values()), len(self.tally.grants)
        if duplicates > MAX_DUPLICATE_SHARE * pod_count:
            return [
                f"evictions of {duplicates} of {pod_count} pods were granted twice: more than {MAX_DUPLICATE_SHARE:.0%}"
            ]
        return []

    def _record_node(self, observation: ObjectObservation) -> None:
        history = self._nodes[observation.object["metadata"]["name"]]
        is_under_maintenance = not observation.is_deleted and any(
            is_cordoned_and_tainted(observation.object, taint) for taint in DRAIN_TAINTS
        )
        if is_under_maintenance != (history[-1][1] if history else False):
            history.append((ObservedVersion(observation.version, observation.seen_at), is_under_maintenance))

    def _record_pod(self, observation: ObjectObservation) -> None:
        pod = self._pods.setdefault(observation.object["metadata"]["uid"], PodHistory(format_key(observation.object)))
        now = ObservedVersion(observation.version, observation.seen_at)
        pod.must_leave = not is_never_evicted(observation.object)
        pod.node = observation.object["spec"].get("nodeName") or pod.node
        pod.bound_at = pod.bound_at or (now if pod.node else None)
        pod.terminating_at = pod.terminating_at or (now if is_terminating(observation.object) else None)
        pod.deleted_version = pod.deleted_version or (observation.version if observation.is_deleted else None)
        if not observation.is_deleted:
            pod.ready_by_version[observation.version] = is_ready(observation.object)

    def _record_maintenance(self, observation: ObjectObservation) -> None:
        maintenance = observation.object
        created_at = parse_time(maintenance["metadata"]["creationTimestamp"]).timestamp()
        new_history = MaintenanceHistory(maintenance["metadata"]["name"], get_node_name(maintenance), created_at)
        history = self._maintenances.setdefault(maintenance["metadata"]["uid"], new_history)
        if history.deletion_seen_at is None and (observation.is_deleted or is_deleting(maintenance)):
            history.deletion_seen_at = observation.seen_at
        now, step = ObservedVersion(observation.version, observation.seen_at), find_current_escalation_step(maintenance)
        key = EscalationStepKey(maintenance["metadata"]["uid"], step.action, step.after) if step else None
        if key != (history.steps[-1][1] if history.steps else None):
            history.steps.append((now, key))
        if not observation.is_deleted and get_phase(maintenance) == SUCCEEDED != history.phase:
            self._pending_checks.append((observation.seen_at, lambda: self._check_success(history, now)))
        history.phase = get_phase(maintenance)

    def _check_eviction(self, eviction: EvictionRequest) -> Iterator[str]:
        pod = self._pods.get(eviction.uid)
        if pod is None or pod.terminating_at is None:
            self.tally.unchecked["evictions"] += eviction.is_granted
            return
        if eviction.requested_at > pod.terminating_at.seen_at + GRACE_SECONDS:
            delay = eviction.requested_at - pod.terminating_at.seen_at
            yield f"pod {pod.name} was evicted again {delay:.1f} s after it was terminating"
        elif eviction.is_granted:
            self.tally.grants[eviction.uid] += 1
            if self.tally.grants[eviction.uid] == 1:
                yield from self._check_granted_eviction(eviction, pod, pod.terminating_at)

    def _check_granted_eviction(
        self, eviction: EvictionRequest, pod: PodHistory, terminating_at: ObservedVersion
    ) -> Iterator[str]:
        if not any(
            self._is_maintenance_active(maintenance, pod.node, eviction.requested_at)
            for maintenance in self._maintenances.values()
        ):
            if self._may_have_missed_object(MAINTENANCES, eviction.requested_at):
                self.tally.unchecked["evictions"] += 1
                return
            yield (
                f"pod {pod.name} was evicted from node {pod.node} without a NodeMaintenance, "
                f"or more than {GRACE_SECONDS:.0f} s after its deletion"
            )
        if self._is_in_watch_gap(terminating_at.version, NODES, PODS):
            self.tally.unchecked["evictions"] += 1
            return
        self.tally.checked["evictions"] += 1
        yield from self._check_node(pod, "evicted", eviction.requested_at, terminating_at.version)

    def _check_node(self, pod: PodHistory, verb: str, requested_at: float, version: int) -> Iterator[str]:
        """Yield a violation if the pod's node was not under maintenance when the pod was evicted or deleted.

        `verb` is "evicted" or "deleted", and `version` is the pod's resourceVersion after the request.
        """
        earlier_states = [
            (changed_at, is_under_maintenance)
            for changed_at, is_under_maintenance in self._nodes[pod.node]
            if changed_at.version < version
        ]
        if not earlier_states:
            yield f"pod {pod.name} was {verb} from node {pod.node} before the node was cordoned and tainted"
        elif not earlier_states[-1][1] and requested_at > earlier_states[-1][0].seen_at + GRACE_SECONDS:
            delay = requested_at - earlier_states[-1][0].seen_at
            yield f"pod {pod.name} was {verb} {delay:.1f} s after node {pod.node} was uncordoned"

    def _check_deletion(self, request: DeletionRequest) -> Iterator[str]:
        """Check an escalation step's deletion of a pod in the resourceVersion of the request's preconditions."""
        pod = self._pods.get(request.uid)
        new_version = pod.find_next_version(request.version) if pod else None
        if (
            pod is None
            or new_version is None
            or request.version not in pod.ready_by_version
            or self._is_in_watch_gap(new_version, NODES, PODS, MAINTENANCES)
        ):
            self.tally.unchecked["deletions"] += 1
            return
        self.tally.checked["deletions"] += 1
        steps = {
            step
            for maintenance in self._maintenances.values()
            if self._is_maintenance_active(maintenance, pod.node, request.requested_at)
            for step in maintenance.list_steps(new_version, request.requested_at)
        }
        was_terminating = pod.terminating_at is not None and pod.terminating_at.version <= request.version
        was_ready = pod.ready_by_version[request.version]
        deletion = EscalationDeletion(request.requested_at, pod.name, steps, was_ready, was_terminating)
        self.escalation_deletions.append(deletion)
        yield from find_forbidden_deletion(deletion)
        yield from self._check_node(pod, "deleted", request.requested_at, new_version)

    @staticmethod
    def _is_maintenance_active(maintenance: MaintenanceHistory, node: str, timestamp: float) -> bool:
        ended = maintenance.deletion_seen_at is not None and timestamp > maintenance.deletion_seen_at + GRACE_SECONDS
        return maintenance.node == node and maintenance.created_at <= timestamp and not ended

    def _check_success(self, maintenance: MaintenanceHistory, reported_at: ObservedVersion) -> Iterator[str]:
        if self._is_in_watch_gap(reported_at.version, PODS, MAINTENANCES):
            self.tally.unchecked["successes"] += 1
            return
        self.tally.checked["successes"] += 1
        for pod in self._pods.values():
            if pod.node == maintenance.node and pod.must_leave and self._was_on_node(pod, reported_at):
                yield f"NodeMaintenance {maintenance.name} is Succeeded, but pod {pod.name} is on node {pod.node}"

    @staticmethod
    def _was_on_node(pod: PodHistory, reported_at: ObservedVersion) -> bool:
        """Return whether the pod existed at the time of the success, and had been bound before the grace period."""
        was_bound = (
            pod.bound_at is not None
            and pod.bound_at.version < reported_at.version
            and pod.bound_at.seen_at < reported_at.seen_at - GRACE_SECONDS
        )
        return was_bound and (pod.deleted_version is None or pod.deleted_version > reported_at.version)

    def _is_in_watch_gap(self, version: int, *collections: str) -> bool:
        return any(
            gap.collection in collections and gap.after_version < version <= gap.until_version for gap in self._gaps
        )

    def _may_have_missed_object(self, collection: str, timestamp: float) -> bool:
        """Return whether a watch gap may hide an object that existed at this time or up to `GRACE_SECONDS` earlier."""
        return any(
            gap.collection == collection and gap.started_at <= timestamp <= gap.ended_at + GRACE_SECONDS
            for gap in self._gaps
        )


@dataclass(frozen=True)
class ObjectObservation:
    """One version of an object, as observed in a watch.

    Attributes:
        seen_at: The time of the observation, in seconds since the epoch.
        collection: The name of the object's collection.
        object: The object in this version.
        is_deleted: Whether the object was deleted; `object` is then its last version.
    """

    seen_at: float
    collection: str
    object: Object
    is_deleted: bool = False

    @property
    def version(self) -> int:
        """Return the object's resourceVersion; resourceVersions order the changes of all objects."""
        return int(self.object["metadata"]["resourceVersion"])


@dataclass(frozen=True)
class WatchGap:
    """A gap in a watch: after an interruption, the watch resumed from a list, which contains only the latest versions.

    Attributes:
        collection: The name of the watched collection.
        after_version, until_version: The range of resourceVersions in which changes may be missing.
        started_at, ended_at: The start and the end of the gap, in seconds since the epoch. Objects that were created
            and deleted during the gap are not in the list.
    """

    collection: str
    after_version: int
    until_version: int
    started_at: float = 0.0
    ended_at: float = 0.0


Observation = ObjectObservation | WatchGap | EvictionRequest | DeletionRequest
