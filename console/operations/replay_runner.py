"""Replays recorded events for the commands and the web console: finds the functions and compares their responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudevents.core.base import BaseCloudEvent

from console.operations.errors import NoResult
from console.operations.replay_report import ReplayResult
from eventing.endpoints import join_url
from eventing.journal.entries import Entry
from eventing.local import manifests
from eventing.local.manifests import DeliveryPolicy, ManifestError, Trigger
from eventing.replay.function_client import (
    FunctionResponse,
    NoResponse,
    NotAFunction,
    ResponseTimeout,
    create_replay_id,
    find_recorded_attempt,
    replay_event,
)
from eventing.replay.object_changes import ObjectChanges, find_objects, read_changes
from eventing.replay.redrive import NO_RESPONSE_STATUS
from eventing.replay.response_diff import compare_responses
from eventing.subscriptions import SUBSCRIPTIONS, parse_function_name
from kube.client.api import Api, get_or_none
from kube.client.sync_client import SyncClient
from kube.paths import DEFAULT_NAMESPACE

FUNCTION_LABEL = "nodemaintenance.dev/function"
MANIFESTS_DIRECTORY = Path(__file__).parents[2] / "manifests"
SHIPPED_MANIFESTS = (MANIFESTS_DIRECTORY / "base", MANIFESTS_DIRECTORY / "components" / "mutex" / "eventing.yaml")
"""The manifests in the source tree; an installed package has none."""
RECORD_FUNCTION = "record"
"""The function that only writes to the journal and never replies; a replay omits it unless the user requests it."""
KNOWN_FUNCTIONS = (*dict.fromkeys(name for name, _ in SUBSCRIPTIONS), "renew-certificates", RECORD_FUNCTION)
"""All functions of this product. `SUBSCRIPTIONS` lacks the last two, whose Triggers are defined elsewhere."""


@dataclass(frozen=True)
class Target:
    """A function and its URL; the URL "" means that the function runs in this process."""

    function: str
    url: str


@dataclass(frozen=True)
class TargetOptions:
    """The functions and addresses that the caller specifies; empty fields are unspecified.

    Attributes:
        functions: Names of functions.
        url: One address for all functions.
        functions_url: Base URL; the name of a function is its path below this URL.
        namespace: Namespace of the Triggers.
        manifests: Files or directories with Triggers, used instead of the cluster's Triggers.
        in_process: Whether functions run in this process, without an address.
    """

    functions: tuple[str, ...] = ()
    url: str = ""
    functions_url: str = ""
    namespace: str = ""
    manifests: tuple[Path, ...] = ()
    in_process: bool = False


class TargetResolver:
    """Determines which functions receive a replayed event. Raises `NoResult` if the options are not sufficient."""

    def __init__(self, options: TargetOptions, client: SyncClient) -> None:
        self._options = options
        unknown = [name for name in options.functions if name not in KNOWN_FUNCTIONS]
        if unknown and not options.url:
            raise NoResult(f'function "{unknown[0]}" not found: name one of {", ".join(KNOWN_FUNCTIONS)}')
        function_at_url = _get_function_at_url(options) if options.url else ""
        self._named_functions = options.functions or ((function_at_url,) if function_at_url else ())
        needs_triggers = not self._named_functions or not (options.functions_url or options.url or options.in_process)
        self._triggers = _read_triggers(options, client) if needs_triggers else []

    def resolve(self, event: BaseCloudEvent) -> list[Target]:
        """Return the functions named in the options, or else every function whose Trigger filter matches, each once."""
        return [Target(name, self.get_url(name)) for name in self.list_functions(event)]

    def list_functions(self, event: BaseCloudEvent) -> list[str]:
        """Return the names of the functions that `resolve` returns, without looking up their addresses."""
        if self._named_functions:
            return list(self._named_functions)
        subscribed = [
            trigger.name for trigger in self._triggers if trigger.matches(lambda name: _get_attribute(event, name))
        ]
        return [name for name in dict.fromkeys(subscribed) if name != RECORD_FUNCTION]

    def get_url(self, function: str) -> str:
        """Return the address of the function, or "" for this process. Raises `NoResult` if it is unknown."""
        if self._options.in_process:
            return ""
        if self._options.url:
            return self._options.url
        if self._options.functions_url:
            return join_url(self._options.functions_url, function)
        url = next(
            (
                trigger.subscriber_url
                for trigger in self._triggers
                if trigger.name == function and trigger.subscriber_url
            ),
            "",
        )
        if not url:
            raise NoResult(
                f"no Trigger has the address of {function}: name the functions' URL with --functions or $FUNCTIONS, "
                "or the URL of one function with --url"
            )
        return url


def _get_function_at_url(options: TargetOptions) -> str:
    """Return the function at `--url`: the one given by `--function`, or the last path segment of the URL."""
    if len(options.functions) > 1:
        raise NoResult("--url is the address of one function: name only one --function")
    name = options.functions[0] if options.functions else urlsplit(options.url).path.rstrip("/").rpartition("/")[2]
    if not name:
        raise NoResult(f"the path of {options.url} does not name a function: name it with --function")
    return name


def _read_triggers(options: TargetOptions, client: SyncClient) -> list[Trigger]:
    """Return the Triggers of our functions, each with its function's name.

    If the options specify manifests, the Triggers come from these manifests. Otherwise, they come from the cluster, or
    from the shipped manifests if the cluster has none. Triggers of other subscribers are omitted, because such
    subscribers do not support dry runs and must not receive recorded events.
    """
    installed: Iterable[Mapping[str, Any]] = (
        [] if options.manifests else _list_cluster_triggers(options.namespace, client)
    )
    paths = options.manifests or (SHIPPED_MANIFESTS if MANIFESTS_DIRECTORY.is_dir() else ())
    try:
        triggers = _build_function_triggers(installed) or _build_function_triggers(
            document.body for document in manifests.read_documents(paths) if document.kind == "Trigger"
        )
    except ManifestError as error:
        raise NoResult(str(error)) from None
    if not triggers:
        message = f"no Trigger of a nodemaintenance function found in namespace {options.namespace}"
        raise NoResult(f"{message}: name the files of the Triggers with --manifests, or functions with --function")
    return triggers


def _list_cluster_triggers(namespace: str, client: SyncClient) -> list[Mapping[str, Any]]:
    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/triggers"
    triggers = client.run(get_or_none(client.api.list(path)))
    return list(triggers["items"]) if triggers else []


def _build_function_triggers(trigger_objects: Iterable[Mapping[str, Any]]) -> list[Trigger]:
    pairs = ((_get_function_name(trigger["metadata"]), trigger) for trigger in trigger_objects)
    return [_build_trigger(function, trigger) for function, trigger in pairs if function in KNOWN_FUNCTIONS]


def _get_function_name(metadata: Mapping[str, Any]) -> str:
    return (metadata.get("labels") or {}).get(FUNCTION_LABEL) or parse_function_name(metadata["name"])


def _build_trigger(function: str, trigger_object: Mapping[str, Any]) -> Trigger:
    spec, name = trigger_object["spec"], trigger_object["metadata"]["name"]
    if spec.get("filters"):
        raise NoResult(f'Trigger "{name}": replay does not support spec.filters: name functions with --function')
    attributes = (spec.get("filter") or {}).get("attributes") or {}
    return Trigger(
        function, attributes, (trigger_object.get("status") or {}).get("subscriberUri") or "", DeliveryPolicy()
    )


def _get_attribute(event: BaseCloudEvent, name: str) -> str | None:
    value = event.get_attributes().get(name)
    return None if value is None else str(value)


@dataclass(frozen=True)
class DryRunResult:
    """The result of a dry run: each function's response, and a sentence for each object that no longer exists."""

    results: tuple[ReplayResult, ...]
    gone: tuple[str, ...]


def replay_calls(
    calls: Iterable[tuple[Entry, Target]],
    call_function: Callable[[Entry, Target], FunctionResponse],
    changes: ObjectChanges,
) -> Iterator[ReplayResult]:
    """Replay the calls in order, and yield each result; `changes` describes how the recorded objects have changed.

    A call without a comparable response yields a failed result with the reason. The replay continues with the next
    call. After a timeout, the function is not called again; its later calls fail with the same message. If an endpoint
    is not one of our functions, the replay ends and skips the remaining calls.
    """
    timeouts: dict[Target, ResponseTimeout] = {}
    for entry, target in calls:
        if target in timeouts:
            yield _build_failed_result(entry, target.function, timeouts[target])
            continue
        try:
            response = call_function(entry, target)
        except NoResponse as error:
            if isinstance(error, ResponseTimeout):
                timeouts[target] = error
            yield _build_failed_result(entry, target.function, error)
            if isinstance(error, NotAFunction):
                return
        else:
            yield _compare_with_recorded(entry, response, changes)


def _compare_with_recorded(entry: Entry, response: FunctionResponse, changes: ObjectChanges) -> ReplayResult:
    """Compare the new response with the recorded one."""
    recorded = find_recorded_attempt(entry, response.function)
    return ReplayResult(entry, recorded, response, compare_responses(recorded, response, changes) if recorded else [])


def _build_failed_result(entry: Entry, function: str, error: NoResponse) -> ReplayResult:
    return ReplayResult(
        entry,
        find_recorded_attempt(entry, function),
        FunctionResponse(function, NO_RESPONSE_STATUS, 0.0, error=str(error)),
        [],
    )


def replay_dry_run(entry: Entry, client: SyncClient, api: Api, functions_url: str) -> DryRunResult:
    """Replay the event, as a dry run, to every function whose Trigger filter matches; no writes are stored.

    In: the console's client, which reads the Triggers; the caller's client, which reads the current objects.
    `functions_url` is the functions' base URL, or "" to use the Triggers' addresses. Raises `NoResult` if no Trigger
    exists or has the required address.

    The calls run concurrently, so that several slow functions delay the browser no longer than one slow function.
    """
    targets = TargetResolver(TargetOptions(functions_url=functions_url, namespace=DEFAULT_NAMESPACE), client).resolve(
        entry.event
    )
    changes = client.run(read_changes(api, find_objects([entry])))
    replay_id = create_replay_id()

    def call_function(recorded_entry: Entry, target: Target) -> FunctionResponse:
        return replay_event(recorded_entry, target.function, target.url, dry_run=True, replay_id=replay_id)

    with ThreadPoolExecutor(len(KNOWN_FUNCTIONS)) as threads:
        results = threads.map(lambda target: next(replay_calls([(entry, target)], call_function, changes)), targets)
    return DryRunResult(tuple(results), tuple(changes.describe_missing_objects()))
