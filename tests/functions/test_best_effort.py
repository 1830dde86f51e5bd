"""Tests of `tried` and `raise_first`: every item is tried, and an error is raised afterwards."""

from __future__ import annotations

import pytest

from functions.best_effort import raise_first, tried
from kube.client.api_errors import ApiError, Conflict, Denied, Rejected, Unavailable


def test_each_is_tried_whatever_becomes_of_the_others() -> None:
    def do(thing: str) -> str:
        if thing == "refused":
            raise Denied(403, "a webhook")
        return thing.upper()

    errors: list[ApiError] = []
    assert tried(do, ["one", "refused", "other"], errors) == ["ONE", "OTHER"]
    assert [error.message for error in errors] == ["a webhook"]


@pytest.mark.parametrize("passing", [Conflict(409, "again"), Unavailable(503, "later")])
def test_the_first_that_may_pass_is_raised_before_the_first_refusal(passing: ApiError) -> None:
    refusals = [Denied(403, "first"), Rejected(422, "second")]
    with pytest.raises(type(passing)) as raised:
        raise_first([*refusals, passing, Unavailable(503, "another")])
    assert raised.value is passing
    with pytest.raises(Denied, match="first"):
        raise_first(refusals)
    raise_first([])
