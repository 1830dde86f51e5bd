"""Audit log of the console: one JSON line per requested action, with user, action, object, origin and outcome.

The console writes it in every mode, for completed and for refused actions. The API server's audit log contains only the
requests that reach the API server. If the console acts under its own account, that log does not name the user.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from console.web.context import Context
from eventing.logs import JsonLines
from kube.client.api_errors import ApiError

ACTIONS = {"start": "node", "stop": "node", "redrive": "letter"}
"""Actions that need a confirmation: endpoint → form field that names the objects."""
LONGEST = 253
"""Maximum characters of untrusted input in a line, which is the maximum length of a node's name."""
MOST_REFUSED = 10
"""Maximum number of lines for a request that was refused as a whole, however many names it contains."""
log = logging.getLogger("audit")


def write_to_stdout() -> None:
    """Make the audit log write to stdout only, one JSON object per line."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def audit(app: Flask, context: Context) -> None:
    """Log every action of the app once its response is complete, unless `written_as_made` logs it."""

    def written(response: Response) -> Response:
        asked = [] if "later" in g else _shortened(list(_asked()), response)
        if asked:
            who = _who(context)
            for what in asked:
                _write({**what, **who, **_said(Ended("", response.status_code, getattr(g, "refusal", "")))})
        return response

    app.after_request(written)


@dataclass(frozen=True)
class Ended:
    """The outcome for one object that a request names.

    Attributes:
        error: The error message, "" for none.
        word: The outcome in one word, "" to derive it from the status.
    """

    name: str
    status: int
    error: str = ""
    word: str = ""


def written_as_made(context: Context) -> Callable[[Ended], None]:
    """Return a function that logs each outcome of this request when it is known, instead of with the response.

    The response may never be sent. The function may be called in any thread; its lines name the caller of this request.
    """
    who, action, g.later = _who(context), str(request.endpoint), True

    def write(ended: Ended) -> None:
        _write({"action": action, ACTIONS[action]: ended.name[:LONGEST], **who, **_said(ended)})

    return write


def note_refusal(message: str) -> None:
    """Store the reason why this request was refused as a whole."""
    g.refusal = message


def _asked() -> Iterator[dict[str, str]]:
    """Yield each action that the request asks for, with its object; nothing if it would change nothing."""
    endpoint, path = request.endpoint or "", request.view_args or {}
    if request.method != "POST":
        return
    if endpoint == "replay":
        yield {"action": endpoint, "event": str(path.get("seq", ""))}
    if endpoint not in ACTIONS:
        return
    try:
        form = request.form
    except HTTPException:  # the form is too large, so the request was refused
        yield {"action": endpoint}
        return
    if form.get("confirm") == "yes":
        field = ACTIONS[endpoint]
        yield from ({"action": endpoint, field: name[:LONGEST]} for name in dict.fromkeys(form.getlist(field)))


def _who(context: Context) -> dict[str, Any]:
    """Return the user who sent the request, and the address."""
    return {**_user(context), "from": request.remote_addr or "", **_forwarded()}


def _shortened(asked: list[dict[str, str]], response: Response) -> list[dict[str, Any]]:
    """Limit the lines for a request that was refused as a whole; `more` counts the omitted objects."""
    more = len(asked) - MOST_REFUSED
    if response.status_code < HTTPStatus.BAD_REQUEST or more <= 0:
        return [*asked]
    return [*asked[: MOST_REFUSED - 1], {**asked[MOST_REFUSED - 1], "more": more}]


def _user(context: Context) -> dict[str, Any]:
    """Return the user; "" if the request names no user, or if the API server does not resolve the token."""
    try:
        caller = context.caller()
        name = context.cluster.run(caller.name())
    except ApiError:
        return {"user": ""}
    return {"user": name, **({"groups": list(caller.groups)} if caller.groups else {})}


def _forwarded() -> dict[str, str]:
    """Return the origin of a forwarded request, which the sender states and the console does not verify."""
    hops = request.headers.get("X-Forwarded-For", "")
    return {"forwarded": hops[:LONGEST]} if hops else {}


def _said(ended: Ended) -> dict[str, Any]:
    word = "done" if ended.status < HTTPStatus.BAD_REQUEST else "failed" if ended.status >= 500 else "refused"
    said = {"outcome": ended.word or word, "status": int(ended.status)}
    return {**said, **({"error": ended.error} if ended.error else {})}


def _write(fields: Mapping[str, Any]) -> None:
    log.info("%s %s", fields["action"], fields["outcome"], extra={"fields": dict(fields)})
