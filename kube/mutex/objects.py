"""MutexRule, MutexTarget and MutexRunConfig: paths, references, labels, status and conditions."""

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
"""Namespace of these objects in the specification; Jobs run here unless an administrator permits other namespaces."""
RULE_LABEL = "mutexrule.openshift-optional.skrzypek.io/"
"""Prefix of the labels that block a node's upgrade, one for each rule; the value is empty."""
RUN_LABEL = "nodemaintenance.dev/mutex-run"
"""Label of a run's nodes and Jobs, with its id.

It is also an annotation of the run's pools, with the uid of the MutexRunConfig.
"""
RETRY = "nodemaintenance.dev/retry"
"""Annotation of a MutexRunConfig: any new value resumes a stopped run (MUT-48)."""
FINALIZER = "nodemaintenance.dev/mutex"
LONGEST_MESSAGE = 2048
"""Maximum length of a condition's message, in characters; a server's error message may be longer."""


class Reference(NamedTuple):
    """Namespace and name of a rule or a target."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def collection(kind: str, namespace: str = "") -> str:
    """Return the API path of all objects of a kind, or of those in one namespace."""
    inside = f"/namespaces/{segment(namespace)}" if namespace else ""
    return f"{ROOT}{inside}/{PLURALS[kind]}"


def path_of(kind: str, namespace: str, name: str) -> str:
    """Return the API path of the object with this name."""
    return f"{collection(kind, namespace)}/{segment(name)}"


def path(item: Item) -> str:
    """Return the API path of an object that contains its kind."""
    return path_of(item["kind"], item["metadata"]["namespace"], item["metadata"]["name"])


def reference(item: Item) -> Reference:
    """Return the reference by which a MutexRunConfig names this rule or target."""
    return Reference(item["metadata"]["namespace"], item["metadata"]["name"])


def full_name(item: Item) -> str:
    """Return `NAMESPACE/NAME`, as used in messages and commands."""
    return str(reference(item))


def references(run: Item, field: str) -> list[Reference]:
    """Return the rules or targets that a run config names, in its order and without duplicates.

    An omitted namespace means the run config's own.
    """
    own = run["metadata"]["namespace"]
    named = (Reference(item.get("namespace") or own, item["name"]) for item in run["spec"].get(field) or [])
    return list(dict.fromkeys(named))


def canary_name(run: Item) -> str:
    """Return the name of the pool that nodes are released into."""
    return str(run["spec"]["canary"]["name"])


def pauses_early(run: Item) -> bool:
    """Return whether the pools are paused while the control plane is still upgrading (C26)."""
    return bool(run["spec"].get("pauseEarly"))


def rule_label(rule: Reference) -> str:
    """Return the label that blocks a node's upgrade until the Jobs of this rule are complete."""
    return f"{RULE_LABEL}{rule.name}.{rule.namespace}"


def is_deleting(item: Item) -> bool:
    """Return whether the object's deletion was requested."""
    return bool(item["metadata"].get("deletionTimestamp"))


def has_finalizer(item: Item) -> bool:
    """Return whether the object carries our finalizer: some changes are not undone yet."""
    return FINALIZER in (item["metadata"].get("finalizers") or [])


def finalizers_patch(item: Item, *, ours: bool) -> Object:
    """Build the merge patch that sets or removes our finalizer; it fails if another client changed the object."""
    kept = [name for name in item["metadata"].get("finalizers") or [] if name != FINALIZER]
    wanted = [*kept, FINALIZER] if ours else kept
    return {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"], "finalizers": wanted}}


def status(item: Item) -> Mapping[str, Any]:
    """Return the status, or {} before the first one."""
    return item.get("status") or {}


def condition(item: Item, kind: str) -> Mapping[str, Any]:
    """Return the condition of this type, or {} if it is missing or malformed."""
    found = status(item).get("conditions")
    known = [each for each in found if isinstance(each, Mapping)] if isinstance(found, list) else []
    return next((each for each in known if each.get("type") == kind), {})


def is_true(item: Item, kind: str) -> bool:
    """Return whether the condition of this type is True and was computed for the current generation."""
    found = condition(item, kind)
    return found.get("status") == "True" and found.get("observedGeneration") == item["metadata"].get("generation")


class Verdict(NamedTuple):
    """The desired state of one condition."""

    kind: str
    holds: bool
    reason: str
    message: str = ""


def conditions_with(item: Item, verdicts: Iterable[Verdict], now: datetime) -> list[Object]:
    """Return all conditions of the object, updated with the verdicts.

    A condition's transition time changes only with its status.
    """
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
    """Build the merge patch of the status, {} if nothing would change.

    It fails if another client has changed the object since it was read.
    """
    verdicts, known = list(verdicts), status(item)
    wanted = {**changes, "conditions": conditions_with(item, verdicts, now)} if verdicts else dict(changes)
    changed = {name: value for name, value in wanted.items() if not _is_in(known.get(name), value)}
    if not changed:
        return {}
    return {"metadata": {"resourceVersion": item["metadata"]["resourceVersion"]}, "status": changed}


def _is_in(known: Any, wanted: Any) -> bool:
    """Return whether a merge patch with the value `wanted` would change nothing."""
    if isinstance(wanted, Mapping) and isinstance(known, Mapping):
        return all(_is_in(known.get(name), value) for name, value in wanted.items())
    return bool(known == wanted)
