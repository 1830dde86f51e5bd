"""MachineConfigPools: the nodes that belong to a pool, and the changes that a run makes and undoes.

During a run, its nodes have one label per rule. The canary pool selects the nodes without any of these labels. The
target pools select the nodes with all of them. Removing a node's labels therefore moves the node from its pool to the
canary (MUT-36, MUT-37).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kube.mutex.objects import RULE_LABEL_PREFIX, RUN_LABEL
from kube.mutex.versions import WORKER_LABEL, is_worker
from kube.paths import Object, encode_path_segment
from kube.selectors import matches

Pool = Mapping[str, Any]
POOLS_PATH = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools"
CLUSTER_VERSIONS_PATH = "/apis/config.openshift.io/v1/clusterversions"
CLUSTER_VERSION_NAMES = ("version", "cluster")
"""Possible names of the ClusterVersion: OpenShift's name, and the name in the specification (C23)."""
FALLBACK_CANARY_EXPRESSIONS = [{"key": "isCanary", "operator": "Exists"}]
"""Selector expressions for a canary pool whose original selector is unknown (MUT-49)."""
Selector = Mapping[str, Any]


def build_pool_path(name: str) -> str:
    """Return the API path of a MachineConfigPool."""
    return f"{POOLS_PATH}/{encode_path_segment(name)}"


def get_name(obj: Mapping[str, Any]) -> str:
    """Return the name of a pool or a node."""
    return str(obj["metadata"]["name"])


def get_selector(pool: Pool) -> Selector | None:
    """Return the pool's node selector, None if it has none."""
    found: Selector | None = (pool.get("spec") or {}).get("nodeSelector")
    return found


def is_paused(pool: Pool) -> bool:
    """Return whether the pool is paused, so that its nodes are not upgraded."""
    return bool((pool.get("spec") or {}).get("paused"))


def get_claim_uid(pool: Pool) -> str:
    """Return the uid of the MutexRunConfig that claims the pool, "" if none does."""
    return str((pool["metadata"].get("annotations") or {}).get(RUN_LABEL) or "")


def get_labels(node: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the node's labels."""
    found: Mapping[str, str] = node["metadata"].get("labels") or {}
    return found


def list_members(pool: Pool, nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the sorted names of the nodes that the pool selects (MUT-21)."""
    selector = get_selector(pool)
    return sorted(get_name(node) for node in nodes if matches(selector, get_labels(node)))


def list_members_of_pools(pools: Iterable[Pool], nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the nodes that these pools select, in the order of the pools and without duplicates."""
    nodes = list(nodes)
    return list(dict.fromkeys(name for pool in pools for name in list_members(pool, nodes)))


def find_canary_problem(
    name: str, pool: Pool | None, target_pool_names: Iterable[str], nodes: Iterable[Mapping[str, Any]]
) -> str:
    """Return why the pool cannot be a canary; "" if it can (MUT-3)."""
    if pool is None:
        return f"spec.canary.name: MachineConfigPool {name} not found"
    if name in set(target_pool_names):
        return f"spec.canary.name: MachineConfigPool {name} is also in a target: use another pool"
    if is_paused(pool):
        return f"spec.canary.name: MachineConfigPool {name} is paused: set its spec.paused to false"
    if WORKER_LABEL not in ((get_selector(pool) or {}).get("matchLabels") or {}):
        return f"spec.canary.name: the nodeSelector of MachineConfigPool {name} must have {WORKER_LABEL} in matchLabels"
    non_workers = [
        get_name(node) for node in nodes if matches(get_selector(pool), get_labels(node)) and not is_worker(node)
    ]
    if not non_workers:
        return ""
    return f"spec.canary.name: MachineConfigPool {name} selects node {non_workers[0]}, which is not a worker"


def build_canary_selector(original: Selector, rule_labels: Iterable[str]) -> Object:
    """Build the canary's selector during a run, which selects nodes without any of these labels (MUT-36).

    Expressions for these labels replace the canary's own expressions.
    """
    expressions = [{"key": label, "operator": "DoesNotExist"} for label in rule_labels]
    return {**original, "matchExpressions": expressions}


def build_target_pool_selector(original: Selector, rule_labels: Iterable[str]) -> Object:
    """Build a target pool's selector during a run: the original one, limited to nodes with all of these labels.

    MUT-37 requires this selector.
    """
    own = list(original.get("matchExpressions") or [])
    return {**original, "matchExpressions": [*own, *({"key": label, "operator": "Exists"} for label in rule_labels)]}


def _select_rule_expressions(selector: Selector | None) -> list[Mapping[str, Any]]:
    """Return the expressions that a run has added to the selector."""
    return [
        expression
        for expression in (selector or {}).get("matchExpressions") or []
        if str(expression["key"]).startswith(RULE_LABEL_PREFIX)
    ]


def has_run_selector(pool: Pool) -> bool:
    """Return whether the pool's selector contains a run's expressions."""
    return bool(_select_rule_expressions(get_selector(pool)))


def is_active_canary(pool: Pool) -> bool:
    """Return whether the pool is the canary of a run, whose selector selects nodes without rule labels."""
    return _is_canary_selector(get_selector(pool))


def _is_canary_selector(selector: Selector | None) -> bool:
    return any(expression["operator"] == "DoesNotExist" for expression in _select_rule_expressions(selector))


def remove_rule_expressions(selector: Selector | None) -> Object | None:
    """Return the selector without a run's expressions, if the original selector is lost with the record (MUT-49)."""
    if selector is None:
        return None
    added = _select_rule_expressions(selector)
    if not added:
        return dict(selector)
    kept = {name: value for name, value in selector.items() if name != "matchExpressions"}
    own = [expression for expression in selector["matchExpressions"] if expression not in added]
    own = own or (FALLBACK_CANARY_EXPRESSIONS if _is_canary_selector(selector) else [])
    return {**kept, "matchExpressions": own} if own else kept


def remove_run_selector(pool: Object) -> Object:
    """Return the pool without a run's selector expressions, if the run's record is lost."""
    if not has_run_selector(pool):
        return pool
    return {**pool, "spec": {**pool["spec"], "nodeSelector": remove_rule_expressions(get_selector(pool))}}


def build_guarded_patch(pool: Pool, *changes: Object) -> list[Object]:
    """Build the JSON patch with these changes, [] for none; it fails if another client has changed the pool."""
    metadata = pool["metadata"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    return [test, *changes] if changes else []


def build_claim_patch(pool: Pool, uid: str) -> list[Object]:
    """Build the JSON patch that claims the pool for a MutexRunConfig; [] if that already claims it."""
    if get_claim_uid(pool) == uid:
        return []
    if pool["metadata"].get("annotations"):
        return build_guarded_patch(pool, {"op": "add", "path": _CLAIM_PATH, "value": uid})
    return build_guarded_patch(pool, {"op": "add", "path": "/metadata/annotations", "value": {RUN_LABEL: uid}})


def build_pause_patch(pool: Pool, *, paused: bool) -> list[Object]:
    """Build the JSON patch that pauses or unpauses the pool; [] if nothing would change."""
    if is_paused(pool) is paused:
        return []
    return build_guarded_patch(pool, {"op": "add", "path": "/spec/paused", "value": paused})


def build_selector_patch(pool: Pool, desired: Selector | None) -> list[Object]:
    """Build the JSON patch that sets the pool's selector; [] if nothing would change."""
    if desired is None or get_selector(pool) == desired:
        return []
    return build_guarded_patch(pool, {"op": "add", "path": "/spec/nodeSelector", "value": dict(desired)})


def build_release_patch(pool: Pool, *, paused: bool) -> list[Object]:
    """Build the JSON patch that releases a pool: it sets `paused` and removes the claim in one write."""
    changes: list[Object] = []
    if is_paused(pool) is not paused:
        changes.append({"op": "add", "path": "/spec/paused", "value": paused})
    if get_claim_uid(pool):
        changes.append({"op": "remove", "path": _CLAIM_PATH})
    return build_guarded_patch(pool, *changes)


_CLAIM_PATH = "/metadata/annotations/" + RUN_LABEL.replace("/", "~1")
