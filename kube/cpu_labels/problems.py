"""Problems in the configuration of CPU labels, each with the object, the field and the remedy. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from kube.kubernetes_events import KubernetesEvent

UNKNOWN_MODEL = "CPUModelUnknown"
MALFORMED_SETTINGS = "ObsoleteCPUsMalformed"
HYPERCONVERGED_IGNORED = "HyperConvergedIgnored"
MALFORMED_INPUT = "CPUCapabilitiesMalformed"
ILLEGAL_NAME = "CPULabelSkipped"
UNKNOWN_NODE = "CPUNodeUnknown"
SKIP_NODE_IGNORED = "SkipNodeIgnored"


class Problem(KubernetesEvent):
    """A problem that an administrator must fix; a Kubernetes Event on the object reports it."""


class InvalidField(Exception):
    """Error for an invalid field; its message contains the field's path, the problem and the remedy.

    Attributes:
        reason: Reason of the Kubernetes Event that reports an invalid field of a HyperConverged object.
    """

    def __init__(self, field: str, error: str, remedy: str, reason: str = MALFORMED_SETTINGS) -> None:
        super().__init__(f"{field} {error}: {remedy}")
        self.reason = reason


def parse_string_list(value: object, field: str) -> list[str]:
    """Return `value` if it is a list of strings, [] if it is None. Raises `InvalidField` for any other value."""
    if value is None:
        return []
    if not isinstance(value, list):
        raise InvalidField(field, f"is {_describe_type(value)}", 'use a list of names, such as ["Haswell"]')
    for index, element in enumerate(value):
        parse_string(element, f"{field}[{index}]")
    return list(value)


def parse_string(value: object, field: str) -> str:
    """Return `value` if it is a nonempty string. Raises `InvalidField` for any other value."""
    if not isinstance(value, str):
        example = value if isinstance(value, int) and not isinstance(value, bool) else "Haswell"
        raise InvalidField(field, f"is {_describe_type(value)}", f'use a quoted string, such as "{example}"')
    if not value:
        raise InvalidField(field, "is empty", "use a name, or omit the value")
    return value


def format_names(names: Iterable[str]) -> str:
    """Join the sorted names with commas."""
    return ", ".join(sorted(names))


def _describe_type(value: object) -> str:
    descriptions = {dict: "an object", list: "a list", bool: "a boolean", type(None): "null", str: "a string"}
    return descriptions.get(type(value), "a number")
