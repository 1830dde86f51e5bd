"""Fields of MutexRule, MutexTarget and MutexRunConfig objects: paths, references, labels, status and conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, NamedTuple

from kube.paths import Object, encode_path_segment
from kube.times import format_time

Resource = Mapping[str, Any]
API_VERSION = "openshift-optional.skrzypek.io/v1alpha1"
API_PATH = f"/apis/{API_VERSION}"
RULE_KIND, TARGET_KIND, RUN_KIND = "MutexRule", "MutexTarget", "MutexRunConfig"
PLURALS = {RULE_KIND: "mutexrules", TARGET_KIND: "mutextargets", RUN_KIND: "mutexrunconfigs"}
DEFAULT_NAMESPACE = "node-upgrade-mutex-operator"
"""Namespace of these objects according to the specification, and of their Jobs by default."""
RULE_LABEL_PREFIX = "mutexrule.openshift-optional.skrzypek.io/"
"""Prefix of the labels that block a node's upgrade, one label with an empty value for each rule."""
RUN_LABEL = "nodemaintenance.dev/mutex-run"
"""Label on a run's nodes and Jobs; its value is the run's id.

The same key is an annotation on the run's pools; its value is the uid of the MutexRunConfig.
"""
RETRY_ANNOTATION = "nodemaintenance.dev/retry"
"""Annotation on a MutexRunConfig; any new value resumes a halted run (MUT-48)."""
FINALIZER = "nodemaintenance.dev/mutex"
MAX_MESSAGE_CHARACTERS = 2048
"""Maximum length of a condition's message, in characters, because an API server's error message may be longer."""


class Reference(NamedTuple):
    """Namespace and name of a MutexRule or a MutexTarget."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


def build_collection_path(kind: str, namespace: str = "") -> str:
    """Return the API path of all objects of a kind, limited to `namespace` if it is not empty."""
    namespace_path = f"/namespaces/{encode_path_segment(namespace)}" if namespace else ""
    return f"{API_PATH}{namespace_path}/{PLURALS[kind]}"


def build_path(kind: str, namespace: str, name: str) -> str:
    """Return the API path of the object with this kind, namespace and name."""
    return f"{build_collection_path(kind, namespace)}/{encode_path_segment(name)}"


def build_object_path(obj: Resource) -> str:
    """Return the API path of an object, which must contain its kind."""
    return build_path(obj["kind"], obj["metadata"]["namespace"], obj["metadata"]["name"])


def get_reference(obj: Resource) -> Reference:
    """Return the reference by which a MutexRunConfig refers to this rule or target."""
    return Reference(obj["metadata"]["namespace"], obj["metadata"]["name"])


def format_full_name(obj: Resource) -> str:
    """Return `NAMESPACE/NAME`, as used in messages and commands."""
    return str(get_reference(obj))


def list_references(run: Resource, field: str) -> list[Reference]:
    """Return the references to rules or targets in a MutexRunConfig's field, in order and without duplicates.

    A reference without a namespace means the namespace of the MutexRunConfig.
    """
    own_namespace = run["metadata"]["namespace"]
    entries = run["spec"].get(field) or []
    references = (Reference(entry.get("namespace") or own_namespace, entry["name"]) for entry in entries)
    return list(dict.fromkeys(references))


def get_canary_name(run: Resource) -> str:
    """Return the name of the canary pool, which selects released nodes."""
    return str(run["spec"]["canary"]["name"])


def pauses_early(run: Resource) -> bool:
    """Return whether the pools are paused while the control plane is still upgrading (C26)."""
    return bool(run["spec"].get("pauseEarly"))


def build_rule_label(rule: Reference) -> str:
    """Return the label that blocks a node's upgrade until the Jobs of this rule are complete."""
    return f"{RULE_LABEL_PREFIX}{rule.name}.{rule.namespace}"


def is_deleting(obj: Resource) -> bool:
    """Return whether the object has a deletion timestamp."""
    return bool(obj["metadata"].get("deletionTimestamp"))


def has_finalizer(obj: Resource) -> bool:
    """Return whether the object has this project's finalizer, so that its run's changes must still be undone."""
    return FINALIZER in (obj["metadata"].get("finalizers") or [])


def build_finalizers_patch(obj: Resource, *, is_set: bool) -> Object:
    """Build the merge patch that sets or removes this project's finalizer.

    The patch fails if another client has changed the object since it was read.
    """
    kept = [name for name in obj["metadata"].get("finalizers") or [] if name != FINALIZER]
    desired = [*kept, FINALIZER] if is_set else kept
    return {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"], "finalizers": desired}}


def get_status(obj: Resource) -> Mapping[str, Any]:
    """Return the object's status, {} if it has none yet."""
    return obj.get("status") or {}


def get_condition(obj: Resource, condition_type: str) -> Mapping[str, Any]:
    """Return the condition of this type, {} if it is missing or malformed."""
    conditions = get_status(obj).get("conditions")
    candidates = conditions if isinstance(conditions, list) else []
    well_formed = (condition for condition in candidates if isinstance(condition, Mapping))
    return next((condition for condition in well_formed if condition.get("type") == condition_type), {})


def is_condition_true(obj: Resource, condition_type: str) -> bool:
    """Return whether the condition of this type is True and was computed for the current generation."""
    condition, generation = get_condition(obj, condition_type), obj["metadata"].get("generation")
    return condition.get("status") == "True" and condition.get("observedGeneration") == generation


class Condition(NamedTuple):
    """A status condition without its generation and its transition time, which `merge_conditions` adds."""

    condition_type: str
    holds: bool
    reason: str
    message: str = ""


def merge_conditions(obj: Resource, conditions: Iterable[Condition], now: datetime) -> list[Object]:
    """Return all conditions of the object, with those in `conditions` updated.

    A condition's transition time changes only if its status changes.
    """
    conditions_by_type = {condition["type"]: dict(condition) for condition in get_status(obj).get("conditions") or []}
    for condition in conditions:
        state, previous = str(condition.holds), conditions_by_type.get(condition.condition_type, {})
        since = previous.get("lastTransitionTime") if previous.get("status") == state else None
        conditions_by_type[condition.condition_type] = {
            "type": condition.condition_type,
            "status": state,
            "reason": condition.reason,
            "message": condition.message[:MAX_MESSAGE_CHARACTERS],
            "observedGeneration": obj["metadata"].get("generation", 0),
            "lastTransitionTime": since or format_time(now),
        }
    return list(conditions_by_type.values())


def build_status_patch(obj: Resource, changes: Object, conditions: Iterable[Condition], now: datetime) -> Object:
    """Build the merge patch for the status; {} if nothing would change.

    The patch fails if another client has changed the object since it was read.
    """
    conditions, current = list(conditions), get_status(obj)
    desired = {**changes, "conditions": merge_conditions(obj, conditions, now)} if conditions else dict(changes)
    changed = {name: value for name, value in desired.items() if not _is_already_set(current.get(name), value)}
    if not changed:
        return {}
    return {"metadata": {"resourceVersion": obj["metadata"]["resourceVersion"]}, "status": changed}


def _is_already_set(current: Any, desired: Any) -> bool:
    """Return whether a merge patch from `current` to `desired` would change nothing."""
    if isinstance(desired, Mapping) and isinstance(current, Mapping):
        return all(_is_already_set(current.get(name), value) for name, value in desired.items())
    return bool(current == desired)
