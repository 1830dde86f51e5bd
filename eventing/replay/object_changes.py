"""Detects how the objects in a recorded event have changed since, to explain why a replay's response differs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from eventing.extensions import EXTENSION_OF_KIND
from eventing.journal.entries import Entry
from kube.budgets import build_namespace_budgets_path
from kube.client.api import Api, gather_all, get_or_none
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import SUCCEEDED, get_phase
from kube.mutex.due_events import STAGES, DueEvent
from kube.mutex.objects import RULE_KIND, RUN_KIND, TARGET_KIND, build_path, get_condition
from kube.mutex.run_record import compute_stage, get_current_node, get_record, is_active
from kube.mutex.validation import CONFIG_VALIDATED_CONDITION, is_current_generation_validated
from kube.nodes import build_node_path, is_in_maintenance
from kube.paths import Object, encode_path_segment
from kube.pods import is_terminating

MAINTENANCE_KIND, NODE_KIND, POD_KIND, BUDGET_KIND = "nodemaintenance", "node", "pod", "poddisruptionbudget"
MUTEX_OBJECT_KINDS = {RULE_KIND: "mutexrule", TARGET_KIND: "mutextarget", RUN_KIND: "mutexrunconfig"}
"""Name of each upgrade mutex kind in this package and in messages."""


class ObjectChange(Enum):
    """How an object has changed since its event was recorded; messages contain the value after the object's name."""

    DELETED = "no longer exists"
    REPLACED = "was deleted and created again"
    TERMINATING = "is being deleted"
    SUCCEEDED = "has reached phase Succeeded since"
    CORDONED_AND_TAINTED = "is cordoned and tainted now"
    CHECKED = "has been checked since"


GONE_CHANGES = (ObjectChange.DELETED, ObjectChange.REPLACED)
"""Changes after which the recorded object no longer exists."""


@dataclass(frozen=True)
class RecordedObject:
    """An object that a recorded event refers to; `uid` is "" if only the name is known."""

    kind: str
    name: str
    uid: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class RunProgress(NamedTuple):
    """An upgrade run's progress: the event that it waits for ("" if there is none), and its current node."""

    awaited_event_type: str
    current_node: str


class BudgetCounts(NamedTuple):
    """Counts of a PodDisruptionBudget: healthy pods, required healthy pods and allowed disruptions."""

    healthy: int
    needed: int
    allowed: int = 0


@dataclass(frozen=True)
class ObjectChanges:
    """How objects have changed since their events were recorded, and the current state of runs and PDBs.

    `runs` is the progress of runs by uid; `budgets` are the counts of PodDisruptionBudgets by `namespace/name`.
    """

    by_object: Mapping[RecordedObject, ObjectChange]
    runs: Mapping[str, RunProgress] = field(default_factory=dict)
    budgets: Mapping[str, BudgetCounts] = field(default_factory=dict)

    def get_change(self, kind: str, key: str) -> ObjectChange | None:
        """Return how an object has changed, None if unchanged; `key` is its uid, or the name of a node or PDB."""
        return self._changes_by_key.get((kind, key))

    def describe_missing_objects(self) -> list[str]:
        """Return a sentence for each object that no longer exists, sorted; pods with the same name share a sentence."""
        return sorted(
            {f"{recorded} {change.value}" for recorded, change in self.by_object.items() if change in GONE_CHANGES}
        )

    @cached_property
    def _changes_by_key(self) -> dict[tuple[str, str], ObjectChange]:
        return {(recorded.kind, recorded.uid or recorded.name): change for recorded, change in self.by_object.items()}


NO_CHANGES = ObjectChanges({})


def find_recorded_objects(entries: Iterable[Entry]) -> set[RecordedObject]:
    """Return the objects to which the events and the replies to them refer."""
    objects: set[RecordedObject] = set()
    for entry in entries:
        objects.update(_find_referenced_objects(_as_mapping(entry.event.get_data())))
        for attempt in entry.attempts:
            for reply in attempt.replies:
                objects.update(_find_referenced_objects(_as_mapping(reply.get("data"))))
    return objects


def _find_referenced_objects(data: Mapping[str, Any]) -> Iterator[RecordedObject]:
    """Yield the objects to which event data refers.

    The data of this project's events refers to a maintenance, a node and pods; the API server's data is the object
    itself.
    """
    metadata, kind = _as_mapping(data.get("metadata")), data.get("kind")
    if kind == "NodeMaintenance":
        yield from _find_maintenance({**metadata, "apiVersion": data.get("apiVersion")})
        yield from _find_node(_as_mapping(data.get("spec")).get("nodeName"))
    elif kind == "Node":
        yield from _find_node(metadata.get("name"))
    elif isinstance(kind, str) and kind in MUTEX_OBJECT_KINDS:
        yield from _find_mutex_object(kind, metadata)
    else:
        for mutex_kind in MUTEX_OBJECT_KINDS:
            yield from _find_mutex_object(mutex_kind, _as_mapping(data.get(EXTENSION_OF_KIND[mutex_kind])))
        yield from _find_maintenance(_as_mapping(data.get("maintenance")))
        yield from _find_node(data.get("node"))
        for pod in parse_pods(data):
            path = f"/api/v1/namespaces/{encode_path_segment(pod['namespace'])}/pods/{encode_path_segment(pod['name'])}"
            yield RecordedObject(POD_KIND, f"{pod['namespace']}/{pod['name']}", pod["uid"], path)
        for namespace, name in filter(None, map(parse_blocking_budget, parse_blocked_pods(data))):
            path = f"{build_namespace_budgets_path(namespace)}/{encode_path_segment(name)}"
            yield RecordedObject(BUDGET_KIND, f"{namespace}/{name}", "", path)


def parse_pods(data: object) -> list[Mapping[str, str]]:
    """Return the pods in the data of `pods.evicted`, without entries that lack a namespace, a name or a uid."""
    return [*parse_evicted_pods(data), *parse_blocked_pods(data)]


def parse_evicted_pods(data: object) -> list[Mapping[str, str]]:
    """Return the evicted pods in the data of `pods.evicted`."""
    return _parse_pod_list(_as_mapping(data).get("evicted"))


def parse_blocked_pods(data: object) -> list[Mapping[str, Any]]:
    """Return the blocked pods in the data of `pods.evicted`, each with its reason."""
    return _parse_pod_list(_as_mapping(data).get("blocked"))


def parse_blocking_budget(blocked: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return the namespace and name of the PodDisruptionBudget that blocks a pod; None unless there is exactly one."""
    name = blocked.get("budget")
    return (blocked["namespace"], str(name)) if _is_nonempty_string(name) and "," not in str(name) else None


def _parse_pod_list(value: object) -> list[Mapping[str, Any]]:
    keys = ("namespace", "name", "uid")
    return [pod for pod in _as_list(value) if all(_is_nonempty_string(_as_mapping(pod).get(key)) for key in keys)]


def _is_nonempty_string(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _find_maintenance(data: Mapping[str, Any]) -> Iterator[RecordedObject]:
    group, name, uid = GROUPS.get(str(data.get("apiVersion"))), data.get("name"), data.get("uid")
    if group and name and uid:
        yield RecordedObject(MAINTENANCE_KIND, str(name), str(uid), f"{group.path}/{encode_path_segment(str(name))}")


def _find_mutex_object(kind: str, data: Mapping[str, Any]) -> Iterator[RecordedObject]:
    namespace, name, uid = (str(data.get(field) or "") for field in ("namespace", "name", "uid"))
    if namespace and name and uid:
        yield RecordedObject(MUTEX_OBJECT_KINDS[kind], f"{namespace}/{name}", uid, build_path(kind, namespace, name))


def _find_node(node_name: Any) -> Iterator[RecordedObject]:
    if node_name:
        yield RecordedObject(NODE_KIND, str(node_name), "", build_node_path(str(node_name)))


async def read_changes(api: Api, objects: Collection[RecordedObject]) -> ObjectChanges:
    """Read the current state of each object, and detect its change. Raises `ApiError`, such as `Denied`."""
    current_objects = await gather_all(*(get_or_none(api.get(recorded.path)) for recorded in objects))
    current_by_object = dict(zip(objects, current_objects, strict=True))
    changes = {recorded: detect_change(recorded, current) for recorded, current in current_by_object.items()}
    runs = {
        recorded.uid: get_run_progress(current)
        for recorded, current in current_by_object.items()
        if recorded.kind == MUTEX_OBJECT_KINDS[RUN_KIND]
        and current is not None
        and changes[recorded] not in GONE_CHANGES
    }
    budgets = {
        recorded.name: parse_budget_counts(current)
        for recorded, current in current_by_object.items()
        if recorded.kind == BUDGET_KIND and current is not None
    }
    return ObjectChanges({recorded: change for recorded, change in changes.items() if change}, runs, budgets)


def parse_budget_counts(budget: Object) -> BudgetCounts:
    """Return the counts in a PodDisruptionBudget's current status; counts that a new PDB lacks are 0."""
    status = budget.get("status") or {}
    return BudgetCounts(*(status.get(name, 0) for name in ("currentHealthy", "desiredHealthy", "disruptionsAllowed")))


def get_run_progress(run: Object) -> RunProgress:
    """Return the progress of a run; a valid MutexRunConfig without an active run waits for the upgrade check."""
    if get_condition(run, CONFIG_VALIDATED_CONDITION).get("status") != "True":
        return RunProgress("", "")
    if not is_active(run):
        return RunProgress(DueEvent.RUN_VALIDATED.value, "")
    row = STAGES.get(compute_stage(run))
    return RunProgress(row.due_event.value if row else "", get_current_node(get_record(run)))


def detect_change(recorded: RecordedObject, current_object: Object | None) -> ObjectChange | None:
    """Return how a recorded object differs from the current object with the same name; None if unchanged."""
    if current_object is None:
        return ObjectChange.DELETED
    if recorded.uid and current_object["metadata"]["uid"] != recorded.uid:
        return ObjectChange.REPLACED
    if is_terminating(current_object):
        return ObjectChange.TERMINATING
    if recorded.kind in (
        MUTEX_OBJECT_KINDS[RULE_KIND],
        MUTEX_OBJECT_KINDS[TARGET_KIND],
    ) and is_current_generation_validated(current_object):
        return ObjectChange.CHECKED
    if recorded.kind == MAINTENANCE_KIND and get_phase(current_object) == SUCCEEDED:
        return ObjectChange.SUCCEEDED
    if recorded.kind == NODE_KIND and any(
        is_in_maintenance(current_object, group.drain_taint) for group in GROUPS.values()
    ):
        return ObjectChange.CORDONED_AND_TAINTED
    return None


def _as_mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _as_list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
