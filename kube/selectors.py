"""Evaluates label selectors as the API server does, formats them as queries and parses queries. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_VALUE = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_KEY = rf"(?:{_LABEL}(?:\.{_LABEL})*/)?{_VALUE}"
_LIST = rf"\(\s*(?:{_VALUE}\s*)?(?:,\s*(?:{_VALUE}\s*)?)*\)"
_TERM = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_KEY})|(?P<key>{_KEY})"
    rf"(?:\s*(?P<sign>==?|!=)\s*(?P<value>(?:{_VALUE})?)|\s+(?P<word>in|notin)\s*(?P<values>{_LIST}))?)\s*(?P<end>,|\Z)",
    re.ASCII,
)
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn"}


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether `labels` satisfy a `metav1.LabelSelector`.

    None matches nothing, an empty selector matches everything.
    """
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in wanted.items()) and all(
        _satisfies(expression, labels) for expression in selector.get("matchExpressions") or []
    )


def _satisfies(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
    key, values = expression["key"], expression.get("values") or []
    match expression["operator"]:
        case "In":
            return labels.get(key) in values
        case "NotIn":
            return labels.get(key) not in values
        case "Exists":
            return key in labels
        case "DoesNotExist":
            return key not in labels
    raise ValueError(f"unknown selector operator {expression['operator']!r}")


def text(selector: Mapping[str, Any]) -> str:
    """Return the selector in the form of the `labelSelector` query parameter, "" for an empty selector.

    Raises `ValueError` for an unknown field or operator, and `KeyError`, `TypeError` or `AttributeError` for other
    malformed selectors.
    """
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    wanted = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or []
    return ",".join([*(f"{key}={value}" for key, value in wanted), *(_text(expression) for expression in expressions)])


def _text(expression: Mapping[str, Any]) -> str:
    key, values = expression["key"], ",".join(expression.get("values") or [])
    match expression["operator"]:
        case "In":
            return f"{key} in ({values})"
        case "NotIn":
            return f"{key} notin ({values})"
        case "Exists":
            return str(key)
        case "DoesNotExist":
            return f"!{key}"
    raise ValueError(f"unknown operator {expression['operator']!r}")


@lru_cache(maxsize=256)
def parsed(query: str) -> Mapping[str, Any]:
    """Parse a label query in kubectl's syntax, such as `app=web,tier in (a, b),!old`; "" gives an empty selector.

    Raises `ValueError` with the text that cannot be parsed. The operators `>` and `<` are not supported.
    """
    return {"matchExpressions": list(_expressions(query))} if query.strip() else {}


def _expressions(query: str) -> Iterator[Mapping[str, Any]]:
    place, goes_on = 0, True
    while goes_on:
        term = _TERM.match(query, place)
        if term is None:
            raise ValueError(f"{query[place : place + 40]!r} is no condition on a label, such as app=web")
        yield _expression(term.groupdict(""))
        place, goes_on = term.end(), bool(term["end"])


def _expression(term: Mapping[str, str]) -> Mapping[str, Any]:
    if term["absent"]:
        return {"key": term["absent"], "operator": "DoesNotExist"}
    operator = _OPERATORS.get(term["sign"] or term["word"])
    if operator is None:
        return {"key": term["key"], "operator": "Exists"}
    listed = term["values"].strip("()").split(",") if term["word"] else [term["value"]]
    return {"key": term["key"], "operator": operator, "values": [value.strip() for value in listed]}
