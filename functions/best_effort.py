"""Applies one operation to several items, continues after API errors, and raises one of them afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kube.client.api_errors import ApiError, Conflict, Unavailable

T = TypeVar("T")
R = TypeVar("R")


def tried(do: Callable[[T], R], things: Iterable[T], errors: list[ApiError]) -> list[R]:
    """Call `do` on each item and return the results of the successful calls; append API errors to `errors`."""
    done: list[R] = []
    for thing in things:
        try:
            done.append(do(thing))
        except ApiError as error:
            errors.append(error)
    return done


def raise_first(errors: Sequence[ApiError]) -> None:
    """Raise the first error, if any; a `Conflict` or `Unavailable` takes precedence.

    These two may succeed on a retry, so the broker must redeliver the event.
    """
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, (Conflict, Unavailable)))
