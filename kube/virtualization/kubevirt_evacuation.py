"""What each VMI on a drained node waits for where KubeVirt itself migrates: ours only says it (DRN-10). Pure.

KubeVirt knows one taint key; by its virt-api it also migrates a machine whose launcher somebody wants to evict.
It creates the migrations of a node at once, and holds back those that are too many.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kube.budgets import WAITS_FOR_KUBEVIRT
from kube.nodes import Node, is_tainted
from kube.virtualization.evacuation import (
    FAILED,
    LONGEST_MESSAGE,
    MIGRATING,
    NOT_MIGRATABLE,
    Wait,
    progress,
)
from kube.virtualization.machines import (
    DRAIN_TAINTS,
    EXTERNAL,
    LIVE_MIGRATE,
    LIVE_MIGRATE_IF_POSSIBLE,
    Item,
    by_machine,
    has_failed,
    hindrance,
    is_ending,
    is_finished,
    is_moved_by,
    key,
    node_of,
    unable,
)
from kube.words import shortened

USUAL_TAINT = "kubevirt.io/drain"
EVACUATED = "kubevirt.io/evacuationMigration"
"""Annotation of a migration that a drain asked for: the node."""
TAINT_FIELD = "spec.configuration.migrations.nodeDrainTaintKey"
"""Of the KubeVirt object: another key than the usual one."""
HELD_BACK = ("", "Pending")
"""Phases of a migration that has not begun."""
LEFT_TO_OTHERS = (MIGRATING, "the controller that evictionStrategy External leaves it to is about to move it")
UNTOLD = (
    WAITS_FOR_KUBEVIRT,
    "evictionStrategy External leaves it to a controller, which KubeVirt's virt-api tells upon an eviction of the "
    "launcher pod: where virt-api is not asked about evictions, migrate the virtual machine, or shut it down",
)
"""Of a machine that KubeVirt does not migrate, whatever the taint: reason and message, once it is told and before."""


def strategy_of(vmi: Item, kubevirt: Item | None) -> str:
    """Its eviction strategy; where it has none, the one that this KubeVirt gives such machines; "" for none."""
    usual = (((kubevirt or {}).get("spec") or {}).get("configuration") or {}).get("evictionStrategy")
    return str((vmi.get("spec") or {}).get("evictionStrategy") or usual or "")


def is_kept_by(kubevirt: Item, vmi: Item) -> bool:
    """Whether this KubeVirt keeps the launcher pod of a VMI by a budget."""
    strategy = strategy_of(vmi, kubevirt)
    if strategy == LIVE_MIGRATE_IF_POSSIBLE and unable(vmi):
        return False
    return strategy in (LIVE_MIGRATE, LIVE_MIGRATE_IF_POSSIBLE, EXTERNAL) and not is_ending(vmi)


def waits(
    vmis: Iterable[Item], migrations: Collection[Item], drained: Mapping[str, Node], kubevirt: Item
) -> dict[tuple[str, str], Wait]:
    """Namespace and name of each VMI on the nodes `drained` that KubeVirt keeps → what it waits for."""
    of = by_machine(migrations)
    asking = [vmi for vmi in vmis if node_of(vmi) in drained and is_kept_by(kubevirt, vmi)]
    return {key(vmi): _wait(vmi, _its_own(vmi, of[key(vmi)]), drained[node_of(vmi)], kubevirt) for vmi in asking}


def _its_own(vmi: Item, migrations: Iterable[Item]) -> list[Item]:
    return [each for each in migrations if is_moved_by(vmi, each)]


def _wait(vmi: Item, migrations: Collection[Item], node: Node, kubevirt: Item) -> Wait:
    name = node_of(vmi)
    under_way = next((each for each in migrations if not is_finished(each)), None)
    if under_way is not None and (under_way.get("status") or {}).get("phase", "") not in HELD_BACK:
        return Wait(name, MIGRATING, progress(under_way, vmi))
    is_asked = (vmi.get("status") or {}).get("evacuationNodeName") == name  # by an eviction
    if under_way is None and strategy_of(vmi, kubevirt) == EXTERNAL:
        return Wait(name, *(LEFT_TO_OTHERS if is_asked else UNTOLD))
    if under_way is None and (why := hindrance(vmi)):
        return Wait(name, NOT_MIGRATABLE, shortened(why, LONGEST_MESSAGE))
    if under_way is None and not is_asked and (why := _deaf(name, node, kubevirt)):
        return Wait(name, WAITS_FOR_KUBEVIRT, why)
    if failures := sum(_evacuated(each) == name for each in _failed_of_late(migrations)):
        return Wait(name, FAILED, _failed(failures, progress(under_way, vmi) if under_way else ""))
    if under_way is not None:
        return Wait(name, MIGRATING, progress(under_way, vmi))
    return Wait(name, MIGRATING, "KubeVirt is about to migrate it")


def _failed_of_late(migrations: Collection[Item]) -> list[Item]:
    """Those that failed since one succeeded; all, where none did."""
    successes = [_made(each) for each in migrations if is_finished(each) and not has_failed(each)]
    return [each for each in migrations if has_failed(each) and all(_made(each) > made for made in successes)]


def _made(migration: Item) -> str:
    return str(migration["metadata"].get("creationTimestamp") or "")


def _evacuated(migration: Item) -> str:
    """The node for whose drain KubeVirt has created a migration, "" for none."""
    return str((migration["metadata"].get("annotations") or {}).get(EVACUATED) or "")


def _failed(failures: int, progress: str) -> str:
    times = "once" if failures == 1 else f"{failures} times"
    later = f"waits longer each time before it tries again: {progress}" if progress else "tries again"
    return f"its migration failed {times}; KubeVirt {later}"


def taint_key(kubevirt: Item) -> str:
    """Key of the taint at which KubeVirt migrates."""
    told = ((kubevirt.get("spec") or {}).get("configuration") or {}).get("migrations") or {}
    return str(told.get("nodeDrainTaintKey") or USUAL_TAINT)


def _deaf(name: str, node: Node, kubevirt: Item) -> str:
    """Why KubeVirt does not see that the node is drained, and what helps; "" where it does."""
    known = taint_key(kubevirt)
    if is_tainted(node, known):
        return ""
    there = next((each for each in DRAIN_TAINTS if is_tainted(node, each)), DRAIN_TAINTS[0])
    whose = "/".join(key(kubevirt))
    return (
        f"KubeVirt migrates at the taint {known}, and node {name} has {there}: "
        f"set {TAINT_FIELD} of KubeVirt {whose} to {there}, or give the node the taint {known}, too"
    )
