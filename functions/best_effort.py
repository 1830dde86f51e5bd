"""Applies an operation to several items, continues after an API error, and raises one of the errors at the end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kube.client.api_errors import ApiError, Conflict, Unavailable

T = TypeVar("T")
R = TypeVar("R")


def apply_to_each(action: Callable[[T], R], items: Iterable[T], errors: list[ApiError]) -> list[R]:
    """Call `action` on each item and return the results of the successful calls; append API errors to `errors`."""
    results: list[R] = []
    for item in items:
        try:
            results.append(action(item))
        except ApiError as error:
            errors.append(error)
    return results


def raise_first_error(errors: Sequence[ApiError]) -> None:
    """Raise the first `Conflict` or `Unavailable` in `errors`, or else the first error; do nothing for an empty list.

    A retry may resolve a `Conflict` or `Unavailable`, so the broker must redeliver the event.
    """
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, (Conflict, Unavailable)))
