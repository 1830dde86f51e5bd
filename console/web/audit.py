"""Audit log of the console: one JSON line per requested action, with user, action, object, client address and outcome.

The console logs completed and refused actions in every mode. The API server's own audit log is not sufficient, because
it contains only the requests that reach the API server. It also does not name the user if the console acts under its
own account.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from console.web.context import ConsoleContext
from eventing.logs import JsonFormatter
from kube.client.api_errors import ApiError, Conflict, Denied, NotFound, Rejected

NAME_FIELD_OF_ACTION = {"start": "node", "stop": "node", "redrive": "letter", "discard": "letter"}
"""Map from the endpoint of an action that requires confirmation to the form field with the objects' names."""
MAX_VALUE_CHARACTERS = 253
"""Maximum length of an untrusted value in a log line, equal to the maximum length of a node name."""
MAX_REFUSED_LINES = 10
"""Maximum number of log lines for a request that was refused as a whole, even if it names more objects."""
STATUS_OF_ERROR = {NotFound: HTTPStatus.NOT_FOUND, Conflict: HTTPStatus.CONFLICT, Rejected: HTTPStatus.BAD_REQUEST}
"""Map from an API error's class to the HTTP status of the console's response; see `get_http_status`."""
log = logging.getLogger("audit")


def configure_audit_log() -> None:
    """Configure the audit log to write only to stdout, one JSON object per line."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def register_audit(app: Flask, context: ConsoleContext) -> None:
    """Log every requested action after its response is built, unless `create_outcome_writer` was called for it."""

    def write_lines(response: Response) -> Response:
        if "outcomes_written_later" in g:
            return response
        if actions := _limit_refused_actions(_parse_requested_actions(), response):
            caller_fields = _describe_caller(context)
            outcome = ActionOutcome("", response.status_code, getattr(g, "refusal", ""))
            for action_fields in actions:
                _write_audit_line({**action_fields, **caller_fields, **_build_outcome_fields(outcome)})
        return response

    app.after_request(write_lines)


@dataclass(frozen=True)
class ActionOutcome:
    """Outcome of an action for one of the objects that the request names.

    Attributes:
        name: The object's name.
        status: The HTTP status for this object.
        error: The error message, or "".
        outcome: The outcome as one word, or "" to derive it from `status`.
    """

    name: str
    status: int
    error: str = ""
    outcome: str = ""


def create_outcome_writer(context: ConsoleContext) -> Callable[[ActionOutcome], None]:
    """Return a function that logs each outcome of this request immediately, instead of after the response.

    The outcomes are thus logged even if the response is never sent. The returned function may be called in any thread;
    its log lines contain this request's user.
    """
    caller_fields, action = _describe_caller(context), str(request.endpoint)
    g.outcomes_written_later = True

    def write_outcome(outcome: ActionOutcome) -> None:
        _write_audit_line(
            {
                "action": action,
                NAME_FIELD_OF_ACTION[action]: outcome.name[:MAX_VALUE_CHARACTERS],
                **caller_fields,
                **_build_outcome_fields(outcome),
            }
        )

    return write_outcome


def get_http_status(error: ApiError) -> HTTPStatus:
    """Return the HTTP status of the console's response for an API error."""
    if isinstance(error, Denied):
        return HTTPStatus.UNAUTHORIZED if error.status == HTTPStatus.UNAUTHORIZED else HTTPStatus.FORBIDDEN
    return STATUS_OF_ERROR.get(type(error), HTTPStatus.SERVICE_UNAVAILABLE)


def set_refusal_reason(message: str) -> None:
    """Store the reason why the current request was refused as a whole, for its audit log lines."""
    g.refusal = message


def _parse_requested_actions() -> list[dict[str, str]]:
    """Return the log fields of each requested action; return [] if the request changes nothing."""
    endpoint = request.endpoint or ""
    if request.method == "POST" and endpoint == "replay":
        return [{"action": endpoint, "event": str((request.view_args or {}).get("seq", ""))}]
    if request.method != "POST" or endpoint not in NAME_FIELD_OF_ACTION:
        return []
    field = NAME_FIELD_OF_ACTION[endpoint]
    try:
        names = dict.fromkeys(request.form.getlist(field)) if request.form.get("confirm") == "yes" else ()
    except HTTPException:  # The form is too large, so the request was refused.
        return [{"action": endpoint}]
    return [{"action": endpoint, field: name[:MAX_VALUE_CHARACTERS]} for name in names]


def _describe_caller(context: ConsoleContext) -> dict[str, Any]:
    """Return the log fields of the caller: user, groups, client address and X-Forwarded-For header.

    The user is "" if the request identifies none, or if the API server does not accept the token. The console does not
    verify the X-Forwarded-For header.
    """
    fields: dict[str, Any] = {"user": ""}
    with suppress(ApiError):
        caller = context.get_caller()
        fields = {"user": context.client.run(caller.get_name())}
        if caller.groups:
            fields["groups"] = list(caller.groups)
    fields["from"] = request.remote_addr or ""
    if forwarded_for := request.headers.get("X-Forwarded-For", ""):
        fields["forwarded"] = forwarded_for[:MAX_VALUE_CHARACTERS]
    return fields


def _limit_refused_actions(actions: list[dict[str, str]], response: Response) -> list[dict[str, Any]]:
    """Limit the log lines for a request that was refused as a whole; the field `more` counts the omitted lines."""
    omitted = len(actions) - MAX_REFUSED_LINES
    if response.status_code < HTTPStatus.BAD_REQUEST or omitted <= 0:
        return [*actions]
    return [*actions[: MAX_REFUSED_LINES - 1], {**actions[MAX_REFUSED_LINES - 1], "more": omitted}]


def _build_outcome_fields(outcome: ActionOutcome) -> dict[str, Any]:
    default_outcome = (
        "done" if outcome.status < HTTPStatus.BAD_REQUEST else "failed" if outcome.status >= 500 else "refused"
    )
    fields = {"outcome": outcome.outcome or default_outcome, "status": int(outcome.status)}
    return {**fields, **({"error": outcome.error} if outcome.error else {})}


def _write_audit_line(fields: Mapping[str, Any]) -> None:
    log.info("%s %s", fields["action"], fields["outcome"], extra={"fields": dict(fields)})
