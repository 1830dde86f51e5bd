"""Finds how the objects that recorded events name have changed since, which explains why a replay differs."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing.journal.entries import Entry
from eventing.object_extensions import SUBJECTS
from kube.budgets import budgets_in
from kube.client.api import Api, absent_ok
from kube.client.concurrent_requests import together
from kube.maintenance.groups import GROUPS
from kube.maintenance.objects import SUCCEEDED, phase
from kube.mutex.objects import RULE, RUN, TARGET, condition, path_of
from kube.mutex.due_events import OF_STAGE, Due
from kube.mutex.run_record import any_cleanup, current, is_active, record_of, stage
from kube.mutex.validation import CONFIG_VALIDATED, is_judged
from kube.nodes import in_maintenance, node_path
from kube.paths import Object, segment
from kube.pods import is_terminating

MAINTENANCE, NODE, POD, BUDGET = "nodemaintenance", "node", "pod", "poddisruptionbudget"
MUTEX = {RULE: "mutexrule", TARGET: "mutextarget", RUN: "mutexrunconfig"}
"""Kinds of the upgrade mutex, and the name of each in this package."""


class Change(Enum):
    """How an object has changed since it was recorded; messages put the value after the object's name."""

    DELETED = "no longer exists"
    REPLACED = "is another one now"
    TERMINATING = "is being deleted"
    SUCCEEDED = "has Succeeded since"
    PREPARED = "is cordoned and tainted now"
    JUDGED = "has been judged since"


LOST = (Change.DELETED, Change.REPLACED)
"""Changes after which the recorded object no longer exists."""


@dataclass(frozen=True)
class RecordedObject:
    """An object that a recorded event names; `uid` is "" if only the name is known."""

    kind: str
    name: str
    uid: str
    path: str

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class Standing(NamedTuple):
    """Current progress of an upgrade mutex run: the event that it waits for ("" for none), and the current node."""

    event: str
    node: str


class Counts(NamedTuple):
    """Counts of a disruption budget: healthy pods, required healthy pods and allowed disruptions."""

    healthy: int
    needed: int
    allowed: int = 0


@dataclass(frozen=True)
class Changes:
    """The objects that have changed since they were recorded, and the current state of runs and budgets.

    `runs` has the progress of runs by uid; `budgets` has the counts of budgets by `namespace/name`.
    """

    by_object: Mapping[RecordedObject, Change]
    runs: Mapping[str, Standing] = field(default_factory=dict)
    budgets: Mapping[str, Counts] = field(default_factory=dict)

    def of(self, kind: str, key: str) -> Change | None:
        """Return the change of an object by its kind and uid (by name for nodes and budgets), or None if unchanged."""
        return self._by_key.get((kind, key))

    def lost(self) -> list[str]:
        """Return a sentence for each object that no longer exists, sorted."""
        return sorted(f"{each} {change.value}" for each, change in self.by_object.items() if change in LOST)

    @cached_property
    def _by_key(self) -> dict[tuple[str, str], Change]:
        return {(each.kind, each.uid or each.name): change for each, change in self.by_object.items()}


NO_CHANGES = Changes({})


def objects_in(entries: Iterable[Entry]) -> set[RecordedObject]:
    """Return the objects that the events and the replies to them name."""
    found: set[RecordedObject] = set()
    for entry in entries:
        found.update(_named(_data(entry.event)))
        for attempt in entry.attempts:
            for reply in attempt.replies:
                found.update(_named(_mapping(reply.get("data"))))
    return found


def _data(event: BaseCloudEvent) -> Mapping[str, Any]:
    return _mapping(event.get_data())


def _named(data: Mapping[str, Any]) -> Iterator[RecordedObject]:
    """Yield the objects that event data names.

    This project's data names maintenance, node and pods; the API server's data is the object itself.
    """
    metadata, kind = _mapping(data.get("metadata")), data.get("kind")
    if kind == "NodeMaintenance":
        yield from _maintenance({**metadata, "apiVersion": data.get("apiVersion")})
        yield from _node(_mapping(data.get("spec")).get("nodeName"))
    elif kind == "Node":
        yield from _node(metadata.get("name"))
    elif isinstance(kind, str) and kind in MUTEX:
        yield from _mutex(kind, metadata)
    else:
        for each in MUTEX:
            yield from _mutex(each, _mapping(data.get(SUBJECTS[each])))
        yield from _maintenance(_mapping(data.get("maintenance")))
        yield from _node(data.get("node"))
        for pod in pods_in(data):
            path = f"/api/v1/namespaces/{segment(pod['namespace'])}/pods/{segment(pod['name'])}"
            yield RecordedObject(POD, f"{pod['namespace']}/{pod['name']}", pod["uid"], path)
        for namespace, name in filter(None, map(budget_over, blocked_in(data))):
            path = f"{budgets_in(namespace)}/{segment(name)}"
            yield RecordedObject(BUDGET, f"{namespace}/{name}", "", path)


def pods_in(data: object) -> list[Mapping[str, str]]:
    """Return the pods in the data of `pods.evicted`; entries without namespace, name or uid are skipped."""
    return [*evicted_in(data), *blocked_in(data)]


def evicted_in(data: object) -> list[Mapping[str, str]]:
    """Return the evicted pods in the data of `pods.evicted`."""
    return _pods(_mapping(data).get("evicted"))


def blocked_in(data: object) -> list[Mapping[str, Any]]:
    """Return the blocked pods in the data of `pods.evicted`, each with its reason."""
    return _pods(_mapping(data).get("blocked"))


def budget_over(blocked: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return namespace and name of the budget that blocks a pod, or None if there is not exactly one."""
    name = blocked.get("budget")
    return (blocked["namespace"], str(name)) if _is_name(name) and "," not in str(name) else None


def _pods(value: object) -> list[Mapping[str, Any]]:
    keys = ("namespace", "name", "uid")
    return [pod for pod in _list(value) if all(_is_name(_mapping(pod).get(key)) for key in keys)]


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _maintenance(data: Mapping[str, Any]) -> Iterator[RecordedObject]:
    group, name, uid = GROUPS.get(str(data.get("apiVersion"))), data.get("name"), data.get("uid")
    if group and name and uid:
        yield RecordedObject(MAINTENANCE, str(name), str(uid), f"{group.path}/{segment(str(name))}")


def _mutex(kind: str, data: Mapping[str, Any]) -> Iterator[RecordedObject]:
    namespace, name, uid = (str(data.get(field) or "") for field in ("namespace", "name", "uid"))
    if namespace and name and uid:
        yield RecordedObject(MUTEX[kind], f"{namespace}/{name}", uid, path_of(kind, namespace, name))


def _node(name: Any) -> Iterator[RecordedObject]:
    if name:
        yield RecordedObject(NODE, str(name), "", node_path(str(name)))


async def read_changes(api: Api, objects: Collection[RecordedObject]) -> Changes:
    """Read each object once and compare it. Raises `ApiError`, such as `Denied` if the caller may not read it."""
    answers = await together(*(absent_ok(api.get(each.path)) for each in objects))
    found = dict(zip(objects, answers, strict=True))
    changes = {each: change_of(each, live) for each, live in found.items()}
    runs = {
        each.uid: standing_of(live)
        for each, live in found.items()
        if each.kind == MUTEX[RUN] and live is not None and changes[each] not in LOST
    }
    budgets = {each.name: counts_of(live) for each, live in found.items() if each.kind == BUDGET and live is not None}
    return Changes({each: change for each, change in changes.items() if change}, runs, budgets)


def counts_of(budget: Object) -> Counts:
    """Return the counts of a live budget; those that a new budget lacks are 0."""
    status = budget.get("status") or {}
    return Counts(*(status.get(name, 0) for name in ("currentHealthy", "desiredHealthy", "disruptionsAllowed")))


def standing_of(run: Object) -> Standing:
    """Return the progress of a run; a valid config without an active run waits for the upgrade check."""
    if condition(run, CONFIG_VALIDATED).get("status") != "True":
        return Standing("", "")
    if not is_active(run):
        return Standing(Due.DETECT.value, "")
    due = OF_STAGE.get(stage(run, any_cleanup))
    return Standing(due.value if due else "", current(record_of(run)))


def change_of(recorded: RecordedObject, live: Object | None) -> Change | None:
    """Return how a recorded object has changed, given the live object with its name."""
    if live is None:
        return Change.DELETED
    if recorded.uid and live["metadata"]["uid"] != recorded.uid:
        return Change.REPLACED
    if is_terminating(live):
        return Change.TERMINATING
    if recorded.kind in (MUTEX[RULE], MUTEX[TARGET]) and is_judged(live):
        return Change.JUDGED
    if recorded.kind == MAINTENANCE and phase(live) == SUCCEEDED:
        return Change.SUCCEEDED
    if recorded.kind == NODE and any(in_maintenance(live, group.drain_taint) for group in GROUPS.values()):
        return Change.PREPARED
    return None


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []
