"""Reads manifests as documents, and parses Triggers with their delivery policies.

The errors of a document contain the file, the object and the field. The modules of the sources parse the sources'
documents.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

from eventing.endpoints import is_url, join_url

T = TypeVar("T")
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""YAML loader: the C implementation if available, because it is eight times as fast and every start waits for it."""
EVENTING_GROUP = "eventing.knative.dev"
SOURCES_GROUP = "sources.knative.dev"
SUPPORTED_KINDS = {
    "Broker": f"{EVENTING_GROUP}/v1",
    "Trigger": f"{EVENTING_GROUP}/v1",
    "ApiServerSource": f"{SOURCES_GROUP}/v1",
    "PingSource": f"{SOURCES_GROUP}/v1",
    "ContainerSource": f"{SOURCES_GROUP}/v1",
}
IGNORED_KINDS = {"EventType", "SinkBinding", "RabbitmqBrokerConfig"}
"""Kinds of the eventing API groups that the local delivery does not need; a SinkBinding only configures a workload."""
PARALLELISM_ANNOTATION = "rabbitmq.eventing.knative.dev/parallelism"
"""Annotation on a Trigger of a RabbitMQ Broker; Knative's own broker does not support it."""
DEFAULT_PARALLELISM = 16
DEFAULT_TIMEOUT_SECONDS = 30.0
"""Default of `spec.delivery.timeout`; Knative has none, but a function must not block a node's events forever."""
NUMBER_PATTERN = r"([0-9]+(?:[.,][0-9]+)?)"
DURATION_PATTERN = re.compile(
    rf"P(?:{NUMBER_PATTERN}Y)?(?:{NUMBER_PATTERN}M)?(?:{NUMBER_PATTERN}W)?(?:{NUMBER_PATTERN}D)?"
    rf"(?:T(?:{NUMBER_PATTERN}H)?(?:{NUMBER_PATTERN}M)?(?:{NUMBER_PATTERN}S)?)?"
)
UNIT_SECONDS = (604800, 86400, 3600, 60, 1)
"""Seconds in a week, day, hour, minute and second."""
MAX_DOUBLINGS = 1000
"""Maximum exponent of the backoff, because a float cannot represent much larger powers of two."""
EXPONENTIAL, LINEAR = "exponential", "linear"
CORE_ATTRIBUTES = {"specversion", "id", "type", "source", "subject", "time", "datacontenttype", "dataschema"}


class ManifestError(Exception):
    """Error for an invalid or unsupported manifest; its message contains the file, the object and the field."""


@dataclass(frozen=True)
class Document:
    """A YAML document, and the file that contains it."""

    file: Path
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        """Return the document's kind, "" if it has none."""
        return str(self.body.get("kind") or "")

    @property
    def name(self) -> str:
        """Return `metadata.name`."""
        return self.require("metadata.name", str)

    @property
    def namespace(self) -> str:
        """Return `metadata.namespace`, by default `default`."""
        return self.get("metadata.namespace", str) or "default"

    def get(self, field: str, expected_type: type[T]) -> T | None:
        """Return the value at a dotted path, None if it is missing. Raises `ManifestError` if its type is wrong."""
        value: Any = self.body
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return None
        if not isinstance(value, expected_type) or (isinstance(value, bool) and expected_type is not bool):
            raise self.build_error(field, f"must be of type {expected_type.__name__}, is {value!r}")
        return value

    def require(self, field: str, expected_type: type[T]) -> T:
        """Return the value at a dotted path. Raises `ManifestError` if it is missing or its type is wrong."""
        value = self.get(field, expected_type)
        if value is None:
            raise self.build_error(field, "is missing")
        return value

    def refuse_unknown_fields(self, field: str, known_fields: Set[str]) -> None:
        """Raise `ManifestError` for a field that is not in `known_fields`.

        If such a field were ignored, the manifest would have a different meaning here than on Knative.
        """
        for name in self.get(field, dict) or {}:
            if name not in known_fields:
                raise self.build_error(f"{field}.{name}", "is not supported by the local delivery")

    def build_error(self, field: str, problem: str) -> ManifestError:
        """Build the error for a missing or invalid field."""
        metadata = self.body.get("metadata")
        # In an invalid manifest, `metadata` and `name` may have any type.
        name = (metadata.get("name") if isinstance(metadata, dict) else None) or "without name"
        return ManifestError(f"{self.file}: {self.kind} {name}: {field} {problem}")


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """Read the documents of the kinds in `SUPPORTED_KINDS` from files, and from all YAML files in directories.

    Raises `ManifestError` for other kinds of the eventing API groups, except those in `IGNORED_KINDS`. Documents of
    other API groups are skipped.
    """
    documents = [document for path in paths for file in _list_files(path) for document in _parse_documents(file)]
    return [document for document in documents if _is_supported(document)]


def _list_files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml"))
    if not path.exists():
        raise ManifestError(f"{path}: no such file or directory")
    return [path]


def _parse_documents(file: Path) -> Iterator[Document]:
    try:
        for body in yaml.load_all(file.read_bytes(), Loader=YAML_LOADER):
            if isinstance(body, dict):
                yield Document(file, body)
    except yaml.YAMLError as error:
        raise ManifestError(f"{file}: invalid YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise ManifestError(f"{file}: {error.strerror}") from None


def _is_supported(document: Document) -> bool:
    version = str(document.body.get("apiVersion") or "")
    if version.split("/")[0] not in (EVENTING_GROUP, SOURCES_GROUP) or document.kind in IGNORED_KINDS:
        return False
    if SUPPORTED_KINDS.get(document.kind) != version:
        raise document.build_error("kind", f"in {version} is not supported by the local delivery")
    return True


@dataclass(frozen=True)
class DeliveryPolicy:
    """A Trigger's delivery policy: retries, backoff, timeout and dead letter sink.

    Attributes:
        retry: Maximum number of retries after the first attempt.
        backoff: EXPONENTIAL or LINEAR.
        backoff_delay_seconds: Base delay of the backoff, in seconds.
        timeout_seconds: Timeout of one attempt, in seconds.
        dead_letter_url: URL of the dead letter sink; None means that undeliverable events are dropped.
    """

    retry: int = 0
    backoff: str = EXPONENTIAL
    backoff_delay_seconds: float = 0.0
    timeout_seconds: float = DEFAULT_TIMEOUT_SECONDS
    dead_letter_url: str | None = None

    def get_backoff_seconds(self, retries: int) -> float:
        """Return the seconds to wait before the next retry, given the number of earlier retries.

        The formulas are Knative's (`RetryConfigFromDeliverySpec` in its package kncloudevents). With linear backoff,
        the first delay is 0.
        """
        return self.backoff_delay_seconds * (
            2.0 ** min(retries, MAX_DOUBLINGS) if self.backoff == EXPONENTIAL else retries
        )


KNATIVE_DEFAULT = DeliveryPolicy(retry=10, backoff=EXPONENTIAL, backoff_delay_seconds=0.2)
"""Policy of a Broker without `spec.delivery`, as in Knative's ConfigMap `config-br-defaults`."""


@dataclass(frozen=True)
class Trigger:
    """A Trigger: events with these attributes are posted to `subscriber_url`, at most `parallelism` at a time."""

    name: str
    attributes: Mapping[str, str]
    subscriber_url: str
    policy: DeliveryPolicy
    parallelism: int = DEFAULT_PARALLELISM

    def matches(self, get_attribute: Callable[[str], str | None]) -> bool:
        """Return whether an event passes the Trigger's filter; `get_attribute` returns an attribute's value.

        As with Knative's attributes filter, all values must be equal. "" matches any value, but an extension must be
        present.
        """
        return all(_matches_value(name, expected, get_attribute(name)) for name, expected in self.attributes.items())


def _matches_value(name: str, expected: str, value: str | None) -> bool:
    if value is None:
        return expected == "" and name in CORE_ATTRIBUTES
    return expected in ("", value)


def parse_triggers(documents: Iterable[Document], functions_url: str) -> dict[str, Trigger]:
    """Parse the Triggers in `documents`, by name; URLs of Services are relative to `functions_url`."""
    documents = list(documents)
    brokers = [document for document in documents if document.kind == "Broker"]
    if len(brokers) > 1:
        raise brokers[1].build_error(
            "metadata.name", f"is the second Broker after {brokers[0].name}: the local delivery supports one"
        )
    broker = brokers[0] if brokers else None
    triggers: dict[str, Trigger] = {}
    for document in documents:
        if document.kind == "Trigger":
            if document.name in triggers:
                raise document.build_error("metadata.name", "is not unique: another Trigger has the same name")
            triggers[document.name] = _parse_trigger(document, broker, functions_url)
    return triggers


def _parse_trigger(document: Document, broker: Document | None, functions_url: str) -> Trigger:
    document.refuse_unknown_fields("spec", {"broker", "filter", "subscriber", "delivery"})
    document.refuse_unknown_fields("spec.filter", {"attributes"})
    broker_name = document.require("spec.broker", str)
    if broker is not None and broker_name != broker.name:
        raise document.build_error("spec.broker", f"must be {broker.name}, the name of the Broker, is {broker_name}")
    attributes = document.get("spec.filter.attributes", dict) or {}
    for name, value in attributes.items():
        if not isinstance(value, str):
            raise document.build_error(f"spec.filter.attributes.{name}", f"must be a string, is {value!r}")
    url = resolve_destination(document, "spec.subscriber", functions_url)
    return Trigger(
        document.name, attributes, url, _parse_policy(document, broker, functions_url), _parse_parallelism(document)
    )


def _parse_policy(trigger: Document, broker: Document | None, functions_url: str) -> DeliveryPolicy:
    """Return the Trigger's delivery policy, or the Broker's if the Trigger has none; the two are never merged.

    The dead letter sink is determined independently: it is the Trigger's, or the Broker's if the Trigger has none.
    """
    candidates = [document for document in (trigger, broker) if document is not None]
    documents = [document for document in candidates if document.get("spec.delivery", dict) is not None]
    sinks = [document for document in documents if document.get("spec.delivery.deadLetterSink", dict) is not None]
    sink = resolve_destination(sinks[0], "spec.delivery.deadLetterSink", functions_url) if sinks else None
    if not documents:
        return KNATIVE_DEFAULT
    document = documents[0]
    document.refuse_unknown_fields(
        "spec.delivery", {"retry", "backoffPolicy", "backoffDelay", "timeout", "deadLetterSink"}
    )
    retry = document.get("spec.delivery.retry", int) or 0
    if retry < 0:
        raise document.build_error("spec.delivery.retry", f"must not be negative, is {retry}")
    backoff = document.get("spec.delivery.backoffPolicy", str) or EXPONENTIAL
    if backoff not in (EXPONENTIAL, LINEAR):
        raise document.build_error("spec.delivery.backoffPolicy", f"must be {EXPONENTIAL} or {LINEAR}, is {backoff!r}")
    delay = _parse_seconds_field(document, "spec.delivery.backoffDelay", 0.0)
    timeout = _parse_seconds_field(document, "spec.delivery.timeout", DEFAULT_TIMEOUT_SECONDS)
    if not timeout:
        raise document.build_error(
            "spec.delivery.timeout", "must be greater than 0: set the maximum time for a response, such as PT10S"
        )
    return DeliveryPolicy(retry, backoff, delay, timeout, sink)


def _parse_seconds_field(document: Document, field: str, default: float) -> float:
    text = document.get(field, str)
    if text is None:
        return default
    try:
        return parse_duration(text)
    except ValueError as error:
        raise document.build_error(field, str(error)) from None


def parse_duration(text: str) -> float:
    """Convert an ISO 8601 duration such as PT0.2S to seconds; it may contain weeks, days, hours, minutes and seconds.

    Raises `ValueError` for any other text. Years and months are not supported, because they have no fixed length, and
    infinite durations are not supported either.
    """
    match = DURATION_PATTERN.fullmatch(text)
    if match is None or not any(match.groups()):
        raise ValueError(f"{text!r} is not an ISO 8601 duration such as PT0.2S")
    years, months, *numbers = (float((number or "0").replace(",", ".")) for number in match.groups())
    if years or months:
        raise ValueError(f"{text!r} has years or months, which have no fixed length: use an ISO 8601 duration in days")
    seconds = sum(number * unit for number, unit in zip(numbers, UNIT_SECONDS, strict=True))
    if not math.isfinite(seconds):
        raise ValueError(f"{text[:20]!r}... is too long: use an ISO 8601 duration such as PT0.2S")
    return seconds


def _parse_parallelism(document: Document) -> int:
    annotations = document.get("metadata.annotations", dict) or {}
    text = str(annotations.get(PARALLELISM_ANNOTATION, DEFAULT_PARALLELISM))
    if not text.isdecimal() or int(text) < 1:
        raise document.build_error(
            f"metadata.annotations[{PARALLELISM_ANNOTATION}]", f"must be an integer of at least 1, is {text!r}"
        )
    return int(text)


def resolve_destination(document: Document, field: str, functions_url: str) -> str:
    """Return the URL of a Knative Destination, which has a `ref` to a Service with an optional path, or a `uri`."""
    document.require(field, dict)
    document.refuse_unknown_fields(field, {"ref", "uri"})
    uri = document.get(f"{field}.uri", str)
    if document.get(f"{field}.ref", dict) is None:
        if uri is None:
            raise document.build_error(field, "must have ref or uri")
        if not is_url(uri):
            raise document.build_error(f"{field}.uri", f"must be an absolute URL, is {uri!r}")
        return uri
    if document.require(f"{field}.ref.kind", str) != "Service":
        raise document.build_error(f"{field}.ref.kind", "must be Service: the local delivery resolves no other kind")
    path = uri if uri is not None else document.require(f"{field}.ref.name", str)
    return join_url(functions_url, path)


def require_broker_sink(document: Document) -> None:
    """Raise `ManifestError` if the sink of the source is not the Broker."""
    kind = document.require("spec.sink.ref.kind", str)
    if kind != "Broker":
        raise document.build_error("spec.sink.ref.kind", f"must be Broker, is {kind}")
