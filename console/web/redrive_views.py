"""The page about dead letters, and the actions that redrive or discard dead letters after a confirmation."""

from __future__ import annotations

import hashlib
import json
import uuid
from http import HTTPStatus

from flask import render_template, request
from werkzeug.exceptions import NotFound

from console.operations.dead_letter_redrive import (
    MAX_DEAD_LETTERS,
    BackgroundRedrive,
    RedriveResult,
    build_redrive_items,
    discard_dead_letters,
    find_broker_url,
    list_open_dead_letters,
)
from console.web import swimlanes
from console.web.audit import ActionOutcome, create_outcome_writer
from console.web.callers import list_start_rights
from console.web.context import ConsoleContext
from eventing.journal.entries import Entry, Query, get_event_keys
from eventing.replay.redrive import awaits_redrive, find_discard_attempt, find_failed_function
from kube.paths import DEFAULT_NAMESPACE

MAX_WAIT_SECONDS = 2.0
"""Seconds for which a response waits until the redrive ends; after that, the page polls its progress."""
MAX_SEQ_DIGITS = 18
"""Maximum number of digits of a journal entry number; Python raises an error for thousands of digits."""
MAX_REMEMBERED_REDRIVES = 20
"""Maximum number of redrives whose progress this process can show; it forgets the oldest ones."""


class RedriveViews:
    """Views about dead letters; `console.web.app` maps a URL to each public method."""

    def __init__(self, context: ConsoleContext) -> None:
        self._context = context
        self._redrives: dict[str, BackgroundRedrive] = {}

    def dead_letters(self) -> str:
        """Render the newest dead letters with their reasons: first open ones, then redriven or discarded ones."""
        state, user = self._context.read_state()
        journal = self._context.journal
        newest = Query(dead_letters_only=True, limit=MAX_DEAD_LETTERS, keep_newest=True)
        open_entries = list_open_dead_letters(journal)[::-1]
        open_seqs = [entry.seq for entry in open_entries]
        others = [entry for entry in journal.list_entries(newest)[::-1] if entry.seq not in open_seqs]
        redriven_entries = others[: MAX_DEAD_LETTERS - len(open_entries)]
        return render_template(
            "dead_letters.html",
            **{"user": user, "open_entries": open_entries, "redriven_entries": redriven_entries},
            **{"page_size": MAX_DEAD_LETTERS, "swimlanes": swimlanes, "compute_digest": compute_digest},
            **{"find_failed_function": find_failed_function, "find_discard_attempt": find_discard_attempt},
            denial=self._context.explain_denial(list_start_rights(state.groups)),
        )

    def redrive(self) -> str:
        """Redrive the dead letters in the form field `letter`; without the field `confirm`, render the dialog.

        A long redrive continues after the response, and the page shows its progress. Raises `Denied` unless the caller
        has the permissions to start a maintenance.
        """
        self._context.require(list_start_rights(self._context.watcher.get_state().groups))
        items = build_redrive_items(
            self._get_selected_entries(), self._context.functions_url, DEFAULT_NAMESPACE, self._context.client
        )
        if request.form.get("confirm") != "yes":
            return render_template("redrive.html", items=items, swimlanes=swimlanes, compute_digest=compute_digest)
        broker = self._context.broker_url or find_broker_url(self._context.client, DEFAULT_NAMESPACE)
        write_outcome = create_outcome_writer(self._context)
        redrive = BackgroundRedrive(
            items, broker, self._context.journal, lambda result: write_outcome(_build_outcome(result))
        )
        number = uuid.uuid4().hex
        self._redrives[number] = redrive
        while len(self._redrives) > MAX_REMEMBERED_REDRIVES:
            self._redrives.pop(next(iter(self._redrives)))
        redrive.wait(MAX_WAIT_SECONDS)
        return render_template("redriven.html", redrive=redrive, number=number, swimlanes=swimlanes)

    def discard(self) -> str:
        """Discard the dead letters in the form field `letter`, which the dialog of a redrive offers as an alternative.

        Raises `Denied` unless the caller has the permissions to start a maintenance, and `NotFound` without the form
        field `confirm`.
        """
        self._context.require(list_start_rights(self._context.watcher.get_state().groups))
        entries = self._get_selected_entries()
        if request.form.get("confirm") != "yes":
            raise NotFound("the dialog of a redrive confirms this action: nothing was discarded; load the page again")
        discard_dead_letters(
            entries, self._context.client.run(self._context.get_caller().get_name()), self._context.journal
        )
        return render_template("discarded.html", count=len(entries))

    def progress(self, number: str) -> str:
        """Render the progress of the redrive with this number. Raises `NotFound` if this process does not know it."""
        self._context.read_state()
        if number not in self._redrives:
            raise NotFound("redrive not found: the list of dead letters shows those that are still open")
        return render_template("redriven.html", redrive=self._redrives[number], number=number, swimlanes=swimlanes)

    def _get_selected_entries(self) -> list[Entry]:
        """Return the open dead letters that the form identifies by their entry numbers and digests.

        Raises `NotFound` if one of them does not exist or is not open, or if its number belongs to another entry now.
        """
        seqs = {int(seq) for seq in request.form.getlist("letter") if seq.isdecimal() and len(seq) <= MAX_SEQ_DIGITS}
        if not 0 < len(seqs) <= MAX_DEAD_LETTERS:
            problem = f"open dead letter not found, or more than {MAX_DEAD_LETTERS}"
            raise NotFound(f"{problem}: nothing was done; load the page again")
        entries = self._context.journal.list_entries(Query(dead_letters_only=True, seqs=tuple(seqs)))
        if len(entries) < len(seqs) or not all(map(awaits_redrive, entries)):
            raise NotFound("open dead letter not found: nothing was done; load the page again")
        if not {*map(compute_digest, entries)} <= {*request.form.getlist("digest")}:
            raise NotFound("another dead letter has this number now: nothing was done; load the page again")
        return entries


def _build_outcome(result: RedriveResult) -> ActionOutcome:
    """Convert the result of redriving one dead letter to an outcome for the audit log."""
    attempt = result.attempt
    status, error = (attempt.status, attempt.error) if attempt else (HTTPStatus.CONFLICT, result.problem)
    outcome = "refused" if result.is_already_done else "failed" if result.failed else "done"
    return ActionOutcome(str(result.item.dead_letter.seq), status, error, outcome)


def compute_digest(dead_letter: Entry) -> str:
    """Return a hash of the dead letter's event; entry numbers are not unique if the journal's file is replaced."""
    return hashlib.sha256(json.dumps(get_event_keys(dead_letter.event), sort_keys=True).encode()).hexdigest()[:32]
