"""Where an event goes when it is replayed: to whom the Triggers send it, or to whom the command line says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from cloudevents.core.base import BaseCloudEvent

from console.terminal.options import functions_option, namespace_option
from console.terminal.trouble import Trouble
from eventing.local import manifests
from eventing.local.manifests import ManifestError
from eventing.local.triggers import Policy, Trigger
from eventing.subscriptions import SUBSCRIPTIONS
from eventing.urls import Url, below
from kube.door.api import absent_ok
from kube.door.cluster import Cluster

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
FUNCTION_LABEL = "nodemaintenance.dev/function"
SHIPPED = Path(__file__).parents[2] / "manifests" / "base"
"""The manifests beside the sources; an installed package has none."""
KEEPS_ONLY = "record"
"""Acts on nothing and answers nothing: replaying to it shows nothing, unless somebody asks for it."""
FUNCTIONS = (*dict.fromkeys(name for name, _ in SUBSCRIPTIONS), KEEPS_ONLY)


@dataclass(frozen=True)
class Target:
    """A function and where it answers; url "" is in this process."""

    function: str
    url: str


@dataclass(frozen=True)
class Wanted:
    """What the command line says of targets; empty is not said.

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


def target_options(command: Decorated) -> Decorated:
    """Add the options of `Wanted`."""
    functions = click.option(
        "--function",
        "functions",
        multiple=True,
        help="To this function; repeatable.  [default: all whose Trigger takes the event]",
    )
    url = click.option("--url", type=Url(), default="", help="To this address, of one function.")
    base = functions_option("base", "the Triggers' own addresses")
    manifests = click.option(
        "--manifests",
        multiple=True,
        type=click.Path(exists=True, path_type=Path),
        help="File or folder with the Triggers; repeatable.  [default: the cluster's, then those shipped]",
    )
    here = click.option("--in-process", is_flag=True, help="Run the function in this process, with your own rights.")
    return functions(url(base(manifests(namespace_option(here(command))))))


class Targets:
    """Who gets which event. Raises `Trouble` for what the command line has to say better."""

    def __init__(self, wanted: Wanted, cluster: Cluster) -> None:
        self._wanted = wanted
        unknown = [name for name in wanted.functions if name not in FUNCTIONS]
        if unknown and not wanted.url:
            raise Trouble(f"there is no function {unknown[0]}: {', '.join(FUNCTIONS)}")
        alone = _named_by(wanted) if wanted.url else ""
        self._named = wanted.functions or ((alone,) if alone else ())
        needed = not self._named or not (wanted.base or wanted.url or wanted.in_process)
        self._triggers = _triggers(wanted, cluster) if needed else []

    def of(self, event: BaseCloudEvent) -> list[Target]:
        """The functions named, else all whose Trigger takes the event; each once, in the order of the Triggers."""
        if self._named:
            return [Target(name, self._url(name)) for name in self._named]
        taking = [trigger.name for trigger in self._triggers if trigger.matches(lambda name: _attribute(event, name))]
        return [Target(name, self._url(name)) for name in dict.fromkeys(taking) if name != KEEPS_ONLY]

    def _url(self, function: str) -> str:
        if self._wanted.in_process:
            return ""
        if self._wanted.url:
            return self._wanted.url
        if self._wanted.base:
            return below(self._wanted.base, function)
        url = next((trigger.url for trigger in self._triggers if trigger.name == function and trigger.url), "")
        if not url:
            raise Trouble(
                f"no Trigger on the cluster says where the function {function} is: name the URL under which functions "
                "are found by --functions or $FUNCTIONS, or one function's own by --url"
            )
        return url


def _named_by(wanted: Wanted) -> str:
    """The function at `--url`: the one that is named, else the last word of the URL's path."""
    if len(wanted.functions) > 1:
        raise Trouble("--url is one function's address: name one --function with it")
    name = wanted.functions[0] if wanted.functions else urlsplit(wanted.url).path.rstrip("/").rpartition("/")[2]
    if not name:
        raise Trouble(f"which function is at {wanted.url}? Name it with --function")
    return name


def _triggers(wanted: Wanted, cluster: Cluster) -> list[Trigger]:
    """The Triggers, each under its function's name: of the manifests named, of the cluster, else of those shipped."""
    found: Iterable[Mapping[str, Any]] = [] if wanted.manifests else _on_cluster(wanted.namespace, cluster)
    paths = wanted.manifests or ((SHIPPED,) if SHIPPED.is_dir() else ())
    try:
        items = list(found) or [item.body for item in manifests.read(paths) if item.kind == "Trigger"]
    except ManifestError as error:
        raise Trouble(str(error)) from None
    if not items:
        raise Trouble(f"no Trigger in namespace {wanted.namespace}: name their files by --manifests, or --function")
    return [_trigger(item) for item in items]


def _on_cluster(namespace: str, cluster: Cluster) -> list[Mapping[str, Any]]:
    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/triggers"
    found = cluster.run(absent_ok(cluster.api.list(path)))
    return list(found["items"]) if found else []


def _trigger(item: Mapping[str, Any]) -> Trigger:
    spec, name = item["spec"], item["metadata"]["name"]
    if spec.get("filters"):
        raise Trouble(
            f"the Trigger {name} has spec.filters, of which replay knows nothing: name functions by --function"
        )
    function = (item["metadata"].get("labels") or {}).get(FUNCTION_LABEL) or name.split("-on-")[0]
    attributes = (spec.get("filter") or {}).get("attributes") or {}
    return Trigger(function, attributes, (item.get("status") or {}).get("subscriberUri") or "", Policy())


def _attribute(event: BaseCloudEvent, name: str) -> str | None:
    value = event.get_attributes().get(name)
    return None if value is None else str(value)
