"""The page of dead letters, and the redrive of dead letters after a confirmation."""

from __future__ import annotations

import hashlib
import json
import uuid
from dataclasses import replace
from http import HTTPStatus

from flask import render_template, request
from werkzeug.exceptions import NotFound

from console.operations.dead_letter_redrive import Result, Run, broker_address, items
from console.web import swimlanes
from console.web.audit import Ended, written_as_made
from console.web.callers import to_start
from console.web.context import Context
from eventing.journal.entries import Entry, Query
from eventing.journal.keys import event_keys
from eventing.replay.redrive import is_open, still_open
from kube.maintenance.groups import MEDIK8S
from kube.paths import NAMESPACE

PAGE = 200
"""Maximum number of dead letters on the page: the newest open ones first, then the newest others."""
SOON = 2.0
"""Seconds that a response waits for the redrive to end; after that, the page shows the progress."""
DIGITS = 18
"""Maximum digits of a journal number, because Python refuses to parse numbers of thousands of digits."""
RUNS = 20
"""Maximum number of redrives that the process remembers; it forgets the oldest."""


class Redriving:
    """The views about dead letters; `console.web.app` maps a URL to each method."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._runs: dict[str, Run] = {}

    def dead_letters(self) -> str:
        """Render the newest dead letters, open ones first, each with the reason."""
        _, user = self._context.viewed()
        newest = Query(dead=True, limit=PAGE, newest=True)
        waiting = list(still_open(self._context.journal.listed(replace(newest, open=True))))[::-1]
        numbers = [letter.seq for letter in waiting]
        others = [one for one in self._context.journal.listed(newest)[::-1] if one.seq not in numbers]
        found = [*waiting, *others][:PAGE]
        told = {"user": user, "entries": found, "waiting": waiting, "page": PAGE, "lanes": swimlanes, "digest": digest}
        return render_template("dead_letters.html", **told)

    def redrive(self) -> str:
        """Redrive every `letter` of the form to its own function; without `confirm`, render the confirmation dialog.

        The caller needs the permissions for starting a maintenance. A long redrive continues after the response, and
        the page shows its progress.
        """
        state, caller = self._context.live.now(), self._context.caller()
        self._context.cluster.run(caller.require(to_start(MEDIK8S, state.groups)))
        found = items(self._chosen(), self._context.functions, NAMESPACE, self._context.cluster)
        if request.form.get("confirm") != "yes":
            return render_template("redrive.html", items=found, lanes=swimlanes, digest=digest)
        broker = self._context.broker or broker_address(self._context.cluster, NAMESPACE)
        write = written_as_made(self._context)
        run = Run(found, broker, self._context.journal, lambda result: write(_ended(result)))
        number = uuid.uuid4().hex
        self._runs[number] = run
        while len(self._runs) > RUNS:
            self._runs.pop(next(iter(self._runs)))
        run.await_end(SOON)
        return render_template("redriven.html", run=run, number=number, lanes=swimlanes)

    def progress(self, number: str) -> str:
        """Render the progress of a redrive. Raises `NotFound` if this process does not know the redrive."""
        self._context.viewed()
        if number not in self._runs:
            raise NotFound("no such redrive: the list of dead letters shows what is open")
        return render_template("redriven.html", run=self._runs[number], number=number, lanes=swimlanes)

    def _chosen(self) -> list[Entry]:
        """Return the open dead letters that the form names by number and digest.

        Raises `NotFound` if one of them does not exist, is not open, or no longer has this number.
        """
        wanted = {int(seq) for seq in request.form.getlist("letter") if seq.isdecimal() and len(seq) <= DIGITS}
        if not 0 < len(wanted) <= PAGE:
            raise NotFound(f"no such open dead letter, or more than {PAGE}: nothing was redriven; load the page again")
        found = self._context.journal.listed(Query(dead=True, numbers=tuple(wanted)))
        if len(found) < len(wanted) or not all(map(is_open, found)):
            raise NotFound("no such open dead letter: nothing was redriven; load the page again")
        if not {*map(digest, found)} <= {*request.form.getlist("digest")}:
            raise NotFound("another dead letter has that number now: nothing was redriven; load the page again")
        return found


def _ended(result: Result) -> Ended:
    """Build the audit log's outcome of one redrive."""
    made = result.attempt
    status, error = (made.status, made.error) if made else (HTTPStatus.CONFLICT, result.problem)
    word = "refused" if result.is_closed else "failed" if result.failed else "done"
    return Ended(str(result.item.letter.seq), status, error, word)


def digest(letter: Entry) -> str:
    """Return a hash that distinguishes dead letters with the same number, after the journal's file was replaced."""
    return hashlib.sha256(json.dumps(event_keys(letter.event), sort_keys=True).encode()).hexdigest()[:32]
