"""Protect the virt-launcher pod of each VMI that must migrate with a budget that states what the pod waits for (DRN-9).

A budget is a PodDisruptionBudget. The step creates it together with the VirtualMachineInstance (VMI), and deletes it
when the VMI is deleted or its eviction strategy changes. If KubeVirt's controllers are installed, they create their own
budgets. As soon as KubeVirt's budget exists, the step deletes its own budget (DRN-10) and annotates KubeVirt's instead.

A drain shuts down all other VMIs. If the run strategy of a VirtualMachine is unknown, no controller starts it again
after the drain, so the step records an Event on the VirtualMachine (OSV-3).

In: `node.tainted`; a PingSource tick; an added or updated VirtualMachineInstance, an added, updated or deleted
VirtualMachineInstanceMigration, by reference. Out: `virt_launchers.wait_changed`.
Touches: virtualmachineinstances list; virtualmachines get; virtualmachineinstancemigrations list; kubevirts list;
nodes get, list; poddisruptionbudgets list, create, patch, delete; nodemaintenances list; events create;
leases get in medik8s-leases.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from functions.installs import is_active_install
from functions.round_robin import RoundRobin
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.budgets import Budget, build_namespace_budgets_path
from kube.client.api import JSON_PATCH
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import get_seconds_left, has_seconds_left, set_deadline
from kube.client.discovery import list_kubevirts
from kube.client.sync_client import SyncClient
from kube.kubernetes_events import KubernetesEvent
from kube.paths import Object, build_events_path
from kube.virtualization import lookup
from kube.virtualization import virt_launcher_budgets as budgets
from kube.virtualization.drain_forecast import explain_unknown_strategy
from kube.virtualization.evacuation import MIGRATION_FAILED, NOT_MIGRATABLE, MigrationSlots, Wait
from kube.virtualization.vmis import (
    API_VERSION,
    HINT_KINDS,
    VM_KIND,
    VMI_KIND,
    Resource,
    get_key,
    requests_live_migration,
    requires_migration_before_eviction,
)

WARNING_REASONS = (NOT_MIGRATABLE, MIGRATION_FAILED)
"""Wait reasons that the step also reports in an Event on the VMI."""
UNKNOWN_RUN_STRATEGY = "UnknownRunStrategy"
"""Reason of the Event on a VirtualMachine that no controller starts again after the drain."""
BudgetsByVmi = Mapping[budgets.VmiUidKey, Budget]
"""Map from the namespace and uid of a VMI to the PodDisruptionBudget that protects its pod."""
TASK_ROTATION = RoundRobin()
"""Round-robin position that selects the first task of a pass; each process has its own."""
MAX_NAMED_PATHS = 3
"""Maximum number of API paths in an error message."""
WRITE_TIMEOUT_SECONDS = 0.4
"""Timeout of each write except the first one, which may be slow and may use all time that is not reserved."""
RESERVED_SECONDS = 0.3
"""Seconds before the deadline that are reserved for the work after the writes."""
log = logging.getLogger("functions")


class BudgetWriter:
    """Sender of one pass's writes, which collects their results.

    Attributes:
        unanswered: API paths of writes that got no response, or were skipped because the deadline was too close.
        sent_count: Number of writes that were sent.
        ran_out_of_time: Whether a write was skipped because the deadline was too close.
    """

    def __init__(self) -> None:
        self.unanswered: list[str] = []
        self.sent_count = 0
        self.ran_out_of_time = False

    def try_write(self, path: str, write: Callable[[], object]) -> bool:
        """Send a write to the API path, and return whether it succeeded; log an API error.

        If the API server rejects the write, for example because of a quota, the next PingSource event retries it. After
        a conflict, or if the object was deleted, an event about the object triggers the next pass.
        """
        if not has_seconds_left(RESERVED_SECONDS):
            self.unanswered.append(path)
            self.ran_out_of_time = True
            return False
        self.sent_count += 1
        left = get_seconds_left()
        is_first = self.sent_count == 1
        timeout = max(WRITE_TIMEOUT_SECONDS, left - RESERVED_SECONDS) if is_first else WRITE_TIMEOUT_SECONDS
        try:
            with set_deadline(min(left, timeout)):
                write()
        except (NotFound, Conflict):
            return False
        except ApiError as error:
            log.warning("cannot write %s: %s", path, error.message)
            self.unanswered.extend([path] if isinstance(error, Unavailable) else [])
            return False
        return True


class BudgetTask(NamedTuple):
    """Pending writes for the VMI or budget with this uid.

    `run` sends the writes, and returns the names of the nodes on which the wait reason of a pod has changed.
    """

    uid: str
    run: Callable[[BudgetWriter], set[str]]


@step(
    "protect",
    consumes=(
        *(events.NODE_TAINTED, events.TICK),
        *(events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
    ),
    emits=(events.VIRT_LAUNCHERS_WAIT_CHANGED,),
    coalescing=HintPolicy(lambda _event: WorkKey("virt-launcher pods to protect")),
)
def protect(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Create, update and delete budgets; return an event for each drained node with a pod whose wait reason changed.

    Raises `Retry` if a write got no response and no event is returned. Otherwise the next PingSource event retries.
    """
    if event.get_extension("kind") not in HINT_KINDS:
        return []
    # List budgets before VMIs: if the VMI of a budget is not in the later list, the VMI has been deleted.
    own_budgets = budgets.index_own_budgets(client.run(lookup.list_budgets(client.api, budgets.VMI_UID_LABEL)))
    vmis = client.run(lookup.list_vmis(client.api))
    if not (own_budgets or vmis) or not is_active_install(client):
        return []
    writer = BudgetWriter()
    changed = _run_tasks(_plan_tasks(own_budgets, vmis, client), writer)
    if has_seconds_left(RESERVED_SECONDS):
        _record_unknown_strategies(vmis, client)
    if writer.unanswered and not changed:
        raise Retry(f"the API server did not respond to writes of {', '.join(writer.unanswered[:MAX_NAMED_PATHS])}")
    return [reply for node in sorted(changed) for reply in _build_wait_changed_events(event, node, client)]


def _run_tasks(tasks: list[BudgetTask], writer: BudgetWriter) -> set[str]:
    """Run the tasks until the deadline, and return the nodes on which the wait reason of a pod has changed.

    If the deadline prevented writes, the next pass continues after the last task that sent a write. Otherwise it starts
    with the second task of this pass.
    """
    changed, last_tried = set[str](), ""
    for task in TASK_ROTATION.rotate(tasks, attrgetter("uid")):
        sent_before = writer.sent_count
        changed |= task.run(writer)
        last_tried = task.uid if writer.sent_count > sent_before else last_tried
    if last_tried and writer.ran_out_of_time:
        TASK_ROTATION.resume_after(last_tried)
    return changed


def _plan_tasks(own_budgets: BudgetsByVmi, vmis: list[Object], client: SyncClient) -> list[BudgetTask]:
    """Return a task for each VMI that needs a budget, and for each budget that must be annotated or deleted."""
    if not vmis:
        return [_build_deletion_task(budget, client) for budget in own_budgets.values()]
    all_budgets, kubevirt = client.gather_all(lookup.list_budgets(client.api), list_kubevirts(client.api))
    kubevirt_budgets = budgets.index_kubevirt_budgets(all_budgets)
    migrating = {budgets.get_vmi_uid_key(vmi) for vmi in vmis if requests_live_migration(vmi)}
    needed = migrating - kubevirt_budgets.keys() if kubevirt else migrating
    deletions = [_build_deletion_task(budget, client) for key, budget in own_budgets.items() if key not in needed]
    if kubevirt:
        return [*deletions, *_plan_annotations(kubevirt[0], vmis, kubevirt_budgets, client)]
    return [*deletions, *_plan_protection(vmis, {**kubevirt_budgets, **own_budgets}, client)]


def _build_deletion_task(budget: Budget, client: SyncClient) -> BudgetTask:
    path, uid = budgets.build_budget_path(budget), budget["metadata"]["uid"]

    def delete_budget(writer: BudgetWriter) -> set[str]:
        writer.try_write(path, partial(client.delete, path, uid=uid))
        return set()

    return BudgetTask(uid, delete_budget)


def _plan_protection(vmis: Iterable[Object], budgets_by_vmi: BudgetsByVmi, client: SyncClient) -> Iterator[BudgetTask]:
    """Yield the tasks that create or update the budget of each VMI, which states what the VMI's pod waits for.

    A user's own budget for the pod is not sufficient, because it may allow evictions. With two budgets for one pod, the
    API server rejects every eviction, which is intended here.
    """
    migrating, slots = list(filter(requests_live_migration, vmis)), MigrationSlots.from_environment(os.environ)
    snapshot = client.run(lookup.read_migration_snapshot(client.api, migrating, slots))
    for vmi in filter(requires_migration_before_eviction, snapshot.vmis):
        budget, wait = budgets_by_vmi.get(budgets.get_vmi_uid_key(vmi)), snapshot.evacuation.waits.get(get_key(vmi))
        yield BudgetTask(vmi["metadata"]["uid"], partial(_protect_vmi, vmi, budget, wait, client))


def _plan_annotations(
    kubevirt: Resource, vmis: list[Object], budgets_by_vmi: BudgetsByVmi, client: SyncClient
) -> Iterator[BudgetTask]:
    """Yield the tasks that annotate KubeVirt's budgets with what the pods wait for."""
    waits = client.run(lookup.read_kubevirt_waits(client.api, kubevirt, vmis))
    for vmi in vmis:
        if budget := budgets_by_vmi.get(budgets.get_vmi_uid_key(vmi)):
            wait = waits.get(get_key(vmi))
            yield BudgetTask(vmi["metadata"]["uid"], partial(_annotate_budget, budget, wait, client))


def _protect_vmi(
    vmi: Resource, budget: Budget | None, wait: Wait | None, client: SyncClient, writer: BudgetWriter
) -> set[str]:
    """Create or update the VMI's budget; return the nodes on which the wait reason of its pod has changed."""
    nodes = _update_budget(vmi, budget, wait, client, writer) if budget else _create_budget(vmi, wait, client, writer)
    if nodes and wait is not None and wait.reason in WARNING_REASONS:
        writer.try_write(build_events_path(get_key(vmi)[0]), partial(_record_wait_reason, vmi, wait, client))
    return nodes


def _record_wait_reason(vmi: Resource, wait: Wait, client: SyncClient) -> None:
    """Record a Warning Event that reports what the VMI waits for; the VMI's budget reports the same reason."""
    message = f'node "{wait.node}" is being drained: {wait.message}'
    kubernetes_event = KubernetesEvent.from_object(vmi, API_VERSION, VMI_KIND, wait.reason, message)
    client.run(EVENT_RECORDER.record(client.api, [kubernetes_event]))


def _record_unknown_strategies(vmis: Iterable[Object], client: SyncClient) -> None:
    """Record an Event on each VirtualMachine that a drain shuts down and whose run strategy is unknown.

    If the VirtualMachines cannot be read, the function only logs the error, and a later pass retries.
    """
    try:
        stopping = client.run(lookup.read_vms_to_stop(client.api, vmis))
    except ApiError as error:
        log.warning("cannot read the run strategies of virtual machines: %s", error.message)
        return
    kubernetes_events = [
        KubernetesEvent.from_object(vm, API_VERSION, VM_KIND, UNKNOWN_RUN_STRATEGY, message)
        for vm, node in stopping
        if (message := explain_unknown_strategy(vm, node))
    ]
    client.run(EVENT_RECORDER.record(client.api, kubernetes_events))


def _create_budget(vmi: Resource, wait: Wait | None, client: SyncClient, writer: BudgetWriter) -> set[str]:
    path, body = build_namespace_budgets_path(vmi["metadata"]["namespace"]), budgets.build_budget(vmi, wait)
    is_created = writer.try_write(path, partial(client.create, path, body))
    return {wait.node} if is_created and wait else set()


def _update_budget(
    vmi: Resource, budget: Budget, wait: Wait | None, client: SyncClient, writer: BudgetWriter
) -> set[str]:
    path = budgets.build_budget_path(budget)
    if budgets.is_own_budget(budget) and (patch := budgets.build_spec_patch(budget, vmi)):
        writer.try_write(path, partial(client.patch, path, patch, JSON_PATCH))
    return _annotate_budget(budget, wait, client, writer)


def _annotate_budget(budget: Budget, wait: Wait | None, client: SyncClient, writer: BudgetWriter) -> set[str]:
    """Annotate a pod's budget with what the pod waits for; return the nodes on which the wait reason has changed."""
    path, patch = budgets.build_budget_path(budget), budgets.build_annotations_patch(budget, wait)
    if not patch or not writer.try_write(path, partial(client.patch, path, patch)):
        return set()
    return {wait.node if wait else "", budgets.get_annotated_node(budget)} - {""}


def _build_wait_changed_events(cause: BaseCloudEvent, node: str, client: SyncClient) -> list[BaseCloudEvent]:
    """Return `virt_launchers.wait_changed` if a NodeMaintenance holds the node, so that `evict` starts a pass."""
    maintenance = client.run(lookup.find_maintenance_of_node(client.api, node))
    if maintenance is None:
        return []
    reference = events.ObjectReference.from_object(maintenance)
    return [events.build_event(events.VIRT_LAUNCHERS_WAIT_CHANGED, "protect", reference, node, cause=cause, seed=node)]
