"""Matches labels against a `metav1.LabelSelector` as the API server does, and writes one as a query takes it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def matches(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether `labels` satisfy a `metav1.LabelSelector`: None matches nothing, an empty selector everything."""
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
    """The selector as the query `labelSelector` takes it; "" for an empty one.

    Raises `ValueError` for what a selector does not have, and what comes of reading one that is malformed.
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
