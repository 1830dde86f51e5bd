"""Finds the functions that receive a replayed or redriven event, and their addresses, from options and Triggers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cloudevents.core.base import BaseCloudEvent

from console.operations.errors import NoResult
from eventing.endpoints import join_url
from eventing.local import manifests
from eventing.local.manifests import DeliveryPolicy, ManifestError, Trigger
from eventing.subscriptions import SUBSCRIPTIONS, parse_function_name
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient

FUNCTION_LABEL = "nodemaintenance.dev/function"
MANIFESTS_DIRECTORY = Path(__file__).parents[2] / "manifests"
SHIPPED_MANIFESTS = (MANIFESTS_DIRECTORY / "base", MANIFESTS_DIRECTORY / "components" / "mutex" / "eventing.yaml")
"""The manifests in the source tree; an installed package has none."""
RECORD_FUNCTION = "record"
"""The function that only writes to the journal and never replies; a replay omits it unless the user requests it."""
KNOWN_FUNCTIONS = (
    *dict.fromkeys(name for name, _ in SUBSCRIPTIONS),
    *("publish-conditions", "notify-owners", "renew-certificates", RECORD_FUNCTION),
)
"""All functions of this product. `SUBSCRIPTIONS` lacks those in the last line, whose Triggers are defined elsewhere."""


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
        for trigger in self._triggers:
            if trigger.name == function and trigger.subscriber_url:
                return trigger.subscriber_url
        raise NoResult(
            f"no Trigger has the address of {function}: name the functions' URL with --functions or $FUNCTIONS, "
            "or the URL of one function with --url"
        )


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
    triggers: list[Trigger] = []
    if not options.manifests:
        path = f"/apis/eventing.knative.dev/v1/namespaces/{options.namespace}/triggers"
        installed = client.run(get_or_none(client.api.list(path)))
        triggers = _build_function_triggers(installed["items"] if installed else [])
    paths = options.manifests or (SHIPPED_MANIFESTS if MANIFESTS_DIRECTORY.is_dir() else ())
    try:
        triggers = triggers or _build_function_triggers(
            document.body for document in manifests.read_documents(paths) if document.kind == "Trigger"
        )
    except ManifestError as error:
        raise NoResult(str(error)) from None
    if not triggers:
        message = f"no Trigger of a nodemaintenance function found in namespace {options.namespace}"
        raise NoResult(f"{message}: name the files of the Triggers with --manifests, or functions with --function")
    return triggers


def _build_function_triggers(trigger_objects: Iterable[Mapping[str, Any]]) -> list[Trigger]:
    """Return the Triggers of known functions. Raises `NoResult` for one with filters that a replay cannot apply."""
    triggers = []
    for trigger_object in trigger_objects:
        metadata, spec = trigger_object["metadata"], trigger_object["spec"]
        function = (metadata.get("labels") or {}).get(FUNCTION_LABEL) or parse_function_name(metadata["name"])
        if function not in KNOWN_FUNCTIONS:
            continue
        if spec.get("filters"):
            message = f'Trigger "{metadata["name"]}": replay does not support spec.filters'
            raise NoResult(f"{message}: name functions with --function")
        attributes = (spec.get("filter") or {}).get("attributes") or {}
        url = (trigger_object.get("status") or {}).get("subscriberUri") or ""
        triggers.append(Trigger(function, attributes, url, DeliveryPolicy()))
    return triggers


def _get_attribute(event: BaseCloudEvent, name: str) -> str | None:
    value = event.get_attributes().get(name)
    return None if value is None else str(value)
