"""Tests of the mapping from API responses to errors."""

from __future__ import annotations

import pytest

from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, Rejected, Unavailable, error_of
from kube.paths import Object

CAUSES = {"details": {"causes": [{"reason": "FieldValueInvalid"}]}}


@pytest.mark.parametrize(
    ("status", "body", "patch", "kind"),
    [
        pytest.param(404, {}, False, NotFound, id="404"),
        pytest.param(410, {}, False, NotFound, id="410"),
        pytest.param(409, {}, False, Conflict, id="409"),
        pytest.param(422, {}, True, Conflict, id="failed test of a JSON patch"),
        pytest.param(422, CAUSES, True, Rejected, id="JSON patch to an invalid value"),
        pytest.param(422, {}, False, Rejected, id="422 of anything else"),
        pytest.param(400, {}, True, Rejected, id="400"),
        pytest.param(401, {}, False, Denied, id="401"),
        pytest.param(403, {}, False, Denied, id="403"),
        pytest.param(429, {}, False, Unavailable, id="429"),
        pytest.param(500, {}, False, Unavailable, id="500"),
        pytest.param(503, {}, False, Unavailable, id="503"),
    ],
)
def test_an_answer_is_one_of_five_errors(status: int, body: Object, patch: bool, kind: type[ApiError]) -> None:
    """X-6, NMO-4: each status maps to the error class that determines how the caller continues."""
    error = error_of(status, {**body, "message": "its own words"}, patch=patch)

    assert type(error) is kind
    assert (error.status, error.message, str(error)) == (status, "its own words", "its own words")


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_what_a_webhook_refuses_is_no_conflict_and_nothing_gone(status: int) -> None:
    """X-6: a webhook's denial is `Rejected` whatever its status, so that the caller does not retry the patch."""
    words = 'admission webhook "w.example.com" denied the request: not on Fridays'

    error = error_of(status, {"message": words}, patch=True)

    assert type(error) is Rejected
    assert (error.status, error.message) == (status, words)


def test_an_answer_without_words_gets_some() -> None:
    """X-6: a response without a Status object, for example from a proxy, gets a default message."""
    assert error_of(502, {}).message == "the API server answered 502"
