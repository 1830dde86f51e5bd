"""Determines what VMIs on drained nodes wait for if KubeVirt itself migrates them; used only for reports (DRN-10).

KubeVirt supports a single drain taint key. KubeVirt's virt-api also starts a migration if a client requests the
eviction of the VMI's virt-launcher pod. KubeVirt creates all migrations from a node at the same time, and delays those
that exceed its limits.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from kube.budgets import WAITS_FOR_KUBEVIRT
from kube.nodes import Node, is_tainted
from kube.text_limits import truncate
from kube.virtualization.evacuation import (
    MAX_MESSAGE_CHARACTERS,
    MIGRATING,
    MIGRATION_FAILED,
    NOT_MIGRATABLE,
    Wait,
    format_progress,
)
from kube.virtualization.vmis import (
    EVACUATION_TAINTS,
    EXTERNAL,
    LIVE_MIGRATE,
    LIVE_MIGRATE_IF_POSSIBLE,
    Resource,
    find_migration_blocker,
    get_key,
    get_node_name,
    get_unmigratable_reason,
    group_by_vmi,
    has_failed,
    is_finished,
    is_migration_of_vmi,
    is_stopping,
)

DEFAULT_TAINT_KEY = "kubevirt.io/drain"
EVACUATION_ANNOTATION = "kubevirt.io/evacuationMigration"
"""Annotation on a migration that KubeVirt created for a drain; its value is the name of the drained node."""
TAINT_FIELD = "spec.configuration.migrations.nodeDrainTaintKey"
"""Field of the KubeVirt object that overrides the default taint key."""
PENDING_PHASES = ("", "Pending")
"""Phases of a migration that has not started yet."""
EXTERNAL_MIGRATING = (MIGRATING, "the controller for evictionStrategy External is about to move it")
EXTERNAL_UNNOTIFIED = (
    WAITS_FOR_KUBEVIRT,
    "evictionStrategy External requires another controller, which KubeVirt's virt-api notifies when a client evicts "
    "the virt-launcher pod: if the API server does not call virt-api for evictions, "
    "migrate the virtual machine, or shut it down",
)
"""Reason and message for a VMI with the strategy External, which KubeVirt does not migrate for any taint.

`EXTERNAL_MIGRATING` applies after KubeVirt has notified the external controller, `EXTERNAL_UNNOTIFIED` before that.
"""


def get_eviction_strategy(vmi: Resource, kubevirt: Resource | None) -> str:
    """Return the VMI's eviction strategy, else the default in the KubeVirt object, "" if there is none."""
    cluster_default = (((kubevirt or {}).get("spec") or {}).get("configuration") or {}).get("evictionStrategy")
    return str((vmi.get("spec") or {}).get("evictionStrategy") or cluster_default or "")


def does_kubevirt_protect_vmi(kubevirt: Resource, vmi: Resource) -> bool:
    """Return whether KubeVirt protects the VMI's virt-launcher pod with a PodDisruptionBudget."""
    strategy = get_eviction_strategy(vmi, kubevirt)
    if strategy == LIVE_MIGRATE_IF_POSSIBLE and get_unmigratable_reason(vmi):
        return False
    return strategy in (LIVE_MIGRATE, LIVE_MIGRATE_IF_POSSIBLE, EXTERNAL) and not is_stopping(vmi)


def find_kubevirt_waits(
    vmis: Iterable[Resource], migrations: Collection[Resource], drained_nodes: Mapping[str, Node], kubevirt: Resource
) -> dict[tuple[str, str], Wait]:
    """Return what each VMI on `drained_nodes` that KubeVirt protects waits for, by the VMI's namespace and name."""
    migrations_by_vmi = group_by_vmi(migrations)
    waits: dict[tuple[str, str], Wait] = {}
    for vmi in vmis:
        node = drained_nodes.get(get_node_name(vmi))
        if node and does_kubevirt_protect_vmi(kubevirt, vmi):
            own_migrations = [item for item in migrations_by_vmi[get_key(vmi)] if is_migration_of_vmi(vmi, item)]
            waits[get_key(vmi)] = _find_wait(vmi, own_migrations, node, kubevirt)
    return waits


def _find_wait(vmi: Resource, migrations: Collection[Resource], node: Node, kubevirt: Resource) -> Wait:
    node_name = get_node_name(vmi)
    unfinished = next((migration for migration in migrations if not is_finished(migration)), None)
    if unfinished is None:
        evacuated_node = (vmi.get("status") or {}).get("evacuationNodeName")  # virt-api sets this at an eviction
        is_evacuating = evacuated_node == node_name
        if get_eviction_strategy(vmi, kubevirt) == EXTERNAL:
            return Wait(node_name, *(EXTERNAL_MIGRATING if is_evacuating else EXTERNAL_UNNOTIFIED))
        if blocker := find_migration_blocker(vmi):
            return Wait(node_name, NOT_MIGRATABLE, truncate(blocker, MAX_MESSAGE_CHARACTERS))
        if not is_evacuating and (blocker := _explain_taint_mismatch(node_name, node, kubevirt)):
            return Wait(node_name, WAITS_FOR_KUBEVIRT, blocker)
    progress_text = format_progress(unfinished, vmi) if unfinished else ""
    has_begun = unfinished is not None and (unfinished.get("status") or {}).get("phase", "") not in PENDING_PHASES
    failure_count = _count_recent_failures(migrations, node_name)
    if failure_count and not has_begun:
        return Wait(node_name, MIGRATION_FAILED, _format_failures(failure_count, progress_text))
    return Wait(node_name, MIGRATING, progress_text or "KubeVirt is about to migrate it")


def _count_recent_failures(migrations: Collection[Resource], node_name: str) -> int:
    """Count the failed migrations that KubeVirt created for the node's drain since the last success."""
    times = [(str(item["metadata"].get("creationTimestamp") or ""), item) for item in migrations]
    last_success = max((time for time, item in times if is_finished(item) and not has_failed(item)), default=None)
    return sum(
        has_failed(item)
        and (last_success is None or time > last_success)
        and (item["metadata"].get("annotations") or {}).get(EVACUATION_ANNOTATION) == node_name
        for time, item in times
    )


def _format_failures(failure_count: int, progress_text: str) -> str:
    times = "once" if failure_count == 1 else f"{failure_count} times"
    retry_note = f"retries it with a growing delay: {progress_text}" if progress_text else "retries it"
    return f"its migration failed {times}; KubeVirt {retry_note}"


def get_drain_taint_key(kubevirt: Resource) -> str:
    """Return the key of the taint on a node that makes KubeVirt migrate the node's VMIs."""
    migration_settings = ((kubevirt.get("spec") or {}).get("configuration") or {}).get("migrations") or {}
    return str(migration_settings.get("nodeDrainTaintKey") or DEFAULT_TAINT_KEY)


def _explain_taint_mismatch(node_name: str, node: Node, kubevirt: Resource) -> str:
    """Return why KubeVirt does not detect that the node is drained, with the remedy; "" if KubeVirt does."""
    kubevirt_taint = get_drain_taint_key(kubevirt)
    if is_tainted(node, kubevirt_taint):
        return ""
    node_taint = next((taint for taint in EVACUATION_TAINTS if is_tainted(node, taint)), EVACUATION_TAINTS[0])
    kubevirt_name = "/".join(get_key(kubevirt))
    return (
        f"KubeVirt migrates VMIs from nodes with the taint {kubevirt_taint}, but node {node_name} has {node_taint}: "
        f"set {TAINT_FIELD} of KubeVirt {kubevirt_name} to {node_taint}, or add the taint {kubevirt_taint} to the node"
    )
