"""Runs a function on a recorded event in this process, with the user's own permissions, optionally under pdb.

`kubectl maintenance replay --in-process` uses this module. No other module of this package imports the functions.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from math import inf
from pdb import Pdb

from cloudevents.core.base import BaseCloudEvent

from console.operations.errors import NoResult
from eventing import extensions
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import Entry
from eventing.replay.function_client import FunctionResponse, parse_response
from functions.app import FUNCTIONS
from functions.serving.attempts import OngoingAttempt, Publisher
from functions.serving.function_runner import FunctionRunner
from functions.serving.handler import handle_event
from functions.steps import Function
from kube.client.deadline import set_deadline
from kube.client.sync_client import SyncClient


def run_in_process(
    entry: Entry, function: str, client: SyncClient, *, replay_id: str, dry_run: bool, debug: bool
) -> FunctionResponse:
    """Run a function of this source tree on a recorded event, and return its response.

    With `debug`, pdb stops at the function's first line, where `event` and `client` are available. Raises `NoResult`
    if the user quits pdb.
    """
    served_function = FUNCTIONS[function]
    event = extensions.add_replay_extensions(entry.event, replay_id, dry_run=dry_run)
    with OngoingAttempt(function, event, Publisher("")) as attempt:
        response = handle_event(
            FunctionRunner(_wrap_in_debugger(served_function) if debug else served_function),
            attempt,
            client,
            accept_header=BATCH_CONTENT_TYPE,
        )
    headers = {name.lower(): value for name, value in response.headers.items()}
    return parse_response(function, response.status_code, headers, response.get_data(), attempt.duration_seconds)


def _wrap_in_debugger(function: Function) -> Function:
    """Return the function wrapped in pdb, which uses stderr because stdout is for the command's output."""

    def run_step(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
        debugger = Pdb(stdout=sys.stderr, nosigint=True)
        with set_deadline(inf):  # no deadline while the user debugs
            replies: list[BaseCloudEvent] | None = debugger.runcall(function.step, event, client)
        if replies is None:  # `runcall` returns None after `quit`
            raise NoResult(f"replay stopped by pdb in function {function.name}: the remaining calls were not made")
        return replies

    return replace(function, step=run_step)
