"""Triggers and their delivery policies, read from manifests: filter, subscriber, retries, dead letter sink. No I/O."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from eventing.local.manifests import Document
from eventing.urls import below, is_url

PARALLELISM = "rabbitmq.eventing.knative.dev/parallelism"
"""The RabbitMQ Broker's annotation on a Trigger; Knative's own broker has none."""
DEFAULT_PARALLELISM = 16
DEFAULT_TIMEOUT = 30.0
"""Seconds. Knative has no default; here an unresponsive function must not block its node's events forever."""
NUMBER = r"([0-9]+(?:[.,][0-9]+)?)"
DURATION = re.compile(
    rf"P(?:{NUMBER}Y)?(?:{NUMBER}M)?(?:{NUMBER}W)?(?:{NUMBER}D)?(?:T(?:{NUMBER}H)?(?:{NUMBER}M)?(?:{NUMBER}S)?)?"
)
UNITS = (604800, 86400, 3600, 60, 1)
"""Seconds in a week, day, hour, minute and second."""
MOST_DOUBLINGS = 1000
"""Limit on the exponent of the backoff: a float cannot represent much larger powers of two."""
EXPONENTIAL, LINEAR = "exponential", "linear"
ALWAYS_THERE = {"specversion", "id", "type", "source", "subject", "time", "datacontenttype", "dataschema"}


@dataclass(frozen=True)
class Policy:
    """The delivery policy of a Trigger: retries, backoff, timeout and dead letter sink.

    Attributes:
        retry: Attempts after the first one.
        backoff: EXPONENTIAL or LINEAR.
        delay: Unit of the backoff, in seconds.
        timeout: Seconds for one attempt.
        dead_letters: URL of the dead letter sink, None to drop undeliverable events.
    """

    retry: int = 0
    backoff: str = EXPONENTIAL
    delay: float = 0.0
    timeout: float = DEFAULT_TIMEOUT
    dead_letters: str | None = None

    def pause(self, retries: int) -> float:
        """Return the seconds to wait after `retries` retries.

        These are Knative's formulas, in which the first linear pause is 0 (`RetryConfigFromDeliverySpec` in its
        kncloudevents package).
        """
        return self.delay * (2.0 ** min(retries, MOST_DOUBLINGS) if self.backoff == EXPONENTIAL else retries)


KNATIVE_DEFAULT = Policy(retry=10, backoff=EXPONENTIAL, delay=0.2)
"""The policy that Knative's ConfigMap `config-br-defaults` gives a Broker without `spec.delivery`."""


@dataclass(frozen=True)
class Trigger:
    """One subscription: events with these attributes go to `url`, at most `parallelism` at a time."""

    name: str
    attributes: Mapping[str, str]
    url: str
    policy: Policy
    parallelism: int = DEFAULT_PARALLELISM

    def matches(self, attribute: Callable[[str], str | None]) -> bool:
        """Return whether an event passes the filter; `attribute` returns the value of an attribute.

        Works like Knative's attributes filter: all values must be equal. "" matches any value, but an extension must be
        present.
        """
        return all(_passes(name, wanted, attribute(name)) for name, wanted in self.attributes.items())


def _passes(name: str, wanted: str, value: str | None) -> bool:
    if value is None:
        return wanted == "" and name in ALWAYS_THERE
    return wanted in ("", value)


def read(documents: Iterable[Document], functions: str) -> dict[str, Trigger]:
    """Return the Triggers among `documents` by name; the URLs of Services are below the URL `functions`."""
    documents = list(documents)
    brokers = [document for document in documents if document.kind == "Broker"]
    if len(brokers) > 1:
        raise brokers[1].wrong("metadata.name", f"is the second Broker; {brokers[0].name} is the first, one is served")
    broker = brokers[0] if brokers else None
    triggers: dict[str, Trigger] = {}
    for document in documents:
        if document.kind == "Trigger":
            if document.name in triggers:
                raise document.wrong("metadata.name", "is there twice")
            triggers[document.name] = _trigger(document, broker, functions)
    return triggers


def _trigger(document: Document, broker: Document | None, functions: str) -> Trigger:
    document.only("spec", {"broker", "filter", "subscriber", "delivery"})
    document.only("spec.filter", {"attributes"})
    wanted = document.need("spec.broker", str)
    if broker is not None and wanted != broker.name:
        raise document.wrong("spec.broker", f"is {wanted}, but the Broker is {broker.name}")
    attributes = document.get("spec.filter.attributes", dict) or {}
    for name, value in attributes.items():
        if not isinstance(value, str):
            raise document.wrong(f"spec.filter.attributes.{name}", f"must be a string, is {value!r}")
    url = destination(document, "spec.subscriber", functions)
    return Trigger(document.name, attributes, url, _policy(document, broker, functions), _parallelism(document))


def _policy(trigger: Document, broker: Document | None, functions: str) -> Policy:
    """Return the Trigger's own delivery policy, or else the Broker's, always as a whole.

    The dead letter sink is determined independently: the Trigger's, or else the Broker's.
    """
    holders = [holder for holder in (trigger, broker) if holder and holder.get("spec.delivery", dict) is not None]
    sinks = [holder for holder in holders if holder.get("spec.delivery.deadLetterSink", dict) is not None]
    sink = destination(sinks[0], "spec.delivery.deadLetterSink", functions) if sinks else None
    if not holders:
        return KNATIVE_DEFAULT
    holder = holders[0]
    holder.only("spec.delivery", {"retry", "backoffPolicy", "backoffDelay", "timeout", "deadLetterSink"})
    retry = holder.get("spec.delivery.retry", int) or 0
    if retry < 0:
        raise holder.wrong("spec.delivery.retry", f"must not be negative, is {retry}")
    backoff = holder.get("spec.delivery.backoffPolicy", str) or EXPONENTIAL
    if backoff not in (EXPONENTIAL, LINEAR):
        raise holder.wrong("spec.delivery.backoffPolicy", f"is {backoff!r}: neither {EXPONENTIAL} nor {LINEAR}")
    delay = _seconds(holder, "spec.delivery.backoffDelay", 0.0)
    timeout = _seconds(holder, "spec.delivery.timeout", DEFAULT_TIMEOUT)
    if not timeout:
        raise holder.wrong("spec.delivery.timeout", "is no time at all: say how long an answer may take, such as PT10S")
    return Policy(retry, backoff, delay, timeout, sink)


def _seconds(document: Document, field: str, otherwise: float) -> float:
    text = document.get(field, str)
    if text is None:
        return otherwise
    try:
        return seconds(text)
    except ValueError as error:
        raise document.wrong(field, str(error)) from None


def seconds(text: str) -> float:
    """Convert an ISO 8601 duration such as PT0.2S to seconds; units are weeks to seconds.

    Raises `ValueError` for other text, for years and months, which have no fixed length, and for infinite durations.
    """
    match = DURATION.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT0.2S")
    years, months, *numbers = (float((number or "0").replace(",", ".")) for number in match.groups())
    if years or months:
        raise ValueError(f"{text!r} has years or months, which have no fixed length: give an ISO 8601 duration in days")
    found = sum(number * unit for number, unit in zip(numbers, UNITS, strict=True))
    if not math.isfinite(found):
        raise ValueError(f"{text[:20]!r} and so on never ends: give an ISO 8601 duration such as PT0.2S")
    return found


def _parallelism(document: Document) -> int:
    annotations = document.get("metadata.annotations", dict) or {}
    text = str(annotations.get(PARALLELISM, DEFAULT_PARALLELISM))
    if not text.isdecimal() or int(text) < 1:
        raise document.wrong(f"metadata.annotations[{PARALLELISM}]", f"must be a number from 1, is {text!r}")
    return int(text)


def destination(document: Document, field: str, functions: str) -> str:
    """Return the URL of a Knative Destination: `ref` to a Service with an optional path, or an absolute `uri`."""
    document.need(field, dict)
    document.only(field, {"ref", "uri"})
    uri = document.get(f"{field}.uri", str)
    if document.get(f"{field}.ref", dict) is None:
        if uri is None:
            raise document.wrong(field, "has neither ref nor uri")
        if not is_url(uri):
            raise document.wrong(f"{field}.uri", f"is not absolute: {uri!r}")
        return uri
    if document.need(f"{field}.ref.kind", str) != "Service":
        raise document.wrong(f"{field}.ref.kind", "must be Service: nothing else has an address here")
    path = uri if uri is not None else document.need(f"{field}.ref.name", str)
    return below(functions, path)


def broker_sink(document: Document) -> None:
    """Raise `ManifestError` if the sink of a source is not the Broker."""
    kind = document.need("spec.sink.ref.kind", str)
    if kind != "Broker":
        raise document.wrong("spec.sink.ref.kind", f"must be Broker, is {kind}")
