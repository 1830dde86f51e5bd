"""Redrives or discards dead letters for the commands and the web console.

A redrive delivers the dead letter's event again to the function that did not accept it. Discarding a dead letter only
records which user discarded it.

A dead letter contains the address to which it could not be delivered. That address is not trustworthy, because any
client that is allowed to post to the `record` function can forge it. The address therefore comes from the function's
Trigger; the dead letter determines only the function.

Concurrent redrives in the same process deliver a dead letter only once. The same applies to processes that share a
PostgreSQL database, such as the console's pods. Processes that share a SQLite file may deliver a dead letter twice,
which the functions tolerate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from console.operations.errors import NoResult
from eventing.dead_letters import remove_dead_letter_extensions
from eventing.journal.entries import Attempt, Entry, Query, get_event_keys, strip_data
from eventing.replay.redrive import (
    DISCARD_NOTE,
    awaits_redrive,
    build_discard_attempt,
    find_discard_attempt,
    find_failed_function,
    redrive,
    select_dead_letters_awaiting_redrive,
)

if TYPE_CHECKING:
    from console.operations.replay_targets import TargetResolver
    from eventing.journal.store import Journal
    from kube.client.sync_client import SyncClient

MAX_DEAD_LETTERS = 200
"""Maximum number of dead letters on a page: the newest open ones, followed by the newest redriven or discarded ones."""
IN_PROGRESS: set[int] = set()
"""Journal entry numbers of the dead letters that this process is redriving."""
IN_PROGRESS_LOCK = threading.Lock()


@dataclass(frozen=True)
class RedriveItem:
    """A dead letter to redrive, and its target.

    Attributes:
        function_url: The URL of the function that did not accept the event, "" if the URL is unknown.
        problem: The reason why the URL is unknown, or "".
    """

    dead_letter: Entry
    function_url: str
    problem: str = ""


@dataclass(frozen=True)
class RedriveResult:
    """The outcome of redriving one dead letter.

    Attributes:
        attempt: The delivery attempt, or None if no attempt was made.
        problem: The reason why no attempt was made, or "".
        is_already_done: Whether another redrive has already delivered the event to this function.
    """

    item: RedriveItem
    attempt: Attempt | None
    problem: str = ""
    is_already_done: bool = False

    @property
    def failed(self) -> bool:
        """Return whether the dead letter's event is still undelivered."""
        return not self.is_already_done and (self.attempt is None or self.attempt.failed)


def list_dead_letters_to_redrive(journal: Journal, ids: tuple[str, ...]) -> list[Entry]:
    """Return the open dead letters (all, or only those with these ids), without the data of their events.

    The data is read later, immediately before the redrive.
    """
    return list(
        map(
            strip_data,
            select_dead_letters_awaiting_redrive(journal.iter_entries(Query(dead_letters_only=True, ids=ids))),
        )
    )


def list_open_dead_letters(journal: Journal) -> list[Entry]:
    """Return the newest open dead letters, at most `MAX_DEAD_LETTERS`, in order of arrival.

    A dead letter is open until it is successfully redriven, or discarded.
    """
    query = Query(dead_letters_only=True, awaiting_redrive=True, limit=MAX_DEAD_LETTERS, keep_newest=True)
    return list(select_dead_letters_awaiting_redrive(journal.list_entries(query)))


def build_redrive_items(
    dead_letters: Iterable[Entry], functions_url: str, namespace: str, client: SyncClient
) -> list[RedriveItem]:
    """Return the dead letters with their targets: the URLs of the functions that did not accept the events.

    A function's URL is `functions_url` plus the function's name, or the URL in its Trigger if `functions_url` is "".
    Raises `NoResult` if no Trigger exists.
    """
    dead_letters = list(dead_letters)
    if not dead_letters:
        return []
    from console.operations.replay_targets import TargetOptions, TargetResolver  # Only redrives need this slow import.

    targets = TargetResolver(TargetOptions(functions_url=functions_url, namespace=namespace), client)
    return [build_redrive_item(dead_letter, targets) for dead_letter in dead_letters]


def build_redrive_item(dead_letter: Entry, resolver: TargetResolver) -> RedriveItem:
    """Return the dead letter with its target: the URL of the function that did not accept the event."""
    function = find_failed_function(dead_letter)
    if function not in resolver.list_functions(remove_dead_letter_extensions(dead_letter.event)):
        return RedriveItem(
            dead_letter, "", f"no Trigger delivers this event to {function or 'the unknown function that rejected it'}"
        )
    try:
        return RedriveItem(dead_letter, resolver.get_url(function))
    except NoResult:
        problem = f"no Trigger has the address of {function}: name the functions' URL with --functions or $FUNCTIONS"
        return RedriveItem(dead_letter, "", problem)


def redrive_dead_letters(items: Sequence[RedriveItem], broker_url: str, journal: Journal) -> Iterator[RedriveResult]:
    """Redrive the dead letters one after another, record each attempt immediately, and continue after a failure.

    No attempt is made for a dead letter that is already being redriven, has been redriven, or is no longer in the
    journal.
    """
    for item in items:
        yield _redrive_item(item, broker_url, journal)


def _redrive_item(item: RedriveItem, broker_url: str, journal: Journal) -> RedriveResult:
    if item.problem:
        return RedriveResult(item, None, item.problem)
    with _try_claim_dead_letter(item.dead_letter.seq, journal) as is_claimed:
        if not is_claimed:
            return RedriveResult(item, None, "another redrive of this dead letter is in progress")
        dead_letter = _reload_dead_letter(item.dead_letter, journal)
        if dead_letter is None:
            problem = "the journal no longer contains the dead letter: list the open dead letters, and choose again"
            return RedriveResult(item, None, problem)
        if not awaits_redrive(dead_letter):
            return RedriveResult(item, None, "another redrive has delivered it already", is_already_done=True)
        attempt = redrive(dead_letter, item.function_url, broker_url)
        journal.write_attempts([attempt])
        return RedriveResult(item, attempt)


def discard_dead_letters(dead_letters: Iterable[Entry], user: str, journal: Journal) -> list[Entry]:
    """Record that `user` has discarded these dead letters, and return them with the new records.

    The dead letters are then no longer open, but the journal keeps their events.
    """
    discards = [(dead_letter, build_discard_attempt(dead_letter, user)) for dead_letter in dead_letters]
    journal.write_attempts(discard for _, discard in discards)
    return [replace(dead_letter, attempts=(*dead_letter.attempts, discard)) for dead_letter, discard in discards]


@contextmanager
def _try_claim_dead_letter(seq: int, journal: Journal) -> Iterator[bool]:
    """Yield whether the caller may redrive the dead letter with the entry number `seq`; lock it in the `with` block.

    The lock is effective in this process, and among all processes that share a PostgreSQL database.
    """
    with IN_PROGRESS_LOCK:
        is_new = seq not in IN_PROGRESS
        IN_PROGRESS.add(seq)
    if not is_new:
        yield False
        return
    try:
        with journal.try_lock_redrive(seq) as is_locked:
            yield is_locked
    finally:
        IN_PROGRESS.discard(seq)


def _reload_dead_letter(dead_letter: Entry, journal: Journal) -> Entry | None:
    """Read the complete dead letter from the journal; return None if the journal no longer contains it.

    The function compares the event, because the entry number may belong to a different event if the journal's file was
    replaced or pruned completely.
    """
    keys = get_event_keys(dead_letter.event)
    entries = journal.select(Query(dead_letters_only=True, seqs=(dead_letter.seq,)))
    return next((entry for entry in entries if get_event_keys(entry.event) == keys), None)


class BackgroundRedrive:
    """A redrive in a background thread, which appends each result to `results` and passes it to `on_result`.

    Attributes:
        error: The error that ended the thread before all dead letters were redriven, or "".
    """

    def __init__(
        self,
        items: Sequence[RedriveItem],
        broker_url: str,
        journal: Journal,
        on_result: Callable[[RedriveResult], None] = lambda _result: None,
    ) -> None:
        self.items = items
        self.results: list[RedriveResult] = []
        self.error, self._on_result = "", on_result
        self._thread = threading.Thread(target=self._run, args=(broker_url, journal), name="redrive", daemon=True)
        self._thread.start()

    def _run(self, broker_url: str, journal: Journal) -> None:
        try:
            for result in redrive_dead_letters(self.items, broker_url, journal):
                self.results.append(result)
                self._on_result(result)
        except OSError as error:  # The journal is unavailable. A dead letter without a recorded attempt stays open.
            self.error = str(error)
            for item in self.items[len(self.results) :]:
                self._on_result(RedriveResult(item, None, self.error))

    def wait(self, timeout: float) -> None:
        """Wait until all dead letters are redriven, for at most `timeout` seconds."""
        self._thread.join(timeout)

    @property
    def is_in_progress(self) -> bool:
        """Return whether the thread is still running."""
        return self._thread.is_alive()


def find_broker_url(client: SyncClient, namespace: str) -> str:
    """Return the URL in the status of the namespace's Broker. Raises `NoResult` if no Broker has a URL."""
    from kube.client.api import get_or_none  # This slow import is not needed to list dead letters.

    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers"
    brokers = client.run(get_or_none(client.api.list(path)))
    for broker in brokers["items"] if brokers else []:
        if url := ((broker.get("status") or {}).get("address") or {}).get("url"):
            return str(url)
    raise NoResult(f"no Broker in namespace {namespace} has an address: name one with --broker or $BROKER")


def build_dead_letter_fields(dead_letter: Entry) -> dict[str, Any]:
    """Return the dead letter as JSON data."""
    failure, discard = dead_letter.dead_letter, find_discard_attempt(dead_letter)
    return {
        "event": dead_letter.event.get_id(),
        "source": dead_letter.event.get_source(),
        "type": dead_letter.event.get_type(),
        "node": dead_letter.node,
        "maintenance": dead_letter.maintenance,
        "arrived": dead_letter.arrived.isoformat(),
        "function": find_failed_function(dead_letter),
        "destination": failure.destination if failure else "",
        "code": failure.code if failure else 0,
        "reason": failure.data if failure else "",
        "open": awaits_redrive(dead_letter),
        "discarded": {"by": discard.error.removeprefix(DISCARD_NOTE), "at": discard.at.isoformat()}
        if discard
        else None,
    }
