"""MutexRule, MutexTarget and MutexRunConfig: what they are called, what they name, and their conditions. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kube.paths import Object, segment
from kube.times import timestamp

Item = Mapping[str, Any]
API_VERSION = "openshift-optional.skrzypek.io/v1alpha1"
ROOT = f"/apis/{API_VERSION}"
RULE, TARGET, RUN = "MutexRule", "MutexTarget", "MutexRunConfig"
PLURALS = {RULE: "mutexrules", TARGET: "mutextargets", RUN: "mutexrunconfigs"}
NAMESPACE = "node-upgrade-mutex-operator"
"""Where the document has its objects, and where Jobs run unless an administrator lists other namespaces."""
RULE_LABEL = "mutexrule.openshift-optional.skrzypek.io/"
"""Beginning of the labels that keep a node from its upgrade, one for each rule; the value is empty."""
RUN_LABEL = "nodemaintenance.dev/mutex-run"
"""On nodes and Jobs of a run, with its id; as an annotation on its pools, with the uid of its MutexRunConfig."""
RETRY = "nodemaintenance.dev/retry"
"""Annotation of a MutexRunConfig: any new value resumes a run that has stopped (MUT-48)."""
FINALIZER = "nodemaintenance.dev/mutex"
LONGEST_MESSAGE = 2048
"""Characters of a condition's message: a server's words may be longer."""


class Reference(NamedTuple):
    """Namespace and name of a rule or a target."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def collection(kind: str, namespace: str = "") -> str:
    """Path of all objects of a kind, or of those in a namespace."""
    inside = f"/namespaces/{segment(namespace)}" if namespace else ""
    return f"{ROOT}{inside}/{PLURALS[kind]}"


def path_of(kind: str, namespace: str, name: str) -> str:
    """Path of the object of this name."""
    return f"{collection(kind, namespace)}/{segment(name)}"


def path(item: Item) -> str:
    """Path of an object that has its kind."""
    return path_of(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])


def reference(item: Item) -> Reference:
    """How a MutexRunConfig names a rule or a target."""
    return Reference(item["metadata"]["namespace"], item["metadata"]["name"])


def full_name(item: Item) -> str:
    """`NAMESPACE/NAME`, as messages and commands have it."""
    return str(reference(item))


def references(run: Item, field: str) -> list[Reference]:
    """The rules or targets that a run config names, each once, in its order; without a namespace it is its own."""
    own = run["metadata"]["namespace"]
    named = (Reference(item.get("namespace") or own, item["name"]) for item in run["spec"].get(field) or [])
    return list(dict.fromkeys(named))


def canary_name(run: Item) -> str:
    """The pool that nodes are released into."""
    return str(run["spec"]["canary"]["name"])


def pauses_early(run: Item) -> bool:
    """Whether its pools are to be paused while the control plane is still being upgraded (C26)."""
    return bool(run["spec"].get("pauseEarly"))


def rule_label(rule: Reference) -> str:
    """The label that keeps a node from its upgrade until the Jobs of this rule are done."""
    return f"{RULE_LABEL}{rule.name}.{rule.namespace}"


def is_deleting(item: Item) -> bool:
    """Deletion was requested."""
    return bool(item["metadata"].get("deletionTimestamp"))


def has_finalizer(item: Item) -> bool:
    """Ours is on the object: something of it is still to be undone."""
    return FINALIZER in (item["metadata"].get("finalizers") or [])


def finalizers_patch(item: Item, *, ours: bool) -> Object:
    """Merge patch that sets our finalizer or takes it off; refused when somebody wrote meanwhile."""
    kept = [name for name in item["metadata"].get("finalizers") or [] if name != FINALIZER]
    wanted = [*kept, FINALIZER] if ours else kept
    return {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"], "finalizers": wanted}}


def status(item: Item) -> Mapping[str, Any]:
    """The status, {} when there is none yet."""
    return item.get("status") or {}


def condition(item: Item, kind: str) -> Mapping[str, Any]:
    """The condition of that type, {} when there is none, or somebody has spoiled it."""
    found = status(item).get("conditions")
    known = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    return next((each for each in known if each.get("type") == kind), {})


def is_true(item: Item, kind: str) -> bool:
    """Whether the condition of that type is True and was judged by the spec as it is now."""
    found = condition(item, kind)
    return found.get("status") == "True" and found.get("observedGeneration") == item["metadata"].get("generation")


class Verdict(NamedTuple):
    """One condition as it should be."""

    kind: str
    holds: bool
    reason: str
    message: str = ""


def conditions_with(item: Item, verdicts: Iterable[Verdict], now: datetime) -> list[Object]:
    """All conditions of the object, with these; the time of one moves when its status changes."""
    known = {each["type"]: dict(each) for each in status(item).get("conditions") or []}
    for verdict in verdicts:
        state, before = str(verdict.holds), known.get(verdict.kind, {})
        since = before.get("lastTransitionTime") if before.get("status") == state else None
        known[verdict.kind] = {
            "type": verdict.kind,
            "status": state,
            "reason": verdict.reason,
            "message": verdict.message[:LONGEST_MESSAGE],
            "observedGeneration": item["metadata"].get("generation", 0),
            "lastTransitionTime": since or timestamp(now),
        }
    return list(known.values())


def status_patch(item: Item, changes: Object, verdicts: Iterable[Verdict], now: datetime) -> Object:
    """Merge patch of the status, refused when somebody wrote meanwhile; {} when nothing would change."""
    verdicts, known = list(verdicts), status(item)
    wanted = {**changes, "conditions": conditions_with(item, verdicts, now)} if verdicts else dict(changes)
    changed = {name: value for name, value in wanted.items() if not _is_in(known.get(name), value)}
    if not changed:
        return {}
    return {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}, "status": changed}


def _is_in(known: Any, wanted: Any) -> bool:
    """Whether a merge patch with this value would change nothing."""
    if isinstance(wanted, Mapping) and isinstance(known, Mapping):
        return all(_is_in(known.get(name), value) for name, value in wanted.items())
    return bool(known == wanted)
