"""Reads manifest files into documents whose errors name file, object and field. Used by `triggers` and `sources`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import yaml

T = TypeVar("T")
LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""Written in C where there is one: a start waits for it, and it is eight times as fast."""
EVENTING = "eventing.knative.dev"
SOURCES = "sources.knative.dev"
READ = {
    "Broker": f"{EVENTING}/v1",
    "Trigger": f"{EVENTING}/v1",
    "ApiServerSource": f"{SOURCES}/v1",
    "PingSource": f"{SOURCES}/v1",
    "ContainerSource": f"{SOURCES}/v1",
}
HARMLESS = {"EventType", "SinkBinding", "RabbitmqBrokerConfig"}
"""Kinds of those two groups that move no event; a SinkBinding only sets the broker's address in a workload."""


class ManifestError(Exception):
    """A manifest asks for what the local delivery cannot do; the message names file, object and field."""


@dataclass(frozen=True)
class Document:
    """One YAML document and the file it comes from."""

    file: Path
    body: dict[str, Any]

    @property
    def kind(self) -> str:
        """The document's kind, "" when it has none."""
        return str(self.body.get("kind") or "")

    @property
    def name(self) -> str:
        """`metadata.name`."""
        return self.need("metadata.name", str)

    @property
    def namespace(self) -> str:
        """`metadata.namespace`, or what kubectl takes without one."""
        return self.get("metadata.namespace", str) or "default"

    def get(self, field: str, wanted: type[T]) -> T | None:
        """The value at a dotted path, None when it is absent."""
        value: Any = self.body
        for step in field.split("."):
            value = value.get(step) if isinstance(value, dict) else None
        if value is None:
            return None
        if not isinstance(value, wanted) or (isinstance(value, bool) and wanted is not bool):
            raise self.wrong(field, f"must be of type {wanted.__name__}, is {value!r}")
        return value

    def need(self, field: str, wanted: type[T]) -> T:
        """The value at a dotted path, which must be there."""
        value = self.get(field, wanted)
        if value is None:
            raise self.wrong(field, "is missing")
        return value

    def only(self, field: str, known: Set[str]) -> None:
        """Refuse what we would silently ignore: a manifest must mean the same here and on Knative."""
        for name in self.get(field, dict) or {}:
            if name not in known:
                raise self.wrong(f"{field}.{name}", "is not understood by the local delivery")

    def wrong(self, field: str, problem: str) -> ManifestError:
        """The error to raise about a field."""
        metadata = self.body.get("metadata")
        name = (metadata.get("name") if isinstance(metadata, dict) else None) or "without name"  # of whatever type
        return ManifestError(f"{self.file}: {self.kind} {name}: {field} {problem}")


def read(paths: Iterable[Path]) -> list[Document]:
    """The documents of the kinds in `READ`, from files and from all YAML files below folders; the rest is left."""
    found = [document for path in paths for file in _files(path) for document in _documents(file)]
    return [document for document in found if _is_read(document)]


def _files(path: Path) -> list[Path]:
    if path.is_dir():
        return sorted(file for file in path.rglob("*") if file.suffix in (".yaml", ".yml"))
    if not path.exists():
        raise ManifestError(f"{path}: no such file or folder")
    return [path]


def _documents(file: Path) -> Iterator[Document]:
    try:
        for body in yaml.load_all(file.read_bytes(), Loader=LOADER):
            if isinstance(body, dict):
                yield Document(file, body)
    except yaml.YAMLError as error:
        raise ManifestError(f"{file}: not YAML: {' '.join(str(error).split())}") from None
    except OSError as error:
        raise ManifestError(f"{file}: {error.strerror}") from None


def _is_read(document: Document) -> bool:
    version = str(document.body.get("apiVersion") or "")
    if version.split("/")[0] not in (EVENTING, SOURCES) or document.kind in HARMLESS:
        return False
    if READ.get(document.kind) != version:
        raise document.wrong("kind", f"of {version} is not understood by the local delivery")
    return True
