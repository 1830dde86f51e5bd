"""Replays recorded events, for the commands and the web console: finds the functions and compares their answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudevents.core.base import BaseCloudEvent

from console.operations.replay_report import Replayed
from console.operations.errors import NoResult
from eventing.journal.entries import Entry
from eventing.local import manifests
from eventing.local.manifests import ManifestError
from eventing.local.triggers import Policy, Trigger
from eventing.replay.function_client import Answer, NoAnswer, NoFunction, TooLate, new_replay_id, recorded, replay
from eventing.replay.object_changes import Changes, objects_in, read_changes
from eventing.replay.response_diff import compare
from eventing.replay.redrive import NOBODY_THERE
from eventing.subscriptions import SUBSCRIPTIONS, function_of
from eventing.urls import below
from kube.client.api import Api, absent_ok
from kube.client.sync_client import Cluster
from kube.paths import NAMESPACE

FUNCTION_LABEL = "nodemaintenance.dev/function"
MANIFESTS = Path(__file__).parents[2] / "manifests"
SHIPPED = (MANIFESTS / "base", MANIFESTS / "components" / "mutex" / "eventing.yaml")
"""The manifests in the source tree; an installed package has none."""
RECORDS_ONLY = "record"
"""The function that only writes to the journal and never replies; a replay omits it unless the user names it."""
FUNCTIONS = (*dict.fromkeys(name for name, _ in SUBSCRIPTIONS), "renew-certificates", RECORDS_ONLY)
"""All functions of this product; the subscription table lacks the last two."""


@dataclass(frozen=True)
class Target:
    """A function and its URL; the URL "" stands for this process."""

    function: str
    url: str


@dataclass(frozen=True)
class Wanted:
    """The functions and addresses that the caller specifies; an empty field specifies nothing.

    Attributes:
        functions: Names of functions.
        url: One address for all functions.
        base: URL under which functions are found by name.
        namespace: Namespace of the Triggers.
        manifests: Files or folders with Triggers, used instead of the cluster's Triggers.
        in_process: Whether functions run in this process, without an address.
    """

    functions: tuple[str, ...] = ()
    url: str = ""
    base: str = ""
    namespace: str = ""
    manifests: tuple[Path, ...] = ()
    in_process: bool = False


class Targets:
    """The functions that receive a replayed event. Raises `NoResult` if the caller must specify more."""

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
        """Return the named functions, else all functions whose Trigger filter matches; each once, in their order."""
        return [Target(name, self.url(name)) for name in self.functions(event)]

    def functions(self, event: BaseCloudEvent) -> list[str]:
        """Return only the names of these functions, without their addresses."""
        if self._named:
            return list(self._named)
        subscribed = [each.name for each in self._triggers if each.matches(lambda name: _attribute(event, name))]
        return [name for name in dict.fromkeys(subscribed) if name != RECORDS_ONLY]

    def url(self, function: str) -> str:
        """Return the address of the function, "" for this process. Raises `NoResult` if it is unknown."""
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
    """Return the function at `--url`: the named one, else the last path segment of the URL."""
    if len(wanted.functions) > 1:
        raise NoResult("--url is one function's address: name one --function with it")
    name = wanted.functions[0] if wanted.functions else urlsplit(wanted.url).path.rstrip("/").rpartition("/")[2]
    if not name:
        raise NoResult(f"which function is at {wanted.url}? Name it with --function")
    return name


def _triggers(wanted: Wanted, cluster: Cluster) -> list[Trigger]:
    """Return the Triggers of our functions, each with its function's name.

    They come from the specified manifests, else from the cluster, else from the shipped manifests. Triggers of other
    subscribers are omitted: these do not support dry runs, and must not receive recorded events.
    """
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
    """The result of a dry run: an answer of each function, and a sentence for each object that no longer exists."""

    answers: tuple[Replayed, ...]
    lost: tuple[str, ...]


def one_by_one(
    calls: Iterable[tuple[Entry, Target]], ask: Callable[[Entry, Target], Answer], changes: Changes
) -> Iterator[Replayed]:
    """Make the calls in order, and yield each result; `changes` describes changes of the recorded objects since then.

    A function without a comparable answer counts as failing now, with the reason. The replay continues with the next
    call. After a timeout, the function is not called again; its later calls fail with the same message. If an endpoint
    is not one of our functions, the replay ends and skips the remaining calls.
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
    """Compare the new answer with the recorded one."""
    then = recorded(entry, now.function)
    return Replayed(entry, then, now, compare(then, now, changes) if then else [])


def _unanswered(entry: Entry, function: str, error: NoAnswer) -> Replayed:
    return Replayed(entry, recorded(entry, function), Answer(function, NOBODY_THERE, 0.0, error=str(error)), [])


def dry_run(entry: Entry, cluster: Cluster, caller: Api, functions: str) -> DryRun:
    """Replay the event to every function whose Trigger filter matches, without keeping any of their writes.

    In: the console's client, which reads the Triggers; the caller's client, which reads the current objects.
    `functions` is the URL under which functions are found by name, "" to use the Triggers' addresses. Raises
    `NoResult`.

    The calls are concurrent, so that several slow functions delay the browser no longer than one.
    """
    targets = Targets(Wanted(base=functions, namespace=NAMESPACE), cluster).of(entry.event)
    changes = cluster.run(read_changes(caller, objects_in([entry])))
    replay_id = new_replay_id()

    def ask(event: Entry, target: Target) -> Answer:
        return replay(event, target.function, target.url, dry_run=True, replay_id=replay_id)

    with ThreadPoolExecutor(len(FUNCTIONS)) as threads:
        found = threads.map(lambda target: next(one_by_one([(entry, target)], ask, changes)), targets)
    return DryRun(tuple(found), tuple(changes.lost()))
