"""Replay recorded events, for commands and pages: to which functions, as a dry run, and the answers of then and now."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudevents.core.base import BaseCloudEvent

from console.operations.diff import Replayed
from console.operations.errors import NoResult
from eventing.journal.entries import Entry
from eventing.local import manifests
from eventing.local.manifests import ManifestError
from eventing.local.triggers import Policy, Trigger
from eventing.replay.again import Answer, NoAnswer, NoFunction, TooLate, new_replay_id, recorded, replay
from eventing.replay.changes import Changes, objects_in, read_changes
from eventing.replay.differences import compare
from eventing.replay.redrive import NOBODY_THERE
from eventing.subscriptions import SUBSCRIPTIONS, function_of
from eventing.urls import below
from kube.door.api import Api, absent_ok
from kube.door.sync_client import Cluster
from kube.paths import NAMESPACE

FUNCTION_LABEL = "nodemaintenance.dev/function"
MANIFESTS = Path(__file__).parents[2] / "manifests"
SHIPPED = (MANIFESTS / "base", MANIFESTS / "components" / "mutex" / "eventing.yaml")
"""The manifests beside the sources; an installed package has none."""
RECORDS_ONLY = "record"
"""Acts on nothing and answers nothing: a replay leaves it out unless it is named."""
FUNCTIONS = (*dict.fromkeys(name for name, _ in SUBSCRIPTIONS), "renew-certificates", RECORDS_ONLY)
"""All of ours; the table of subscriptions has not the last two."""


@dataclass(frozen=True)
class Target:
    """A function and where it answers; url "" is in this process."""

    function: str
    url: str


@dataclass(frozen=True)
class Wanted:
    """What the caller names; empty is not named.

    Attributes:
        functions: their names.
        url: the one address for all.
        base: URL under which functions are found by their names.
        namespace: where the Triggers are.
        manifests: files or folders with Triggers, in the place of the cluster's.
        in_process: no address is needed.
    """

    functions: tuple[str, ...] = ()
    url: str = ""
    base: str = ""
    namespace: str = ""
    manifests: tuple[Path, ...] = ()
    in_process: bool = False


class Targets:
    """Which functions a replayed event is posted to. Raises `NoResult` for what the caller has to name."""

    def __init__(self, wanted: Wanted, cluster: Cluster) -> None:
        self._wanted = wanted
        unknown = [name for name in wanted.functions if name not in FUNCTIONS]
        if unknown and not wanted.url:
            raise NoResult(f"there is no function {unknown[0]}: {', '.join(FUNCTIONS)}")
        alone = _named_by(wanted) if wanted.url else ""
        self._named = wanted.functions or ((alone,) if alone else ())
        needed = not self._named or not (wanted.base or wanted.url or wanted.in_process)
        self._triggers = _triggers(wanted, cluster) if needed else []

    def of(self, event: BaseCloudEvent) -> list[Target]:
        """The functions named, else all whose Trigger's filter lets the event pass; each once, in their order."""
        return [Target(name, self.url(name)) for name in self.functions(event)]

    def functions(self, event: BaseCloudEvent) -> list[str]:
        """Their names alone, wherever they are."""
        if self._named:
            return list(self._named)
        subscribed = [each.name for each in self._triggers if each.matches(lambda name: _attribute(event, name))]
        return [name for name in dict.fromkeys(subscribed) if name != RECORDS_ONLY]

    def url(self, function: str) -> str:
        """Where the function answers, "" for in this process."""
        if self._wanted.in_process:
            return ""
        if self._wanted.url:
            return self._wanted.url
        if self._wanted.base:
            return below(self._wanted.base, function)
        url = next((trigger.url for trigger in self._triggers if trigger.name == function and trigger.url), "")
        if not url:
            raise NoResult(
                f"no Trigger on the cluster says where the function {function} is: name the URL under which functions "
                "are found by --functions or $FUNCTIONS, or one function's own by --url"
            )
        return url


def _named_by(wanted: Wanted) -> str:
    """The function at `--url`: the one that is named, else the last word of the URL's path."""
    if len(wanted.functions) > 1:
        raise NoResult("--url is one function's address: name one --function with it")
    name = wanted.functions[0] if wanted.functions else urlsplit(wanted.url).path.rstrip("/").rpartition("/")[2]
    if not name:
        raise NoResult(f"which function is at {wanted.url}? Name it with --function")
    return name


def _triggers(wanted: Wanted, cluster: Cluster) -> list[Trigger]:
    """Those of our functions, each under its function's name: of the manifests named, of the cluster, else of those
    shipped. Who else subscribes knows no dry run, and gets no recorded event."""
    found: Iterable[Mapping[str, Any]] = [] if wanted.manifests else _on_cluster(wanted.namespace, cluster)
    paths = wanted.manifests or (SHIPPED if MANIFESTS.is_dir() else ())
    try:
        triggers = _ours(found) or _ours(item.body for item in manifests.read(paths) if item.kind == "Trigger")
    except ManifestError as error:
        raise NoResult(str(error)) from None
    if not triggers:
        message = f"no Trigger of a function of ours in namespace {wanted.namespace}"
        raise NoResult(f"{message}: name their files by --manifests, or --function")
    return triggers


def _on_cluster(namespace: str, cluster: Cluster) -> list[Mapping[str, Any]]:
    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/triggers"
    found = cluster.run(absent_ok(cluster.api.list(path)))
    return list(found["items"]) if found else []


def _ours(items: Iterable[Mapping[str, Any]]) -> list[Trigger]:
    named = ((_function(item["metadata"]), item) for item in items)
    return [_trigger(function, item) for function, item in named if function in FUNCTIONS]


def _function(metadata: Mapping[str, Any]) -> str:
    return (metadata.get("labels") or {}).get(FUNCTION_LABEL) or function_of(metadata["name"])


def _trigger(function: str, item: Mapping[str, Any]) -> Trigger:
    spec, name = item["spec"], item["metadata"]["name"]
    if spec.get("filters"):
        raise NoResult(f"the Trigger {name} has spec.filters, which replay does not read: name functions by --function")
    attributes = (spec.get("filter") or {}).get("attributes") or {}
    return Trigger(function, attributes, (item.get("status") or {}).get("subscriberUri") or "", Policy())


def _attribute(event: BaseCloudEvent, name: str) -> str | None:
    value = event.get_attributes().get(name)
    return None if value is None else str(value)


@dataclass(frozen=True)
class DryRun:
    """What a dry run showed: an answer of each function, and a sentence for each object that is gone since."""

    answers: tuple[Replayed, ...]
    lost: tuple[str, ...]


def one_by_one(
    calls: Iterable[tuple[Entry, Target]], ask: Callable[[Entry, Target], Answer], changes: Changes
) -> Iterator[Replayed]:
    """Call after call, in their order; `changes` has what of the recordings is gone since.

    A function without an answer that could be compared fails now, and says why: it keeps no other from its turn. One
    that took too long fails from then on, in the same words, and is not asked again. Who is no function of ours is the
    last: the calls behind it are left.
    """
    late: dict[Target, TooLate] = {}
    for entry, target in calls:
        if target in late:
            yield _unanswered(entry, target.function, late[target])
            continue
        try:
            now = ask(entry, target)
        except NoAnswer as error:
            if isinstance(error, TooLate):
                late[target] = error
            yield _unanswered(entry, target.function, error)
            if isinstance(error, NoFunction):
                return
        else:
            yield _compared(entry, now, changes)


def _compared(entry: Entry, now: Answer, changes: Changes) -> Replayed:
    """The answer now beside the recorded one."""
    then = recorded(entry, now.function)
    return Replayed(entry, then, now, compare(then, now, changes) if then else [])


def _unanswered(entry: Entry, function: str, error: NoAnswer) -> Replayed:
    return Replayed(entry, recorded(entry, function), Answer(function, NOBODY_THERE, 0.0, error=str(error)), [])


def dry_run(entry: Entry, cluster: Cluster, caller: Api, functions: str) -> DryRun:
    """Replay the event to every function whose Trigger lets it pass; none of their writes is kept.

    In: the console's door, which finds the Triggers; the caller's, which sees what became of the objects; below which
    URL functions answer by name, "" for where the Triggers say. Raises `NoResult`.
    All are asked side by side: a browser waits as long for many that hang as for one.
    """
    targets = Targets(Wanted(base=functions, namespace=NAMESPACE), cluster).of(entry.event)
    changes = cluster.run(read_changes(caller, objects_in([entry])))
    replay_id = new_replay_id()

    def ask(event: Entry, target: Target) -> Answer:
        return replay(event, target.function, target.url, dry_run=True, replay_id=replay_id)

    with ThreadPoolExecutor(len(FUNCTIONS)) as threads:
        found = threads.map(lambda target: next(one_by_one([(entry, target)], ask, changes)), targets)
    return DryRun(tuple(found), tuple(changes.lost()))
