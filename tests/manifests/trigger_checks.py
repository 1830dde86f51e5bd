"""Pure functions that check whether each Trigger in the manifests can deliver an event that its function consumes."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from eventing import events
from eventing.local.manifests import Document

EMITTED_BY_SOURCES = {
    "ApiServerSource Resource": (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED),
    "ApiServerSource Reference": (events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
    "PingSource": (events.TICK,),
}
"""Map from kind of source, with its mode if it has modes to the event types that it emits."""


def find_problems(
    documents: Iterable[Document], functions: Mapping[str, Collection[str]], emitted: Collection[str]
) -> list[str]:
    """Return one sentence for each reason why a Trigger can never deliver an event.

    Args:
        documents: The manifests.
        functions: Map from Function to its consumed event types; an empty collection means all types.
        emitted: The types that functions and ContainerSources emit; the manifests define the types of other sources.
    """
    documents = list(documents)
    known_types = {*emitted, *_list_source_types(documents)}
    watched_kinds = set(_list_watched_kinds(documents))
    triggers = [document for document in documents if document.kind == "Trigger"]
    return [
        str(trigger.build_error(*problem))
        for trigger in triggers
        for problem in _check_trigger(trigger, functions, known_types, watched_kinds)
    ]


def _check_trigger(
    trigger: Document,
    functions: Mapping[str, Collection[str]],
    known_types: Collection[str],
    watched_kinds: Collection[str],
) -> Iterator[tuple[str, str]]:
    """Yield each problem of a Trigger as a pair (field, message)."""
    attributes = trigger.get("spec.filter.attributes", dict) or {}
    kind, matched_types = attributes.get("kind"), match_types(attributes, known_types)
    function = _get_function(trigger, "spec.subscriber") or ""
    if function not in functions:
        yield "spec.subscriber", f"names {function!r}, which is not a function: choose from {', '.join(functions)}"
    elif functions[function] and not matched_types & set(functions[function]):
        yield (
            "spec.filter.attributes",
            f"are {_format_attributes(attributes)}, which match no event that {function} consumes",
        )
    if not matched_types:
        yield "spec.filter.attributes", f"are {_format_attributes(attributes)}, which match no emitted event"
    if kind is not None and kind not in watched_kinds:
        yield "spec.filter.attributes.kind", f"is {kind!r}, which no ApiServerSource watches"
    dead_letter_function = _get_function(trigger, "spec.delivery.deadLetterSink")
    if dead_letter_function is not None and dead_letter_function not in functions:
        yield (
            "spec.delivery.deadLetterSink",
            f"names {dead_letter_function!r}, which is not a function: choose from {', '.join(functions)}",
        )


def match_types(attributes: Mapping[str, str], known_types: Collection[str]) -> set[str]:
    """Return the known types that these filter attributes match; a flag may match several types."""
    flags = [set(events.TYPES_BY_FLAG[name]) for name in attributes if name in events.TYPES_BY_FLAG]
    types = [{attributes["type"]}] if "type" in attributes else []
    return set(known_types).intersection(*flags, *types)


def _format_attributes(attributes: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attributes.items()) or "none"


def _get_function(trigger: Document, field: str) -> str | None:
    """Return the function of a destination, that is, the last segment of its path or the name of its Service."""
    uri = trigger.get(f"{field}.uri", str)
    return uri.rstrip("/").rpartition("/")[2] if uri else trigger.get(f"{field}.ref.name", str)


def _list_source_types(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        mode = document.get("spec.mode", str) if document.kind == "ApiServerSource" else None
        yield from EMITTED_BY_SOURCES.get(f"{document.kind} {mode}" if mode else document.kind, ())


def _list_watched_kinds(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        if document.kind == "ApiServerSource":
            yield from (str(resource.get("kind")) for resource in document.get("spec.resources", list) or [])
