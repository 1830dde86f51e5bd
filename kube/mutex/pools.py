"""MachineConfigPools: which nodes belong to them, and what a run changes and restores.

During a run, its nodes carry one label for each rule. The canary selects the nodes that carry none of these labels. The
targets' pools select the nodes that carry all of them. Removing a node's labels therefore moves it from its pool to the
canary (MUT-36, MUT-37).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kube.mutex.objects import RULE_LABEL, RUN_LABEL
from kube.mutex.versions import WORKER, is_worker
from kube.paths import Object, segment
from kube.selectors import matches

Pool = Mapping[str, Any]
POOLS = "/apis/machineconfiguration.openshift.io/v1/machineconfigpools"
CLUSTER_VERSIONS = "/apis/config.openshift.io/v1/clusterversions"
VERSION_NAMES = ("version", "cluster")
"""Names of the ClusterVersion: the real one, and the one in the specification (C23)."""
SAMPLE_EXPRESSIONS = [{"key": "isCanary", "operator": "Exists"}]
"""Expressions for a canary whose original selector is unknown (MUT-49)."""
Selector = Mapping[str, Any]


def pool_path(name: str) -> str:
    """Return the API path of a pool."""
    return f"{POOLS}/{segment(name)}"


def name_of(item: Mapping[str, Any]) -> str:
    """Return the name of a pool or a node."""
    return str(item["metadata"]["name"])


def selector(pool: Pool) -> Selector | None:
    """Return the pool's node selector, or None if it has none."""
    found: Selector | None = (pool.get("spec") or {}).get("nodeSelector")
    return found


def is_paused(pool: Pool) -> bool:
    """Return whether the pool is paused, so that its nodes are not updated."""
    return bool((pool.get("spec") or {}).get("paused"))


def claimed_by(pool: Pool) -> str:
    """Return the uid of the MutexRunConfig that claims the pool, "" for none."""
    return str((pool["metadata"].get("annotations") or {}).get(RUN_LABEL) or "")


def labels_of(node: Mapping[str, Any]) -> Mapping[str, str]:
    """Return the node's labels."""
    found: Mapping[str, str] = node["metadata"].get("labels") or {}
    return found


def members(pool: Pool, nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of the nodes that the pool selects, sorted (MUT-21)."""
    chosen = selector(pool)
    return sorted(name_of(node) for node in nodes if matches(chosen, labels_of(node)))


def members_of_all(pools: Iterable[Pool], nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the members of several pools, in the order of the pools and without duplicates."""
    nodes = list(nodes)
    return list(dict.fromkeys(name for pool in pools for name in members(pool, nodes)))


def canary_problem(name: str, pool: Pool | None, targets: Iterable[str], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Return why the pool cannot be a canary, "" if it can (MUT-3)."""
    if pool is None:
        return f"canary: there is no MachineConfigPool {name}"
    if name in set(targets):
        return f"canary: the MachineConfigPool {name} is in a target, too: name another one"
    if is_paused(pool):
        return f"canary: the MachineConfigPool {name} is paused: set spec.paused to false"
    if WORKER not in ((selector(pool) or {}).get("matchLabels") or {}):
        return f"canary: the nodeSelector of the MachineConfigPool {name} must have {WORKER} in matchLabels"
    strangers = [name_of(node) for node in nodes if matches(selector(pool), labels_of(node)) and not is_worker(node)]
    return f"canary: the MachineConfigPool {name} selects {strangers[0]}, which is no worker" if strangers else ""


def released_selector(original: Selector, rule_labels: Iterable[str]) -> Object:
    """Return the canary's selector during a run: nodes that carry none of these labels (MUT-36).

    They replace the canary's own expressions.
    """
    expressions = [{"key": label, "operator": "DoesNotExist"} for label in rule_labels]
    return {**original, "matchExpressions": expressions}


def gated_selector(original: Selector, rule_labels: Iterable[str]) -> Object:
    """Return the selector of a target's pool during a run: its own, limited to nodes with these labels (MUT-37)."""
    own = list(original.get("matchExpressions") or [])
    return {**original, "matchExpressions": [*own, *({"key": label, "operator": "Exists"} for label in rule_labels)]}


def _of_rules(chosen: Selector | None) -> list[Mapping[str, Any]]:
    """Return the expressions that a run added."""
    return [each for each in (chosen or {}).get("matchExpressions") or [] if str(each["key"]).startswith(RULE_LABEL)]


def is_edited(pool: Pool) -> bool:
    """Return whether the pool's selector contains expressions of a run."""
    return bool(_of_rules(selector(pool)))


def takes_released(pool: Pool) -> bool:
    """Return whether the pool has the selector of a canary during a run: it selects nodes without rule labels."""
    return _is_canarys(selector(pool))


def _is_canarys(chosen: Selector | None) -> bool:
    return any(each["operator"] == "DoesNotExist" for each in _of_rules(chosen))


def without_rules(chosen: Selector | None) -> Object | None:
    """Return the selector without a run's expressions, for use when the run's record is lost (MUT-49)."""
    if chosen is None:
        return None
    added = _of_rules(chosen)
    if not added:
        return dict(chosen)
    kept = {name: value for name, value in chosen.items() if name != "matchExpressions"}
    own = [each for each in chosen["matchExpressions"] if each not in added]
    own = own or (SAMPLE_EXPRESSIONS if _is_canarys(chosen) else [])
    return {**kept, "matchExpressions": own} if own else kept


def as_before(pool: Object) -> Object:
    """Return the pool without the selector expressions of a run whose record is lost."""
    if not is_edited(pool):
        return pool
    return {**pool, "spec": {**pool["spec"], "nodeSelector": without_rules(selector(pool))}}


def guarded(pool: Pool, *changes: Object) -> list[Object]:
    """Build the JSON patch with these changes, [] for none; it fails if another client has changed the pool."""
    metadata = pool["metadata"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    return [test, *changes] if changes else []


def claim_patch(pool: Pool, uid: str) -> list[Object]:
    """Build the JSON patch that claims the pool for a run, [] if the run already claims it."""
    if claimed_by(pool) == uid:
        return []
    if pool["metadata"].get("annotations"):
        return guarded(pool, {"op": "add", "path": _CLAIM, "value": uid})
    return guarded(pool, {"op": "add", "path": "/metadata/annotations", "value": {RUN_LABEL: uid}})


def pause_patch(pool: Pool, *, paused: bool) -> list[Object]:
    """Build the JSON patch that pauses or unpauses a pool, [] if nothing would change."""
    if is_paused(pool) is paused:
        return []
    return guarded(pool, {"op": "add", "path": "/spec/paused", "value": paused})


def selector_patch(pool: Pool, wanted: Selector | None) -> list[Object]:
    """Build the JSON patch that sets a pool's selector, [] if nothing would change."""
    if wanted is None or selector(pool) == wanted:
        return []
    return guarded(pool, {"op": "add", "path": "/spec/nodeSelector", "value": dict(wanted)})


def release_patch(pool: Pool, *, paused: bool) -> list[Object]:
    """Build the JSON patch that releases a pool in one write: it sets `paused` and removes the claim."""
    changes: list[Object] = []
    if is_paused(pool) is not paused:
        changes.append({"op": "add", "path": "/spec/paused", "value": paused})
    if claimed_by(pool):
        changes.append({"op": "remove", "path": _CLAIM})
    return guarded(pool, *changes)


_CLAIM = "/metadata/annotations/" + RUN_LABEL.replace("/", "~1")
