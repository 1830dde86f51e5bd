"""Post recorded events again: to one function, or to the broker and so to all that listen.

`python -m eventing.replay JOURNAL [--to URL] [--id ID] [--maintenance UID]`; without `--to` the events are listed.
Safe by design: functions read the live object before they write, so an old event changes nothing that is as it should
be (X-2).
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import click
import requests
from cloudevents.core.base import BaseCloudEvent

from eventing.journal import Journal
from eventing.wire import binary

SECONDS = 10.0
"""For one answer; a function takes about a second at most."""


def chosen(events: Iterable[BaseCloudEvent], ids: tuple[str, ...], maintenance: str) -> Iterator[BaseCloudEvent]:
    """The events with one of `ids`, of one `maintenance` (uid), or all when neither is given; in their order."""
    for event in events:
        if ids and event.get_id() not in ids:
            continue
        if maintenance and maintenance_of(event) != maintenance:
            continue
        yield event


def maintenance_of(event: BaseCloudEvent) -> str:
    """The uid of the NodeMaintenance that an event speaks of, ours or the API server's; "" for other events."""
    data = event.get_data()
    if event.get_extension("kind") == "NodeMaintenance" and isinstance(data, dict):
        return str(data.get("metadata", {}).get("uid", ""))
    return str(event.get_extension("maintenance") or "")


def post(event: BaseCloudEvent, url: str) -> requests.Response:
    """Post one event in binary mode. Raises `requests.RequestException` when there is no answer."""
    message = binary(event)
    return requests.post(url, data=message.body, headers=message.headers, timeout=SECONDS)


@click.command()
@click.argument("journal", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--to", "url", default="", help="A function's address, or the broker's.  [default: list the events]")
@click.option("--id", "ids", multiple=True, help="Only the event with this id; may be given several times.")
@click.option("--maintenance", default="", help="Only events of the NodeMaintenance with this uid.")
def main(journal: Path, url: str, ids: tuple[str, ...], maintenance: str) -> None:
    """Post events of JOURNAL again, and print each with the answer it got; without --to list them.

    Example: python -m eventing.replay .cluster/product/journal.db --to http://127.0.0.1:8080/cordon --id 4f6c...
    """
    book = Journal(journal)
    wanted = list(chosen(book.events(), ids, maintenance))
    book.close()
    if not wanted:
        raise click.ClickException("no such event in the journal")
    if not url:
        for event in wanted:
            click.echo(f"{event.get_id()}  {event.get_type()}  maintenance {maintenance_of(event) or '-'}")
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
