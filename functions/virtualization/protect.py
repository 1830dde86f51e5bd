"""Protect the launcher pods of virtual machines that migrate by a budget each, which says what they wait for (DRN-9).

A budget is made when its VirtualMachineInstance appears, and goes with it, or with its strategy. KubeVirt makes its
own where it is installed: then ours goes, once another one stands (DRN-10), which says the same.

In: `node.tainted`; a PingSource tick; an added or updated VirtualMachineInstance, an added, updated or deleted
VirtualMachineInstanceMigration, by reference. Out: `launchers.changed`.
Touches: virtualmachineinstances list; virtualmachineinstancemigrations list; kubevirts list; nodes get, list;
poddisruptionbudgets list, create, patch, delete; nodemaintenances list; events create; leases get in medik8s-leases.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.hints import LookingForChanges
from functions.installs import acts
from functions.virtualization.announcing import announce
from functions.virtualization.scene import KINDS, seen, seen_beside
from kube.budgets import Budget
from kube.door.api import JSON_PATCH
from kube.door.api_errors import Conflict, Denied, NotFound, Rejected
from kube.door.discovery import kubevirts
from kube.door.sync_client import Cluster
from kube.paths import Object
from kube.virtualization import launcher_budgets as budgets
from kube.virtualization import lookup
from kube.virtualization.evacuation import FAILED, NOT_MIGRATABLE, Wait
from kube.virtualization.machines import Item, is_kept, key, stays_alive

CONSUMES = (
    *(events.NODE_TAINTED, events.TICK),
    *(events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
)
EMITS = (events.LAUNCHERS_CHANGED,)
HOLDING_UP = (NOT_MIGRATABLE, FAILED)
"""What an Event at the instance warns of."""
Standing = Mapping[budgets.Kept, Budget]
"""Budgets by what they keep."""
log = logging.getLogger("functions")
LOOKING = LookingForChanges(lambda _event: "launcher pods to protect")


def protect(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Make, change and delete budgets; `launchers.changed` for each drained node whose pods wait for something else."""
    if event.get_extension("kind") not in KINDS:
        return []
    # Budgets first: one that is there without its VMI was not made by somebody who has just seen that.
    ours = budgets.ours(cluster.run(lookup.launcher_budgets(cluster.api)))
    vmis = cluster.run(lookup.all_instances(cluster.api))
    if not (ours or vmis) or not acts(cluster):
        return []
    asking = {budgets.kept(vmi) for vmi in vmis if stays_alive(vmi)}
    _delete([budget for one, budget in ours.items() if one not in asking], cluster)
    if not vmis:
        return []
    listed, kubevirt = cluster.together(lookup.budgets(cluster.api), kubevirts(cluster.api))
    theirs = budgets.of_kubevirt(listed)
    if kubevirt:
        _delete([budget for one, budget in ours.items() if one in theirs], cluster)
        changed = _say(kubevirt[0], vmis, theirs, cluster)
    else:
        changed = _protect_all(list(filter(stays_alive, vmis)), {**theirs, **ours}, cluster)
    return [said for node in sorted(changed) for said in _tell(event, node, cluster)]


def _delete(needless: list[Budget], cluster: Cluster) -> None:
    for budget in needless:
        path, uid = budgets.path_of(budget), budget["metadata"]["uid"]
        _tried(path, partial(cluster.delete, path, uid=uid))


def _protect_all(vmis: list[Object], standing: Standing, cluster: Cluster) -> set[str]:
    """Have a budget stand for each that needs one; the nodes where what their pods wait for has changed.

    A budget of somebody else's keeps nothing for sure. Beside it ours has the API refuse every eviction, as it should.
    """
    scene = seen(vmis, cluster)
    changed: set[str] = set()
    for vmi in filter(is_kept, scene.vmis):
        wait, budget = scene.evacuation.waits.get(key(vmi)), standing.get(budgets.kept(vmi))
        nodes = _keep(vmi, budget, wait, cluster) if budget else _create(vmi, wait, cluster)
        if nodes and wait is not None and wait.reason in HOLDING_UP:
            announce(vmi, wait, cluster)
        changed |= nodes
    return changed


def _create(vmi: Item, wait: Wait | None, cluster: Cluster) -> set[str]:
    """Make its budget; the node where it says what its pod waits for."""
    path, body = budgets.budgets_in(vmi["metadata"]["namespace"]), budgets.budget_of(vmi, wait)
    is_made = _tried(path, partial(cluster.create, path, body))
    return {wait.node} if is_made and wait else set()


def _keep(vmi: Item, budget: Budget, wait: Wait | None, cluster: Cluster) -> set[str]:
    """Have its budget ask for what it was made for, and say what its pod waits for; the nodes where that is new."""
    path = budgets.path_of(budget)
    if budgets.is_ours(budget) and (patch := budgets.spec_patch(budget, vmi)):
        _tried(path, partial(cluster.patch, path, patch, JSON_PATCH))
    return _write(budget, wait, cluster)


def _say(kubevirt: Item, vmis: list[Object], theirs: Standing, cluster: Cluster) -> set[str]:
    """Have KubeVirt's budgets say what the pods under them wait for; the nodes where that has changed."""
    waits = seen_beside(kubevirt, vmis, cluster)
    told = [(theirs.get(budgets.kept(vmi)), waits.get(key(vmi))) for vmi in vmis]
    return {node for budget, wait in told if budget for node in _write(budget, wait, cluster)}


def _write(budget: Budget, wait: Wait | None, cluster: Cluster) -> set[str]:
    """Have a budget say this; the nodes where that is something else than it said."""
    path, patch = budgets.path_of(budget), budgets.words_patch(budget, wait)
    if not patch or not _tried(path, partial(cluster.patch, path, patch)):
        return set()
    return {wait.node if wait else "", budgets.told_of(budget)} - {""}


def _tried(path: str, write: Callable[[], object]) -> bool:
    """Whether a write was kept. What one budget is refused, by a quota as well, keeps no other one from standing.

    Not kept, too, is what has just gone, or come: the next event about it, or the tick, looks again.
    """
    try:
        write()
    except (NotFound, Conflict):
        return False
    except (Denied, Rejected) as error:
        log.warning("a budget of a launcher pod was refused at %s: %s", path, error.message)
        return False
    return True


def _tell(cause: BaseCloudEvent, node: str, cluster: Cluster) -> list[BaseCloudEvent]:
    """The maintenance of the node, if one has it, looks at its pods again."""
    maintenance = cluster.run(lookup.maintenance_on(cluster.api, node))
    if maintenance is None:
        return []
    about = events.Reference.of(maintenance)
    return [events.event(events.LAUNCHERS_CHANGED, "protect", about, node, cause=cause, seed=node)]
