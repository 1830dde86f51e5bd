"""Tries the same with each of several things, whatever becomes of the others, and raises afterwards."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from kube.door.api_errors import ApiError, Conflict, Unavailable

T = TypeVar("T")
R = TypeVar("R")


def tried(do: Callable[[T], R], things: Iterable[T], errors: list[ApiError]) -> list[R]:
    """What came of each with which it was done; why it was not with others is added to `errors`."""
    done: list[R] = []
    for thing in things:
        try:
            done.append(do(thing))
        except ApiError as error:
            errors.append(error)
    return done


def raise_first(errors: Sequence[ApiError]) -> None:
    """Raise the first of these, if any: one that may pass before others, since the event is delivered again then."""
    if errors:
        raise min(errors, key=lambda error: not isinstance(error, (Conflict, Unavailable)))
