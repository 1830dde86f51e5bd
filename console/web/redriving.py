"""The page of dead letters, and redriving them behind a confirmation."""

from __future__ import annotations

from flask import render_template, request
from werkzeug.exceptions import NotFound

from console.operations.redriving import address, broker_address
from console.web import lanes
from console.web.callers import to_start
from console.web.context import Context
from eventing.journal.entries import Attempt, Entry, Query
from eventing.replay.redrive import is_open, redrive, still_open
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.leases import NAMESPACE

PAGE = 200
"""Dead letters on the page, the newest."""


class Redriving:
    """The views; each method is one, listed in `console.web.app`."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def dead_letters(self) -> str:
        """The dead letters, each with the reason."""
        _, user = self._context.viewed()
        found = self._context.journal.select(Query(dead=True, limit=PAGE, newest=True))[::-1]
        waiting = [letter.seq for letter in still_open(found)]
        return render_template("dead_letters.html", user=user, entries=found, waiting=waiting, lanes=lanes)

    def redrive(self) -> str:
        """Deliver every `letter` again, to the one function that it was meant for; without `confirm`, ask first.

        Who may start a maintenance may do this.
        """
        state, caller = self._context.live.now(), self._context.caller()
        self._context.cluster.run(caller.require(to_start(MEDIK8S, state.groups)))
        letters = self._chosen()
        if request.form.get("confirm") != "yes":
            return render_template("redrive.html", letters=letters, lanes=lanes)
        broker = self._context.broker or broker_address(self._context.cluster, NAMESPACE)
        done = [(letter, self._redriven(letter, broker)) for letter in letters]
        return render_template("redriven.html", done=done, lanes=lanes)

    def _chosen(self) -> list[Entry]:
        """The open dead letters that the form names; 404 when one of them is not there, or was redriven already."""
        wanted = {int(seq) for seq in request.form.getlist("letter") if seq.isdecimal()}
        found = [letter for letter in self._context.journal.select(Query(dead=True)) if letter.seq in wanted]
        if not wanted or len(found) < len(wanted) or not all(map(is_open, found)):
            raise NotFound("no such open dead letter: nothing was redriven; load the page again")
        return found

    def _redriven(self, letter: Entry, broker: str) -> Attempt:
        made = redrive(letter, address(letter, self._context.functions), broker)
        self._context.journal.write_attempts([made])
        return made
