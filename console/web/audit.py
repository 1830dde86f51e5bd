"""One JSON line for each action that somebody asked the console for: who, what, from where, and what became of it.

In every mode, whether it was done or refused. The API server's own audit log knows only what reached it, and of a
console that acts under its own account not for whom.
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
from kube.door.api_errors import ApiError

ACTIONS = {"start": "node", "stop": "node", "redrive": "letter"}
"""Those that need a confirmation: endpoint → field of the form that names what it is done to."""
LONGEST = 253
"""Characters of what a stranger sent: of a node's name at its longest."""
MOST_REFUSED = 10
"""Lines about a request that was refused as a whole, however many names a stranger put into it."""
log = logging.getLogger("audit")


def write_to_stdout() -> None:
    """Have the lines written, one JSON object each, and by nobody else."""
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonLines())
    log.handlers, log.propagate = [handler], False
    log.setLevel(logging.INFO)


def audit(app: Flask, context: Context) -> None:
    """Have every action of the app written down, after its answer is made or, as `written_as_made` has it, later."""

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
    """What became of one thing that a request named.

    Attributes:
        error: the sentence that says what went wrong, "" for nothing.
        word: the outcome, "" where the status says it.
    """

    name: str
    status: int
    error: str = ""
    word: str = ""


def written_as_made(context: Context) -> Callable[[Ended], None]:
    """How what this request begins is to be written down, instead of with its answer, which may never come.

    A line for what became of each thing, as soon as that is known; from any thread, in the name of who asked.
    """
    who, action, g.later = _who(context), str(request.endpoint), True

    def write(ended: Ended) -> None:
        _write({"action": action, ACTIONS[action]: ended.name[:LONGEST], **who, **_said(ended)})

    return write


def note_refusal(message: str) -> None:
    """Tell why this request was refused as a whole."""
    g.refusal = message


def _asked() -> Iterator[dict[str, str]]:
    """What the request asks for, by action and object; nothing for one that would change nothing."""
    endpoint, path = request.endpoint or "", request.view_args or {}
    if request.method != "POST":
        return
    if endpoint == "replay":
        yield {"action": endpoint, "event": str(path.get("seq", ""))}
    if endpoint not in ACTIONS:
        return
    try:
        form = request.form
    except HTTPException:  # larger than any form of ours: it was refused for that
        yield {"action": endpoint}
        return
    if form.get("confirm") == "yes":
        field = ACTIONS[endpoint]
        yield from ({"action": endpoint, field: name[:LONGEST]} for name in dict.fromkeys(form.getlist(field)))


def _who(context: Context) -> dict[str, Any]:
    """Who asks, and from where."""
    return {**_user(context), "from": request.remote_addr or "", **_forwarded()}


def _shortened(asked: list[dict[str, str]], response: Response) -> list[dict[str, Any]]:
    """The same, but only the first of a request that was refused as a whole; `more` says how many others it named."""
    more = len(asked) - MOST_REFUSED
    if response.status_code < HTTPStatus.BAD_REQUEST or more <= 0:
        return [*asked]
    return [*asked[: MOST_REFUSED - 1], {**asked[MOST_REFUSED - 1], "more": more}]


def _user(context: Context) -> dict[str, Any]:
    """Who asks; "" where nobody is named, or the API server does not say whose the token is."""
    try:
        caller = context.caller()
        name = context.cluster.run(caller.name())
    except ApiError:
        return {"user": ""}
    return {"user": name, **({"groups": list(caller.groups)} if caller.groups else {})}


def _forwarded() -> dict[str, str]:
    """Where the request came from before it came to the sender, who alone says so."""
    hops = request.headers.get("X-Forwarded-For", "")
    return {"forwarded": hops[:LONGEST]} if hops else {}


def _said(ended: Ended) -> dict[str, Any]:
    word = "done" if ended.status < HTTPStatus.BAD_REQUEST else "failed" if ended.status >= 500 else "refused"
    said = {"outcome": ended.word or word, "status": int(ended.status)}
    return {**said, **({"error": ended.error} if ended.error else {})}


def _write(fields: Mapping[str, Any]) -> None:
    log.info("%s %s", fields["action"], fields["outcome"], extra={"fields": dict(fields)})
