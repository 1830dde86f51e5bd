"""Tests for the mapping from API server responses to error classes."""

from __future__ import annotations

import pytest

from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, Rejected, Unavailable, build_api_error
from kube.paths import Object

BODY_WITH_CAUSES = {"details": {"causes": [{"reason": "FieldValueInvalid"}]}}


@pytest.mark.parametrize(
    ("status", "body", "is_json_patch", "error_class"),
    [
        pytest.param(404, {}, False, NotFound, id="404"),
        pytest.param(410, {}, False, NotFound, id="410"),
        pytest.param(409, {}, False, Conflict, id="409"),
        pytest.param(422, {}, True, Conflict, id="failed test of a JSON patch"),
        pytest.param(422, BODY_WITH_CAUSES, True, Rejected, id="JSON patch to an invalid value"),
        pytest.param(422, {}, False, Rejected, id="422 for a request without a JSON patch"),
        pytest.param(400, {}, True, Rejected, id="400"),
        pytest.param(401, {}, False, Denied, id="401"),
        pytest.param(403, {}, False, Denied, id="403"),
        pytest.param(429, {}, False, Unavailable, id="429"),
        pytest.param(500, {}, False, Unavailable, id="500"),
        pytest.param(503, {}, False, Unavailable, id="503"),
    ],
)
def test_http_status_maps_to_one_of_five_error_classes(
    status: int, body: Object, is_json_patch: bool, error_class: type[ApiError]
) -> None:
    """X-6, NMO-4: each HTTP status of the API server maps to one error class."""
    error = build_api_error(status, {**body, "message": "the server's message"}, is_json_patch=is_json_patch)

    assert type(error) is error_class
    assert (error.status, error.message, str(error)) == (status, "the server's message", "the server's message")


@pytest.mark.parametrize("status", [404, 409, 410, 422])
def test_webhook_denial_raises_rejected_whatever_http_status(status: int) -> None:
    """X-6: a webhook's denial raises `Rejected` for any HTTP status, so that the caller does not retry the patch."""
    message = 'admission webhook "w.example.com" denied the request: not on Fridays'

    error = build_api_error(status, {"message": message}, is_json_patch=True)

    assert type(error) is Rejected
    assert (error.status, error.message) == (status, message)


def test_error_for_response_without_message_has_default_message() -> None:
    """X-6: the error for a response without a Status object, for example of a proxy, has a default message."""
    assert build_api_error(502, {}).message == "the API server responded with status 502"
