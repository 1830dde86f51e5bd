"""The five classes of errors that `api` raises for failed requests to the API server.

ApiError
├── NotFound      404, 410: The object, or its kind, does not exist.
├── Conflict      409, or a JSON patch whose `test` failed: Read the object again, then decide again.
├── Denied        401, 403: The client's user lacks a permission. The message names the verb and the resource.
├── Rejected      any other 4xx: The request itself is invalid.
└── Unavailable   429, 5xx and broken connections: A retry of the same request may succeed.

An admission webhook can deny a request with any status: a webhook's 404, 409 or 422 does not describe the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

WEBHOOK_MESSAGE_PREFIX = "admission webhook"
"""Prefix of the API server's message if an admission webhook denied the request; the HTTP status varies."""


class ApiError(Exception):
    """An error response of the API server, or a missing response.

    Attributes:
        status: The HTTP status, or 0 if there was no response.
        message: The API server's message, suitable for a NodeMaintenance's `status.lastError`.
        body: The `Status` object of the response, or `{}` if it had none.
    """

    def __init__(self, status: int, message: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.body: Mapping[str, Any] = body or {}


class NotFound(ApiError):
    """Error for a 404 or 410 response of the API server itself."""


class Conflict(ApiError):
    """Error for a 409 response of the API server itself, or for a JSON patch whose `test` failed."""


class Denied(ApiError):
    """Error for a 401 or 403 response."""


class Rejected(ApiError):
    """Error for any other 4xx response, or for a 404, 409, 410 or 422 response of an admission webhook."""


class Unavailable(ApiError):
    """Error for a 429 or 5xx response, or for a missing response."""


def build_api_error(status: int, body: Mapping[str, Any], *, is_json_patch: bool = False) -> ApiError:
    """Build the error for an HTTP status and the decoded body, usually a `Status` object.

    For a JSON patch, a failed `test` returns 422 without causes, whereas an invalid value returns 422 with causes. The
    former counts as a conflict (NMO-4).
    """
    message = str(body.get("message") or f"the API server responded with status {status}")
    if status in (404, 409, 410, 422) and is_webhook_refusal(message):
        return Rejected(status, message, body)
    if status in (404, 410):
        return NotFound(status, message, body)
    if status == 409 or (is_json_patch and status == 422 and not (body.get("details") or {}).get("causes")):
        return Conflict(status, message, body)
    if status in (401, 403):
        return Denied(status, message, body)
    if status == 429 or status >= 500:
        return Unavailable(status, message, body)
    return Rejected(status, message, body)


def is_webhook_refusal(message: str) -> bool:
    """Return whether the message of an error response is an admission webhook's denial.

    The HTTP status of such a denial, for example 404 or 409, does not describe the object.
    """
    return message.startswith(WEBHOOK_MESSAGE_PREFIX)
