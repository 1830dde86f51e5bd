"""Checks whether each Trigger of the manifests can deliver an event that its function consumes. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping

from eventing import events
from eventing.local.manifests import Document

EMITTED_BY_SOURCES = {
    "ApiServerSource Resource": (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED),
    "ApiServerSource Reference": (events.REFERENCE_ADDED, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
    "PingSource": (events.TICK,),
}
"""Kind of a source, with its mode if it has one → emitted event types."""


def problems(
    documents: Iterable[Document], functions: Mapping[str, Collection[str]], emitted: Collection[str]
) -> list[str]:
    """Return why Triggers can never deliver an event, one sentence for each problem.

    Args:
        documents: The manifests.
        functions: Function name → consumed types; an empty collection stands for all types.
        emitted: Types that functions and ContainerSources emit. The types of other sources are read from the manifests.
    """
    documents = list(documents)
    known = {*emitted, *_from_sources(documents)}
    kinds = set(_watched(documents))
    triggers = [document for document in documents if document.kind == "Trigger"]
    return [str(each.wrong(*wrong)) for each in triggers for wrong in _wrong(each, functions, known, kinds)]


def _wrong(
    trigger: Document, functions: Mapping[str, Collection[str]], known: Collection[str], kinds: Collection[str]
) -> Iterator[tuple[str, str]]:
    """Yield (field, problem) for one Trigger."""
    attributes = trigger.get("spec.filter.attributes", dict) or {}
    watched, brought = attributes.get("kind"), brings(attributes, known)
    function = _called(trigger, "spec.subscriber") or ""
    if function not in functions:
        yield "spec.subscriber", f"names {function!r}, which is no function: {', '.join(functions)}"
    elif functions[function] and not brought & set(functions[function]):
        yield "spec.filter.attributes", f"are {_text(attributes)}, which brings nothing that {function} consumes"
    if not brought:
        yield "spec.filter.attributes", f"are {_text(attributes)}, which nothing emits"
    if watched is not None and watched not in kinds:
        yield "spec.filter.attributes.kind", f"is {watched!r}, which no ApiServerSource watches"
    last = _called(trigger, "spec.delivery.deadLetterSink")
    if last is not None and last not in functions:
        yield "spec.delivery.deadLetterSink", f"names {last!r}, which is no function: {', '.join(functions)}"


def brings(attributes: Mapping[str, str], known: Collection[str]) -> set[str]:
    """Return which of the `known` types a Trigger with these filter attributes matches; a flag stands for several."""
    flags = [set(events.FLAGS[name]) for name in attributes if name in events.FLAGS]
    types = [{attributes["type"]}] if "type" in attributes else []
    return set(known).intersection(*flags, *types)


def _text(attributes: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={value}" for name, value in attributes.items()) or "none"


def _called(trigger: Document, field: str) -> str | None:
    """Return the function of a destination: the last segment of its path, or else its Service."""
    uri = trigger.get(f"{field}.uri", str)
    return uri.rstrip("/").rpartition("/")[2] if uri else trigger.get(f"{field}.ref.name", str)


def _from_sources(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        mode = document.get("spec.mode", str) if document.kind == "ApiServerSource" else None
        yield from EMITTED_BY_SOURCES.get(f"{document.kind} {mode}" if mode else document.kind, ())


def _watched(documents: Iterable[Document]) -> Iterator[str]:
    for document in documents:
        if document.kind == "ApiServerSource":
            yield from (str(item.get("kind")) for item in document.get("spec.resources", list) or [])
