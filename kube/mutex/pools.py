"""MachineConfigPools: who belongs to them, and what a run changes of them and gives back. Pure.

During a run the nodes carry a label for each rule. The canary takes whoever carries none of them, the pools of the
targets whoever carries all; so taking a node's labels off moves it from one to the other (MUT-36, MUT-37).
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
"""What the one ClusterVersion is called, and what the document calls it (C23)."""
SAMPLE_EXPRESSIONS = [{"key": "isCanary", "operator": "Exists"}]
"""Of a canary whose selector is not known any more (MUT-49)."""
Selector = Mapping[str, Any]


def pool_path(name: str) -> str:
    """Path of a pool."""
    return f"{POOLS}/{segment(name)}"


def name_of(item: Mapping[str, Any]) -> str:
    """Name of a pool or a node."""
    return str(item["metadata"]["name"])


def selector(pool: Pool) -> Selector | None:
    """Which nodes belong to it."""
    found: Selector | None = (pool.get("spec") or {}).get("nodeSelector")
    return found


def is_paused(pool: Pool) -> bool:
    """Whether its nodes are left alone."""
    return bool((pool.get("spec") or {}).get("paused"))


def claimed_by(pool: Pool) -> str:
    """Uid of the MutexRunConfig that may change it, "" for none."""
    return str((pool["metadata"].get("annotations") or {}).get(RUN_LABEL) or "")


def labels_of(node: Mapping[str, Any]) -> Mapping[str, str]:
    """The labels of a node."""
    found: Mapping[str, str] = node["metadata"].get("labels") or {}
    return found


def members(pool: Pool, nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """The names of the nodes that its selector picks, sorted (MUT-21)."""
    chosen = selector(pool)
    return sorted(name_of(node) for node in nodes if matches(chosen, labels_of(node)))


def members_of_all(pools: Iterable[Pool], nodes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Those of several pools, in the order of the pools, each once."""
    nodes = list(nodes)
    return list(dict.fromkeys(name for pool in pools for name in members(pool, nodes)))


def canary_problem(name: str, pool: Pool | None, targets: Iterable[str], nodes: Iterable[Mapping[str, Any]]) -> str:
    """Why a pool can be no canary, "" when it can (MUT-3)."""
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
    """The canary's during a run: whoever carries none of these labels; its own expressions go (MUT-36)."""
    expressions = [{"key": label, "operator": "DoesNotExist"} for label in rule_labels]
    return {**original, "matchExpressions": expressions}


def gated_selector(original: Selector, rule_labels: Iterable[str]) -> Object:
    """That of a target's pool during a run: its own, and whoever carries all of these labels (MUT-37)."""
    own = list(original.get("matchExpressions") or [])
    return {**original, "matchExpressions": [*own, *({"key": label, "operator": "Exists"} for label in rule_labels)]}


def _of_rules(chosen: Selector | None) -> list[Mapping[str, Any]]:
    """The expressions that a run has added."""
    return [each for each in (chosen or {}).get("matchExpressions") or [] if str(each["key"]).startswith(RULE_LABEL)]


def is_edited(pool: Pool) -> bool:
    """Whether its selector is that of a run."""
    return bool(_of_rules(selector(pool)))


def takes_released(pool: Pool) -> bool:
    """Whether it is a canary amid a run: whoever carries no label of a rule is upgraded."""
    return _is_canarys(selector(pool))


def _is_canarys(chosen: Selector | None) -> bool:
    return any(each["operator"] == "DoesNotExist" for each in _of_rules(chosen))


def without_rules(chosen: Selector | None) -> Object | None:
    """A selector from which the run's expressions are taken, for a record that was lost (MUT-49)."""
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
    """The pool without what a run whose record is lost has left of its selector."""
    if not is_edited(pool):
        return pool
    return {**pool, "spec": {**pool["spec"], "nodeSelector": without_rules(selector(pool))}}


def guarded(pool: Pool, *changes: Object) -> list[Object]:
    """JSON patch of a pool as it was read: it is the same one, and nobody wrote it since. [] for no changes."""
    metadata = pool["metadata"]
    test = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    return [test, *changes] if changes else []


def claim_patch(pool: Pool, uid: str) -> list[Object]:
    """JSON patch by which a run claims a pool, [] when it is its own."""
    if claimed_by(pool) == uid:
        return []
    if pool["metadata"].get("annotations"):
        return guarded(pool, {"op": "add", "path": _CLAIM, "value": uid})
    return guarded(pool, {"op": "add", "path": "/metadata/annotations", "value": {RUN_LABEL: uid}})


def pause_patch(pool: Pool, *, paused: bool) -> list[Object]:
    """JSON patch that pauses a pool or lets it go on, [] when it is so."""
    if is_paused(pool) is paused:
        return []
    return guarded(pool, {"op": "add", "path": "/spec/paused", "value": paused})


def selector_patch(pool: Pool, wanted: Selector | None) -> list[Object]:
    """JSON patch of a pool's selector, [] when it is so."""
    if wanted is None or selector(pool) == wanted:
        return []
    return guarded(pool, {"op": "add", "path": "/spec/nodeSelector", "value": dict(wanted)})


def release_patch(pool: Pool, *, paused: bool) -> list[Object]:
    """JSON patch by which a run lets a pool go, in one write: paused or not, and nobody's."""
    changes: list[Object] = []
    if is_paused(pool) is not paused:
        changes.append({"op": "add", "path": "/spec/paused", "value": paused})
    if claimed_by(pool):
        changes.append({"op": "remove", "path": _CLAIM})
    return guarded(pool, *changes)


_CLAIM = "/metadata/annotations/" + RUN_LABEL.replace("/", "~1")
