"""Determines what VMIs on drained nodes wait for if KubeVirt itself migrates them; we only report it (DRN-10).

KubeVirt supports a single taint key. Its virt-api also starts a migration if a client requests the eviction of the
VMI's virt-launcher pod. KubeVirt creates all migrations of a node at once, and delays those over its limits.
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
from kube.virtualization.vmis import (
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
from kube.text_limits import shortened

USUAL_TAINT = "kubevirt.io/drain"
EVACUATED = "kubevirt.io/evacuationMigration"
"""Annotation of a migration that KubeVirt created for a drain: the name of the node."""
TAINT_FIELD = "spec.configuration.migrations.nodeDrainTaintKey"
"""Field of the KubeVirt object that replaces the default taint key."""
HELD_BACK = ("", "Pending")
"""Phases of a migration that has not begun."""
LEFT_TO_OTHERS = (MIGRATING, "the controller that evictionStrategy External leaves it to is about to move it")
UNTOLD = (
    WAITS_FOR_KUBEVIRT,
    "evictionStrategy External leaves it to a controller, which KubeVirt's virt-api tells upon an eviction of the "
    "launcher pod: where virt-api is not asked about evictions, migrate the virtual machine, or shut it down",
)
"""Reason and message for a VMI with the strategy External, which KubeVirt does not migrate at any taint.

`LEFT_TO_OTHERS` applies once KubeVirt has notified the external controller, `UNTOLD` before that.
"""


def strategy_of(vmi: Item, kubevirt: Item | None) -> str:
    """Return the VMI's eviction strategy, else the default of this KubeVirt, "" for none."""
    usual = (((kubevirt or {}).get("spec") or {}).get("configuration") or {}).get("evictionStrategy")
    return str((vmi.get("spec") or {}).get("evictionStrategy") or usual or "")


def is_kept_by(kubevirt: Item, vmi: Item) -> bool:
    """Return whether this KubeVirt protects the VMI's virt-launcher pod with a disruption budget."""
    strategy = strategy_of(vmi, kubevirt)
    if strategy == LIVE_MIGRATE_IF_POSSIBLE and unable(vmi):
        return False
    return strategy in (LIVE_MIGRATE, LIVE_MIGRATE_IF_POSSIBLE, EXTERNAL) and not is_ending(vmi)


def waits(
    vmis: Iterable[Item], migrations: Collection[Item], drained: Mapping[str, Node], kubevirt: Item
) -> dict[tuple[str, str], Wait]:
    """Return what each VMI that KubeVirt protects on the nodes `drained` waits for, by the VMI's namespace and name."""
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
    is_asked = (vmi.get("status") or {}).get("evacuationNodeName") == name  # set when an eviction was requested
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
    """Return the migrations that failed since the last success, or all failed ones if there was no success."""
    successes = [_made(each) for each in migrations if is_finished(each) and not has_failed(each)]
    return [each for each in migrations if has_failed(each) and all(_made(each) > made for made in successes)]


def _made(migration: Item) -> str:
    return str(migration["metadata"].get("creationTimestamp") or "")


def _evacuated(migration: Item) -> str:
    """Return the node for whose drain KubeVirt created the migration, "" for none."""
    return str((migration["metadata"].get("annotations") or {}).get(EVACUATED) or "")


def _failed(failures: int, progress: str) -> str:
    times = "once" if failures == 1 else f"{failures} times"
    later = f"waits longer each time before it tries again: {progress}" if progress else "tries again"
    return f"its migration failed {times}; KubeVirt {later}"


def taint_key(kubevirt: Item) -> str:
    """Return the key of the taint that makes KubeVirt migrate."""
    told = ((kubevirt.get("spec") or {}).get("configuration") or {}).get("migrations") or {}
    return str(told.get("nodeDrainTaintKey") or USUAL_TAINT)


def _deaf(name: str, node: Node, kubevirt: Item) -> str:
    """Return why KubeVirt does not notice that the node is drained, with the remedy; "" if it does."""
    known = taint_key(kubevirt)
    if is_tainted(node, known):
        return ""
    there = next((each for each in DRAIN_TAINTS if is_tainted(node, each)), DRAIN_TAINTS[0])
    whose = "/".join(key(kubevirt))
    return (
        f"KubeVirt migrates at the taint {known}, and node {name} has {there}: "
        f"set {TAINT_FIELD} of KubeVirt {whose} to {there}, or give the node the taint {known}, too"
    )
