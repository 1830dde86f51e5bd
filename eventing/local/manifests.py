"""Reads manifests into documents whose errors name file, object and field. Used by `triggers` and `sources`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
YAML_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""The YAML loader: the C implementation if available, because it is eight times as fast and startup waits for it."""
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
"""Eventing kinds that deliver no events; a SinkBinding, for example, only sets the broker's address in a workload."""


class ManifestError(Exception):
    """A manifest is invalid, or the local delivery does not support it; the message names file, object and field."""


@dataclass(frozen=True)
class Document:
    """One YAML document and its file."""

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
        """Return `metadata.namespace`, or `default`."""
        return self.get("metadata.namespace", str) or "default"

    def get(self, field: str, expected_type: type[T]) -> T | None:
        """Return the value at a dotted path, or None if it is absent. Raises `ManifestError` for a wrong type."""
        value: Any = self.body
        for key in field.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is None:
            return None
        if not isinstance(value, expected_type) or (isinstance(value, bool) and expected_type is not bool):
            raise self.build_error(field, f"must be of type {expected_type.__name__}, is {value!r}")
        return value

    def require(self, field: str, expected_type: type[T]) -> T:
        """Return the value at a dotted path. Raises `ManifestError` if it is absent or of a wrong type."""
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
        """Build the error for a field that is missing or invalid."""
        metadata = self.body.get("metadata")
        # In an invalid manifest, the metadata and the name may have any type.
        name = (metadata.get("name") if isinstance(metadata, dict) else None) or "without name"
        return ManifestError(f"{self.file}: {self.kind} {name}: {field} {problem}")


def read_documents(paths: Iterable[Path]) -> list[Document]:
    """Return the documents of the kinds in `SUPPORTED_KINDS`, from files and from all YAML files below directories.

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
