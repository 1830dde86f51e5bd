"""The five errors that an answer of the API server can become. Raised by `api`.

ApiError
├── NotFound      404, 410: the object, or its kind, is not there
├── Conflict      409, and a JSON patch whose `test` failed: read again, then decide again
├── Denied        401, 403: our account may not; the message names verb and resource
├── Rejected      any other 4xx: the request itself is wrong
└── Unavailable   429, 5xx and broken connections: the same request may pass later

An admission webhook gives its refusal any status that it likes: a 404, 409 or 422 of it says nothing about the object.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube.evictions import is_by_admission


class ApiError(Exception):
    """An answer other than success.

    Attributes:
        status: the HTTP status, 0 when no answer came.
        message: the server's own sentence, fit for `status.lastError`.
        body: the `Status` object the server sent, `{}` when it sent none.
    """

    def __init__(self, status: int, message: str, body: Mapping[str, Any] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.body: Mapping[str, Any] = body or {}


class NotFound(ApiError):
    """404 or 410 of the API server itself."""


class Conflict(ApiError):
    """409 of the API server itself, or a JSON patch whose `test` did not hold."""


class Denied(ApiError):
    """401 or 403."""


class Rejected(ApiError):
    """Any other 4xx, and what of 404, 409, 410 and 422 an admission webhook answers."""


class Unavailable(ApiError):
    """429, 5xx, or no answer at all."""


def error_of(status: int, body: Mapping[str, Any], *, patch: bool = False) -> ApiError:
    """The error for an HTTP status and the decoded body, a `Status` object as a rule.

    A JSON patch whose `test` fails comes back as 422 without causes (a refused value has causes): that is a
    conflict in all but number (NMO-4).
    """
    message = str(body.get("message") or f"the API server answered {status}")
    if status in (404, 409, 410, 422) and is_by_admission(message):
        return Rejected(status, message, body)
    if status in (404, 410):
        return NotFound(status, message, body)
    if status == 409 or (patch and status == 422 and not (body.get("details") or {}).get("causes")):
        return Conflict(status, message, body)
    if status in (401, 403):
        return Denied(status, message, body)
    if status == 429 or status >= 500:
        return Unavailable(status, message, body)
    return Rejected(status, message, body)
