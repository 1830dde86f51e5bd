"""Tests for `apply_to_each`, which continues after an error, and `raise_first_error`, which raises one of them."""

from __future__ import annotations

import pytest

from functions.best_effort import apply_to_each, raise_first_error
from kube.client.api_errors import ApiError, Conflict, Denied, Rejected, Unavailable


def test_try_each_continues_after_errors() -> None:
    def uppercase_or_raise(name: str) -> str:
        if name == "refused":
            raise Denied(403, "a webhook")
        return name.upper()

    errors: list[ApiError] = []
    assert apply_to_each(uppercase_or_raise, ["one", "refused", "other"], errors) == ["ONE", "OTHER"]
    assert [error.message for error in errors] == ["a webhook"]


@pytest.mark.parametrize("retryable_error", [Conflict(409, "again"), Unavailable(503, "later")])
def test_raise_first_error_prefers_retryable_error(retryable_error: ApiError) -> None:
    refusals = [Denied(403, "first"), Rejected(422, "second")]
    with pytest.raises(type(retryable_error)) as raised:
        raise_first_error([*refusals, retryable_error, Unavailable(503, "another")])
    assert raised.value is retryable_error
    with pytest.raises(Denied, match="first"):
        raise_first_error(refusals)
    raise_first_error([])
