"""Configuration problems of the CPU labels: the object, the field and the remedy. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from kube.paths import Object

UNKNOWN_MODEL = "CPUModelUnknown"
MALFORMED_SETTINGS = "ObsoleteCPUsMalformed"
SEVERAL = "HyperConvergedIgnored"
MALFORMED_INPUT = "CPUCapabilitiesMalformed"
ILLEGAL_NAME = "CPULabelSkipped"
UNKNOWN_NODE = "CPUNodeUnknown"
SKIP_UNREAD = "SkipNodeIgnored"


class Problem(NamedTuple):
    """A message about an object for the administrator, and the reason of the Event that reports it."""

    about: Object
    reason: str
    message: str

    @classmethod
    def at(cls, item: Mapping[str, Any], api_version: str, kind: str, reason: str, message: str) -> Problem:
        """Build a problem about `item`.

        The caller passes the API version and kind, because list items and metadata-only objects lack them.
        """
        metadata = item["metadata"]
        named = {key: metadata[key] for key in ("name", "namespace", "uid") if metadata.get(key)}
        return cls({"apiVersion": api_version, "kind": kind, **named}, reason, message)


class Wrong(Exception):
    """Error for an invalid field: its path, what is wrong with it, and what to write instead."""

    def __init__(self, field: str, what: str, remedy: str) -> None:
        super().__init__(f"{field} {what}: {remedy}")


def texts(value: object, field: str) -> list[str]:
    """Return a list of strings, empty for None. Raises `Wrong` for any other value."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise Wrong(field, f"is {_kind(value)}", 'write a list of names, such as ["Haswell"]')
    for number, each in enumerate(value):
        text(each, f"{field}[{number}]")
    return list(value)


def text(value: object, field: str) -> str:
    """Return a nonempty string. Raises `Wrong` for any other value."""
    if not isinstance(value, str):
        raise Wrong(field, f"is {_kind(value)}", f'write text, in quotes: "{value if _is_plain(value) else "Haswell"}"')
    if not value:
        raise Wrong(field, "is empty", "write a name, or leave it out")
    return value


def listed(names: Iterable[str]) -> str:
    """Return the sorted names, separated by commas."""
    return ", ".join(sorted(names))


def _is_plain(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _kind(value: object) -> str:
    kinds = {dict: "an object", list: "a list", bool: "true or false", type(None): "null", str: "text"}
    return kinds.get(type(value), "a number")
