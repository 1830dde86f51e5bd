"""One JSON line for each action that somebody asked the console for: who, what, from where, and what became of it.

In every mode, whether it was done or refused. The API server's own audit log knows only what reached it, and of a
console that acts under its own account not for whom.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator, Mapping
from http import HTTPStatus
from typing import Any

from flask import Flask, Response, g, request
from werkzeug.exceptions import HTTPException

from console.operations.redriving import Result
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
                _write({**what, **who, **_outcome(what, response)})
        return response

    app.after_request(written)


def note_outcomes(outcomes: Mapping[str, tuple[int, str]]) -> None:
    """Tell what became of each node of this request: a status, and the sentence that says what went wrong or ""."""
    g.outcomes = outcomes


def written_as_made(context: Context) -> Callable[[Result], None]:
    """How the redrive that this request began is to be written down, instead of with its answer, which knows no end.

    A line for what became of each dead letter; from any thread, in the name of who asked.
    """
    who, g.later = _who(context), True

    def write(result: Result) -> None:
        made = result.attempt
        status, error = (made.status, made.error) if made else (HTTPStatus.CONFLICT, result.problem)
        outcome = "refused" if result.is_closed else "failed" if result.failed else "done"
        said = {"outcome": outcome, "status": int(status)}
        what = {"action": "redrive", "letter": str(result.item.letter.seq), **who, **said}
        _write({**what, **({"error": error} if error else {})})

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
    if response.status_code < HTTPStatus.BAD_REQUEST or "outcomes" in g or more <= 0:
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


def _outcome(what: Mapping[str, Any], response: Response) -> dict[str, Any]:
    known = getattr(g, "outcomes", {}).get(what.get("node", ""))
    status, error = known or (response.status_code, getattr(g, "refusal", ""))
    word = "done" if status < HTTPStatus.BAD_REQUEST else "failed" if status >= 500 else "refused"
    return {"outcome": word, "status": int(status), **({"error": error} if error else {})}


def _write(fields: Mapping[str, Any]) -> None:
    log.info("%s %s", fields["action"], fields["outcome"], extra={"fields": dict(fields)})
