"""Problems in the configuration of CPU labels: the object, the field and the remedy. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from kube.kubernetes_events import EventNotice

UNKNOWN_MODEL = "CPUModelUnknown"
MALFORMED_SETTINGS = "ObsoleteCPUsMalformed"
HYPERCONVERGED_IGNORED = "HyperConvergedIgnored"
MALFORMED_INPUT = "CPUCapabilitiesMalformed"
ILLEGAL_NAME = "CPULabelSkipped"
UNKNOWN_NODE = "CPUNodeUnknown"
SKIP_NODE_IGNORED = "SkipNodeIgnored"


class Problem(EventNotice):
    """A problem that an administrator must fix; an Event on the object reports it."""


class InvalidField(Exception):
    """Error for an invalid field: its path, what is wrong with it, and what to write instead."""

    def __init__(self, field: str, error: str, remedy: str) -> None:
        super().__init__(f"{field} {error}: {remedy}")


def parse_string_list(value: object, field: str) -> list[str]:
    """Return a list of strings, empty for None. Raises `InvalidField` for any other value."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidField(field, f"is {_describe_type(value)}", 'use a list of names, such as ["Haswell"]')
    for index, element in enumerate(value):
        parse_string(element, f"{field}[{index}]")
    return list(value)


def parse_string(value: object, field: str) -> str:
    """Return a nonempty string. Raises `InvalidField` for any other value."""
    if not isinstance(value, str):
        raise InvalidField(
            field,
            f"is {_describe_type(value)}",
            f'use a quoted string, such as "{value if _is_integer(value) else "Haswell"}"',
        )
    if not value:
        raise InvalidField(field, "is empty", "use a name, or omit the value")
    return value


def format_names(names: Iterable[str]) -> str:
    """Return the sorted names, separated by commas."""
    return ", ".join(sorted(names))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _describe_type(value: object) -> str:
    descriptions = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "a string"}
    return descriptions.get(type(value), "a number")
