"""Post recorded events again: to one function, or to the broker and so to all that listen.

`python -m eventing.replay JOURNAL [--to URL] [--id ID] [--maintenance UID]`; without `--to` the events are listed.
Safe by design: functions read the live object before they write, so an old event changes nothing that is as it should
be (X-2).
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import click
import requests
from cloudevents.core.base import BaseCloudEvent

from eventing import marks
from eventing.entries import Attempt, Entry, Structured, maintenance_of
from eventing.journal import Journal, Query
from eventing.wire import BATCH, binary

SECONDS = 10.0
"""For one answer; a function takes about a second at most."""


class NoAnswer(Exception):
    """Nobody answers at that address; the message says which and why, in one line."""


@dataclass(frozen=True)
class Answer:
    """What a function answered to a replayed event; the fields are an `Attempt`'s."""

    function: str
    status: int
    seconds: float
    replies: tuple[Structured, ...] = ()
    error: str = ""


def replay(entry: Entry, function: str, url: str, *, dry_run: bool, run: str = "") -> Answer:
    """Post a recorded event to a function, as part of the replay `run`, and give what it answers to us alone.

    Raises `NoAnswer`. With `dry_run` nothing that the function writes is kept.
    """
    message = binary(marks.marked(entry.event, run or new_run(), dry_run=dry_run))
    headers = {**message.headers, "Accept": BATCH}
    started = time.perf_counter()
    try:
        response = requests.post(url, data=message.body, headers=headers, timeout=SECONDS)
    except requests.RequestException as error:
        raise NoAnswer(f"no answer from {url}: {' '.join(str(error).split())}") from None
    return answer_of(function, response.status_code, response.headers, response.content, time.perf_counter() - started)


def answer_of(function: str, status: int, headers: Mapping[str, str], body: bytes, seconds: float) -> Answer:
    """What a response says. Raises `NoAnswer` for one that is not a function's: success, and no batch of events."""
    if status >= 400:
        return Answer(function, status, seconds, error=" ".join(body.decode(errors="replace").split()))
    if not body:
        return Answer(function, status, seconds)
    if headers.get("content-type", "") != BATCH:
        raise NoAnswer(f"{function} answered {headers.get('content-type')}, not {BATCH}: is this one of our functions?")
    return Answer(function, status, seconds, tuple(json.loads(body)))


def new_run() -> str:
    """An id for one replay."""
    return str(uuid.uuid4())


def recorded(entry: Entry, function: str) -> Attempt | None:
    """What the function answered when the event was delivered: its last success, else its last failure."""
    attempts = [attempt for attempt in entry.attempts if attempt.function == function and not attempt.replay]
    succeeded = [attempt for attempt in attempts if not attempt.failed]
    return next(iter((succeeded or attempts)[-1:]), None)


def post(event: BaseCloudEvent, url: str) -> requests.Response:
    """Post one event in binary mode. Raises `requests.RequestException` when there is no answer."""
    message = binary(event)
    return requests.post(url, data=message.body, headers=message.headers, timeout=SECONDS)


@click.command()
@click.argument("journal", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "url", default="", help="A function's address, or the broker's.  [default: list the events]")
@click.option("--id", "ids", multiple=True, help="Only the event with this id; may be given several times.")
@click.option("--maintenance", default="", help="Only events of the NodeMaintenance with this uid or name.")
def main(journal: Path, url: str, ids: tuple[str, ...], maintenance: str) -> None:
    """Post events of JOURNAL again, and print each with the answer it got; without --to list them.

    Example: python -m eventing.replay .cluster/product/journal.db --to http://127.0.0.1:8080/cordon --id 4f6c...
    """
    with closing(Journal(journal)) as book:
        wanted = [entry.event for entry in book.select(Query(ids=ids, maintenance=maintenance))]
    if not wanted:
        raise click.ClickException("no such event in the journal")
    if not url:
        for event in wanted:
            click.echo(f"{event.get_id()}  {event.get_type()}  maintenance {maintenance_of(event)[0] or '-'}")
        return
    taken = [_replayed(event, url) for event in wanted]
    sys.exit(0 if all(taken) else 1)


def _replayed(event: BaseCloudEvent, url: str) -> bool:
    """Post and print one event; whether it was taken."""
    try:
        answer = post(event, url)
    except requests.RequestException as error:
        raise click.ClickException(f"no answer from {url}: {error}") from None
    said = answer.headers.get("ce-type", answer.text.strip())
    click.echo(f"{event.get_id()}  {event.get_type()}  {answer.status_code}  {said}")
    return answer.status_code < 300


if __name__ == "__main__":
    main()
