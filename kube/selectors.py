"""Evaluates label selectors as the API server does, formats them as query strings, and parses such strings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

_LABEL_VALUE = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_LABEL_KEY = rf"(?:{_DNS_LABEL}(?:\.{_DNS_LABEL})*/)?{_LABEL_VALUE}"
_VALUE_LIST = rf"\(\s*(?:{_LABEL_VALUE}\s*)?(?:,\s*(?:{_LABEL_VALUE}\s*)?)*\)"
_TERM_PATTERN = re.compile(
    rf"\s*(?:!\s*(?P<absent>{_LABEL_KEY})|(?P<key>{_LABEL_KEY})"
    rf"(?:\s*(?P<sign>==?|!=)\s*(?P<value>(?:{_LABEL_VALUE})?)|\s+(?P<word>in|notin)\s*(?P<values>{_VALUE_LIST}))?)"
    r"\s*(?P<end>,|\Z)",
    re.ASCII,
)
_OPERATORS = {"=": "In", "==": "In", "!=": "NotIn", "in": "In", "notin": "NotIn"}


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Return whether `labels` satisfy a `metav1.LabelSelector`.

    None matches nothing; an empty selector matches everything.
    """
    if selector is None:
        return False
    match_labels = selector.get("matchLabels") or {}
    return all(labels.get(key) == value for key, value in match_labels.items()) and all(
        _matches_expression(expression, labels) for expression in selector.get("matchExpressions") or []
    )


def _matches_expression(expression: Mapping[str, Any], labels: Mapping[str, str]) -> bool:
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


def format_selector(selector: Mapping[str, Any]) -> str:
    """Format the selector as a `labelSelector` query parameter; "" for an empty selector.

    Raises `ValueError` for an unknown field or operator, and `KeyError`, `TypeError` or `AttributeError` for other
    malformed selectors.
    """
    if unknown := selector.keys() - {"matchLabels", "matchExpressions"}:
        raise ValueError(f"unknown field {', '.join(sorted(unknown))}")
    match_labels = (selector.get("matchLabels") or {}).items()
    expressions = selector.get("matchExpressions") or []
    return ",".join(
        [
            *(f"{key}={value}" for key, value in match_labels),
            *(_format_expression(expression) for expression in expressions),
        ]
    )


def _format_expression(expression: Mapping[str, Any]) -> str:
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
def parse_selector(query: str) -> Mapping[str, Any]:
    """Parse a label selector in kubectl's syntax, such as `app=web,tier in (a, b),!old`; "" gives an empty selector.

    Raises `ValueError` that quotes the text which cannot be parsed. The operators `>` and `<` are not supported.
    """
    return {"matchExpressions": list(_parse_expressions(query))} if query.strip() else {}


def _parse_expressions(query: str) -> Iterator[Mapping[str, Any]]:
    position, has_more = 0, True
    while has_more:
        term = _TERM_PATTERN.match(query, position)
        if term is None:
            raise ValueError(f"{query[position : position + 40]!r} is not a condition on a label, such as app=web")
        yield _parse_expression(term.groupdict(""))
        position, has_more = term.end(), bool(term["end"])


def _parse_expression(term: Mapping[str, str]) -> Mapping[str, Any]:
    if term["absent"]:
        return {"key": term["absent"], "operator": "DoesNotExist"}
    operator = _OPERATORS.get(term["sign"] or term["word"])
    if operator is None:
        return {"key": term["key"], "operator": "Exists"}
    listed = term["values"].strip("()").split(",") if term["word"] else [term["value"]]
    return {"key": term["key"], "operator": operator, "values": [value.strip() for value in listed]}
