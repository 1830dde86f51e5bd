"""Evict pods for up to a second and report blocked pods; never wait for termination (NMO-5 to NMO-9, design rule 3).

In: `node.tainted`, `budget.opened`, `pods.added`, `virt_launchers.wait_changed`, `drain.overdue`, `drain.escalated`;
`pods.gone` and `pods.evicted` flagged `more`.
Out: `pods.evicted`, `node.drained`, `node.drifted`.
Touches: nodemaintenances get; nodes get; pods get, list; pods/eviction create; poddisruptionbudgets list;
daemonsets get; leases get in medik8s-leases.
With `spec.drain.disableEviction`, the step deletes pods instead. While the status and the spec contain the same
escalation step, it also deletes pods that cannot be evicted. Only the component `deleting` grants the permission to
delete pods.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events, extensions
from functions.event_data import parse_resource_version, require_data
from functions.failures import Failed
from functions.installs import is_active_install
from functions.maintenance.event_objects import (
    build_step_failed,
    fetch_active_maintenance,
    parse_node_name,
    parse_reference,
)
from functions.maintenance.eviction_reports import (
    HINT_VERSION_FIELDS,
    LateEvictionPublisher,
    PodHintPolicy,
    build_evicted_data,
    report_outcome,
)
from functions.steps import step
from kube.budgets import BlockedPod, build_object_reference
from kube.client.paging import ListResult
from kube.client.sync_client import SyncClient
from kube.evictions.executor import (
    EvictionOutcome,
    ExecutionOptions,
    collect_late_evictions,
    execute_eviction_plan,
    list_covering_budgets,
)
from kube.evictions.planner import EvictionPlan, plan_evictions
from kube.maintenance import drain_flags, escalation
from kube.maintenance.blocked_pods import UNDECIDED_REASONS, add_retry_after, split_due_pods, was_blocked_by_same_cause
from kube.maintenance.lookup import find_orphan_uids, list_pods_on_node
from kube.maintenance.node_snapshot import NodeSnapshot, StepSnapshot
from kube.maintenance.objects import Maintenance, get_group, is_reported_drained
from kube.maintenance.status_patch import StatusInput, build_status_patch
from kube.nodes import Node, is_cordoned_and_tainted, is_unreachable
from kube.paths import Object
from kube.pods import DrainOptions, Pod, PodClassification, get_uid, is_terminating

CHANGE_TYPES = (*HINT_VERSION_FIELDS, events.VIRT_LAUNCHERS_WAIT_CHANGED)
"""Types of the events that report changes of pods or PodDisruptionBudgets; other events report the node's state."""
LATE_EVICTION_PUBLISHER = LateEvictionPublisher()
NO_TIME_MESSAGE = "not evicted yet: the API server is slow, or asked clients to wait"
OWN_POD_MESSAGE = "the pod runs the function evict: it is evicted once its evictions on other nodes have a response"


@step(
    "evict",
    consumes=events.TYPES_BY_FLAG["more"],
    emits=(events.PODS_EVICTED, events.NODE_DRAINED, events.NODE_DRIFTED),
    on_failure=build_step_failed,
    coalescing=PodHintPolicy(),
    late_replies=LATE_EVICTION_PUBLISHER,
    requires_signature=True,
)
def evict(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Evict the pods that may be evicted now, and report the blocked pods; return `node.drained` if no pod is left.

    If the node is not cordoned and tainted, the function evicts no pod (see `EvictionPass.report_drift`). Raises
    `Failed` if the node no longer exists.
    """
    if not is_active_install(client):
        return []
    eviction_pass = client.run(EvictionPass.load(event, client))
    if eviction_pass is None:
        return []
    if not eviction_pass.is_node_cordoned_and_tainted():
        return eviction_pass.report_drift()
    pods = client.run(eviction_pass.classify_pods())
    if not pods.leaving:
        return eviction_pass.report_drained(pods)
    plan = eviction_pass.plan(pods)
    outcome = client.run(eviction_pass.execute(plan))
    return eviction_pass.report_evictions(pods, outcome)


class ClassifiedPods(NamedTuple):
    """The node's classified pods, the resourceVersion of their list, and the PodDisruptionBudgets that cover them."""

    classification: PodClassification
    version: str
    budgets: ListResult

    @property
    def leaving(self) -> list[Pod]:
        """Return the pods that must still leave the node, including terminating ones."""
        return self.classification.leaving


@dataclass(frozen=True)
class EvictionPass:
    """One eviction pass over a node: the objects that the pass has read, and the methods that build its reply.

    Attributes:
        pod_list: The node's pods, at least as new as the event's `podsVersion`.
        options: The drain options of the maintenance.
        now: Time of the pass; all backoffs are relative to this time.
        own_pod_name: Name of the pod that runs this process, "" outside a pod.
    """

    event: BaseCloudEvent
    client: SyncClient
    maintenance: Maintenance
    node: Node
    pod_list: ListResult
    options: DrainOptions
    now: datetime
    own_pod_name: str

    @classmethod
    async def load(cls, event: BaseCloudEvent, client: SyncClient) -> EvictionPass | None:
        """Read the maintenance, its node and the node's pods concurrently.

        Returns None if the maintenance is not active; an error of the pod list is then ignored. Raises `Failed` if the
        node no longer exists.
        """
        node_name, version = parse_node_name(event), parse_resource_version(event, "podsVersion") or "0"
        active, pod_list = await asyncio.gather(
            fetch_active_maintenance(event, client.api),
            list_pods_on_node(client.api, node_name, version),
            return_exceptions=True,
        )
        if isinstance(active, BaseException):
            raise active
        if active is None:
            return None
        if isinstance(pod_list, BaseException):
            raise pod_list
        options = drain_flags.parse_drain_options(active[0])
        return cls(
            event, client, *active, pod_list, options, datetime.now(timezone.utc), os.environ.get("HOSTNAME", "")
        )

    def is_node_cordoned_and_tainted(self) -> bool:
        """Return whether the node is cordoned and tainted; otherwise, no pod may be evicted (NMO-5)."""
        return is_cordoned_and_tainted(self.node, get_group(self.maintenance).drain_taint)

    def report_drift(self) -> list[BaseCloudEvent]:
        """Return `node.drifted`, so that `cordon` repairs the node; return [] for an event about pods or budgets.

        Raises `Failed` if the node has drifted again right after a repair; the next resync repairs the node (rule 9).
        """
        if self.event.get_type() in CHANGE_TYPES:
            return []  # `guard` starts the repair of the node; while `guard` backs off, `resync` does.
        name = parse_node_name(self.event)
        if require_data(self.event).get("again"):
            raise Failed(
                f'node "{name}": another client reverted the cordon or the taint twice; retrying at the next tick'
            )
        data = {"message": f'node "{name}" is no longer cordoned and tainted', "again": True}
        return self._build_reply(events.NODE_DRIFTED, data)

    async def classify_pods(self) -> ClassifiedPods:
        """Classify the node's pods by `spec.drain`, and read the PodDisruptionBudgets that cover them.

        The PodDisruptionBudgets are at least as new as the event's `budgetsVersion`. If no pod is left, a second, fresh
        list of the pods confirms that. `pods.gone` needs no second list, because the first list is at least as new as
        that event. Only if no other pod can be evicted, the pods' DaemonSets are read, to find orphaned pods.
        """
        listed = self.pod_list
        is_fresh = self.event.get_type() == events.PODS_GONE and bool(parse_resource_version(self.event, "podsVersion"))
        pods = drain_flags.classify_for_drain(listed.items, self.options, self.now)
        if not pods.leaving and not is_fresh:
            listed = await list_pods_on_node(self.client.api, parse_node_name(self.event))
            pods = drain_flags.classify_for_drain(listed.items, self.options, self.now)
        if pods.daemonset_pods and not drain_flags.select_evictable_pods(pods, self.options):
            orphan_uids = await find_orphan_uids(self.client.api, pods.daemonset_pods)
            pods = drain_flags.classify_for_drain(listed.items, self.options, self.now, orphan_uids)
        running = [pod for pod in drain_flags.select_evictable_pods(pods, self.options) if not is_terminating(pod)]
        budgets_version = parse_resource_version(self.event, "budgetsVersion") or "0"
        budgets = await list_covering_budgets(self.client.api, running, budgets_version)
        return ClassifiedPods(pods, listed.resource_version, budgets)

    def report_drained(self, pods: ClassifiedPods) -> list[BaseCloudEvent]:
        """Return `node.drained`, with the evictions that were granted after the last pass had ended.

        Returns an empty list if the status already reports the node as drained and there are no such evictions.
        """
        is_replay = extensions.is_replay(self.event)
        evicted = (
            [] if is_replay else self.client.run(collect_late_evictions(self.client.api, parse_node_name(self.event)))
        )
        if is_reported_drained(self.maintenance) and not evicted:
            return []
        report_outcome(self.maintenance, EvictionOutcome(evicted=evicted), self.event)
        data = {**({"evicted": evicted} if evicted else {}), "podsVersion": pods.version, **self._build_snapshot([])}
        return self._build_reply(events.NODE_DRAINED, data)

    def plan(self, pods: ClassifiedPods) -> EvictionPlan:
        """Plan the evictions that the PodDisruptionBudgets allow and the escalation's deletions; skip pods in backoff.

        `node.tainted` and `drain.overdue`, which `resync` also emits, repeat the evacuation request for each pod that
        waits for KubeVirt.
        """
        evictable = drain_flags.select_evictable_pods(pods.classification, self.options)
        due, backing_off = split_due_pods(evictable, self.maintenance, self.now)
        repeats_evacuation_requests = self.event.get_type() in (events.NODE_TAINTED, events.DRAIN_OVERDUE)
        plan = plan_evictions(
            due,
            pods.budgets.items,
            self.options,
            lambda item: repeats_evacuation_requests or not was_blocked_by_same_cause(item, self.maintenance),
        )
        return self._add_escalation_deletions(replace(plan, blocked=[*plan.blocked, *backing_off]), pods)

    def _add_escalation_deletions(self, plan: EvictionPlan, pods: ClassifiedPods) -> EvictionPlan:
        """Add the deletions of the current escalation step to the plan, based only on what this pass has read."""
        step = escalation.find_current_escalation_step(self.maintenance)
        if step is None:
            return plan
        permitted = drain_flags.select_permitted_pods(pods.classification, self.options)
        deletions = escalation.select_pods_to_delete(self.maintenance, permitted, plan.blocked, self.now)
        return plan.with_deletions(deletions, escalation.build_deletion_options(step, self.options))

    async def execute(self, plan: EvictionPlan) -> EvictionOutcome:
        """Execute the plan for up to one second; evictions that get their response afterwards are reported later."""
        is_dry_run = extensions.is_dry_run(self.event)
        options = ExecutionOptions(
            parse_node_name(self.event),
            self.own_pod_name,
            extensions.is_replay(self.event),
            None if is_dry_run else LATE_EVICTION_PUBLISHER.build_reporter(self.event, self.maintenance),
        )
        outcome = await execute_eviction_plan(self.client.api, plan, options)
        if outcome.in_flight and not is_dry_run:
            LATE_EVICTION_PUBLISHER.track_client(self.client)
        return outcome

    def report_evictions(self, pods: ClassifiedPods, outcome: EvictionOutcome) -> list[BaseCloudEvent]:
        """Return `pods.evicted` with the evicted, blocked and remaining pods, flagged `more` if a pass must follow.

        Returns an empty list for an event of `resync` if the status already reports the same pods. Otherwise, a blocked
        drain would add an event to the journal every 15 seconds.
        """
        outcome, needs_another_pass = split_retried_and_blocked_pods(outcome, self.maintenance, self.own_pod_name)
        blocked = add_retry_after(outcome.blocked, self.maintenance, self.now)
        blocked_by_flags = drain_flags.find_pods_blocked_by_flags(pods.classification, self.options)
        outcome = replace(outcome, blocked=[*blocked, *blocked_by_flags])
        report_outcome(self.maintenance, outcome, self.event)
        gone_uids = {pod["uid"] for pod in outcome.already_gone}
        leaving = [pod for pod in pods.leaving if get_uid(pod) not in gone_uids]
        data = build_evicted_data(outcome, pods.version, pods.budgets.resource_version)
        has_progressed = bool(outcome.evicted or outcome.in_flight or needs_another_pass)
        if self._is_from_resync() and not has_progressed and self._is_already_reported(data, leaving):
            return []
        data |= self._build_snapshot(leaving)
        return self._build_reply(events.PODS_EVICTED, data, flags=("more",) if needs_another_pass else ())

    def _is_from_resync(self) -> bool:
        """Return whether `resync` has emitted the event, so that other events of the maintenance are rarely in flight.

        If another event is in flight and changes the status, a later resync corrects the status.
        """
        return self.event.get_source() == events.RESYNC_SOURCE and not extensions.is_replay(self.event)

    def _is_already_reported(self, data: Object, leaving: Sequence[Pod]) -> bool:
        """Return whether the status already reports this `pods.evicted` data and these remaining pods."""
        snapshot = NodeSnapshot(is_cordoned_and_tainted=True, leaving=leaving, is_unreachable=is_unreachable(self.node))
        status_input = StatusInput(data["error"], data["blocked"])
        return build_status_patch(self.maintenance, snapshot, status_input, self.now) is None

    def _build_snapshot(self, leaving: Sequence[Pod]) -> Object:
        return StepSnapshot.from_maintenance(
            self.maintenance,
            is_cordoned_and_tainted=True,
            leaving=leaving,
            is_unreachable=is_unreachable(self.node),
        ).as_data()

    def _build_reply(self, event_type: str, data: Object, flags: tuple[str, ...] = ()) -> list[BaseCloudEvent]:
        reference, node = parse_reference(self.event), parse_node_name(self.event)
        return [events.build_event(event_type, "evict", reference, node, cause=self.event, data=data, flags=flags)]


def split_retried_and_blocked_pods(
    outcome: EvictionOutcome, maintenance: Maintenance, own_pod_name: str = ""
) -> tuple[EvictionOutcome, bool]:
    """Decide which pods count as blocked; return the updated outcome, and whether another pass must follow immediately.

    If the pass made progress, another pass retries the deferred pods, and the pods whose eviction was neither granted
    nor refused. Without progress, these pods count as blocked (rule 9). Pods that the status already reports as blocked
    stay blocked. `own_pod_name` is the name of the pod that runs this process.
    """
    if not (outcome.evicted or outcome.already_gone or outcome.in_flight):
        deferred = [
            BlockedPod(
                build_object_reference(pod),
                "NoTime",
                OWN_POD_MESSAGE if pod["metadata"]["name"] == own_pod_name else NO_TIME_MESSAGE,
            )
            for pod in outcome.deferred
        ]
        return replace(outcome, blocked=[*outcome.blocked, *deferred]), False
    retried = [
        item
        for item in outcome.blocked
        if item.reason in UNDECIDED_REASONS and not was_blocked_by_same_cause(item, maintenance)
    ]
    blocked = [item for item in outcome.blocked if item not in retried]
    return replace(outcome, blocked=blocked), bool(retried or outcome.deferred)
