"""Protect the virt-launcher pod of each VMI that must migrate by a budget, which states what it waits for (DRN-9).

The step creates the budget when its VirtualMachineInstance appears. It deletes the budget with the instance, or when
the instance's eviction strategy changes. If KubeVirt is installed, KubeVirt creates its own budgets. As soon as
KubeVirt's budget exists, the step deletes its own one (DRN-10) and annotates KubeVirt's instead.

In: `node.tainted`; a PingSource tick; an added or updated VirtualMachineInstance, an added, updated or deleted
VirtualMachineInstanceMigration, by reference. Out: `launchers.changed`.
Touches: virtualmachineinstances list; virtualmachineinstancemigrations list; kubevirts list; nodes get, list;
poddisruptionbudgets list, create, patch, delete; nodemaintenances list; events create; leases get in medik8s-leases.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from operator import attrgetter
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.failures import Retry
from functions.pass_strategies import LookingForChanges
from functions.installs import acts
from functions.round_robin import Turns
from functions.virtualization.kubernetes_events import announce
from functions.virtualization.migration_snapshot import KINDS, seen, seen_beside
from functions.virtualization.budget_writes import Writes
from kube.budgets import Budget, budgets_in
from kube.client.api import JSON_PATCH
from kube.client.discovery import kubevirts
from kube.client.sync_client import Cluster
from kube.paths import Object, events_path
from kube.virtualization import virt_launcher_budgets as budgets
from kube.virtualization import lookup
from kube.virtualization.evacuation import FAILED, NOT_MIGRATABLE, Wait
from kube.virtualization.vmis import Item, is_kept, key, stays_alive

CONSUMES = (
    *(events.NODE_TAINTED, events.TICK),
    *(events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
)
EMITS = (events.LAUNCHERS_CHANGED,)
HOLDING_UP = (NOT_MIGRATABLE, FAILED)
"""Reasons for which an Event is recorded on the VMI."""
Standing = Mapping[budgets.Kept, Budget]
"""Existing budgets by the VMI that they protect (namespace and uid)."""
TURNS = Turns()
"""Rotation that selects which VMI comes first. Each process has its own position."""
NAMED = 3
"""Maximum number of paths in an error message."""
LOOKING = LookingForChanges(lambda _event: "launcher pods to protect")


class Job(NamedTuple):
    """The work for one VMI or budget, by uid; `run` returns the nodes on which a pod's reason to wait has changed."""

    uid: str
    run: Callable[[Writes], set[str]]


def protect(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Create, update and delete budgets; return `launchers.changed` for each drained node with changed reasons to wait.

    Raises `Retry` if a write had no response and no event is returned; otherwise the tick retries.
    """
    if event.get_extension("kind") not in KINDS:
        return []
    # Budgets are read before VMIs: if a budget's VMI is not in the list, the VMI has been deleted.
    ours = budgets.ours(cluster.run(lookup.launcher_budgets(cluster.api)))
    vmis = cluster.run(lookup.all_instances(cluster.api))
    if not (ours or vmis) or not acts(cluster):
        return []
    writes = Writes()
    changed = _done(_jobs(ours, vmis, cluster), writes)
    if writes.unanswered and not changed:
        raise Retry(f"not written: {', '.join(writes.unanswered[:NAMED])}")
    return [said for node in sorted(changed) for said in _tell(event, node, cluster)]


def _done(jobs: list[Job], writes: Writes) -> set[str]:
    """Run jobs while there is time, and return the nodes on which a pod's reason to wait has changed.

    The next pass starts one job later, or after the last tried job if the time ran out.
    """
    changed, tried = set[str](), ""
    for job in TURNS.begin(jobs, attrgetter("uid")):
        before = writes.sent
        changed |= job.run(writes)
        tried = job.uid if writes.sent > before else tried
    if tried and writes.ran_out:
        TURNS.stopped_at(tried)
    return changed


def _jobs(ours: Standing, vmis: list[Object], cluster: Cluster) -> list[Job]:
    """Return all pending work, as one job for each budget or VMI."""
    asking = {budgets.kept(vmi) for vmi in vmis if stays_alive(vmi)}
    needless = [_deletion(budget, cluster) for one, budget in ours.items() if one not in asking]
    if not vmis:
        return needless
    listed, kubevirt = cluster.together(lookup.budgets(cluster.api), kubevirts(cluster.api))
    theirs = budgets.of_kubevirt(listed)
    if not kubevirt:
        return needless + _protections(list(filter(stays_alive, vmis)), {**theirs, **ours}, cluster)
    doubled = [_deletion(budget, cluster) for one, budget in ours.items() if one in asking and one in theirs]
    return needless + doubled + _sayings(kubevirt[0], vmis, theirs, cluster)


def _deletion(budget: Budget, cluster: Cluster) -> Job:
    path, uid = budgets.path_of(budget), budget["metadata"]["uid"]

    def delete(writes: Writes) -> set[str]:
        writes.tried(path, partial(cluster.delete, path, uid=uid))
        return set()

    return Job(uid, delete)


def _protections(vmis: list[Object], standing: Standing, cluster: Cluster) -> list[Job]:
    """Return the jobs that give each VMI a budget, which states what its pod waits for.

    A user's budget is not a substitute, because it may allow evictions. With two budgets for a pod, the API server
    rejects every eviction, which is intended here.
    """
    scene = seen(vmis, cluster)
    return [
        Job(
            vmi["metadata"]["uid"],
            partial(_protect, vmi, standing.get(budgets.kept(vmi)), scene.evacuation.waits.get(key(vmi)), cluster),
        )
        for vmi in filter(is_kept, scene.vmis)
    ]


def _protect(vmi: Item, budget: Budget | None, wait: Wait | None, cluster: Cluster, writes: Writes) -> set[str]:
    nodes = _keep(vmi, budget, wait, cluster, writes) if budget else _create(vmi, wait, cluster, writes)
    if nodes and wait is not None and wait.reason in HOLDING_UP:
        writes.tried(events_path(key(vmi)[0]), partial(announce, vmi, wait, cluster))
    return nodes


def _create(vmi: Item, wait: Wait | None, cluster: Cluster, writes: Writes) -> set[str]:
    """Create the VMI's budget; return the node on which its pod waits."""
    path, body = budgets_in(vmi["metadata"]["namespace"]), budgets.budget_of(vmi, wait)
    is_made = writes.tried(path, partial(cluster.create, path, body))
    return {wait.node} if is_made and wait else set()


def _keep(vmi: Item, budget: Budget, wait: Wait | None, cluster: Cluster, writes: Writes) -> set[str]:
    """Restore the budget's spec and update what its pod waits for; return the nodes for which that has changed."""
    path = budgets.path_of(budget)
    if budgets.is_ours(budget) and (patch := budgets.spec_patch(budget, vmi)):
        writes.tried(path, partial(cluster.patch, path, patch, JSON_PATCH))
    return _write(budget, wait, cluster, writes)


def _sayings(kubevirt: Item, vmis: list[Object], theirs: Standing, cluster: Cluster) -> list[Job]:
    """Return the jobs that write what the pods wait for into KubeVirt's budgets."""
    waits = seen_beside(kubevirt, vmis, cluster)
    told = [(vmi, theirs.get(budgets.kept(vmi))) for vmi in vmis]
    return [
        Job(vmi["metadata"]["uid"], partial(_write, budget, waits.get(key(vmi)), cluster))
        for vmi, budget in told
        if budget
    ]


def _write(budget: Budget, wait: Wait | None, cluster: Cluster, writes: Writes) -> set[str]:
    """Write what the pod waits for into a budget; return the nodes for which that has changed."""
    path, patch = budgets.path_of(budget), budgets.words_patch(budget, wait)
    if not patch or not writes.tried(path, partial(cluster.patch, path, patch)):
        return set()
    return {wait.node if wait else "", budgets.told_of(budget)} - {""}


def _tell(cause: BaseCloudEvent, node: str, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return `launchers.changed` if a NodeMaintenance owns the node, so that its pods are checked again."""
    maintenance = cluster.run(lookup.maintenance_on(cluster.api, node))
    if maintenance is None:
        return []
    about = events.Reference.of(maintenance)
    return [events.event(events.LAUNCHERS_CHANGED, "protect", about, node, cause=cause, seed=node)]
