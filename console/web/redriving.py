"""The page of dead letters: what was given up and why, and delivering it once more behind a confirmation."""

from __future__ import annotations

from flask import render_template, request
from werkzeug.exceptions import NotFound

from console.commands.redrive import address, broker_address
from console.web import lanes
from console.web.callers import to_start
from console.web.desk import Desk
from eventing.journal.entries import Attempt, Entry, Query
from eventing.replay.redrive import is_open, redrive, still_open
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.leases import NAMESPACE

PAGE = 200
"""Dead letters on the page, the newest."""


class Redriving:
    """The views; each method is one, listed in `console.web.app`."""

    def __init__(self, desk: Desk) -> None:
        self._desk = desk

    def dead_letters(self) -> str:
        """What could not be delivered, and why."""
        _, user = self._desk.viewed()
        found = self._desk.journal.select(Query(dead=True, limit=PAGE, newest=True))[::-1]
        waiting = [letter.seq for letter in still_open(found)]
        return render_template("dead_letters.html", user=user, entries=found, waiting=waiting, lanes=lanes)

    def redrive(self) -> str:
        """Deliver every `letter` once more, to the one function that did not take it; without `confirm`, ask first.

        Who may start a maintenance may do this.
        """
        state, caller = self._desk.live.now(), self._desk.caller()
        self._desk.cluster.run(caller.require(to_start(MEDIK8S, state.groups)))
        letters = self._chosen()
        if request.form.get("confirm") != "yes":
            return render_template("redrive.html", letters=letters, lanes=lanes)
        broker = self._desk.broker or broker_address(self._desk.cluster, NAMESPACE)
        done = [(letter, self._redriven(letter, broker)) for letter in letters]
        return render_template("redriven.html", done=done, lanes=lanes)

    def _chosen(self) -> list[Entry]:
        """The open dead letters that the form names; 404 when one of them is not there, or was redriven already."""
        wanted = {int(seq) for seq in request.form.getlist("letter") if seq.isdecimal()}
        found = [letter for letter in self._desk.journal.select(Query(dead=True)) if letter.seq in wanted]
        if not wanted or len(found) < len(wanted) or not all(map(is_open, found)):
            raise NotFound("no such open dead letter: nothing was redriven; load the page again")
        return found

    def _redriven(self, letter: Entry, broker: str) -> Attempt:
        made = redrive(letter, address(letter, self._desk.functions), broker)
        self._desk.journal.write_attempts([made])
        return made
