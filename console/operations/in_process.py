"""Runs a function on a recorded event in this process, with the user's own permissions, optionally under pdb.

`kubectl maintenance replay --in-process` uses it. No other module of this package imports the functions.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from pdb import Pdb

from cloudevents.core.base import BaseCloudEvent

from console.operations.errors import NoResult
from eventing import replay_extensions
from eventing.journal.entries import Entry
from eventing.replay.function_client import Answer, answer_of
from eventing.http_binding import BATCH
from functions.app import FUNCTIONS
from functions.serving.attempts import OngoingAttempt, Publisher
from functions.serving.function import Function
from functions.serving.handler import answer
from kube.client.deadline import within
from kube.client.sync_client import Cluster


def run_here(entry: Entry, function: str, cluster: Cluster, *, run: str, dry_run: bool, debug: bool) -> Answer:
    """Replay a recorded event to a function of this code, and return its answer.

    With `debug`, pdb stops at the function's first line, where `event` and `cluster` are available. Raises `NoResult`
    if the user quits pdb.
    """
    served = FUNCTIONS[function]
    event = replay_extensions.marked(entry.event, run, dry_run=dry_run)
    with OngoingAttempt(function, event, Publisher("")) as attempt:
        response = answer(_stopped(served) if debug else served, attempt, cluster, accept=BATCH)
    headers = {name.lower(): value for name, value in response.headers.items()}
    return answer_of(function, response.status_code, headers, response.get_data(), attempt.seconds)


def _stopped(function: Function) -> Function:
    """Return the same function under pdb, which uses stderr because stdout carries the command's output."""

    def run(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
        debugger = Pdb(stdout=sys.stderr, nosigint=True)
        with within(inf):  # no deadline while the user debugs
            replies: list[BaseCloudEvent] | None = debugger.runcall(function.step, event, cluster)
        if replies is None:  # `runcall` returns None after `quit`
            raise NoResult(f"stopped in {function.name}; nothing after it was replayed")
        return replies

    return replace(function, step=run)
