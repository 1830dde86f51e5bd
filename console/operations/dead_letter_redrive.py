"""Redrives dead letters, for the commands and the web console: finds each function's address and delivers the event.

A dead letter names the address that it could not be delivered to. That address is not trustworthy, because any client
that may post to `record` can write it. The address therefore comes from the Triggers, and the dead letter only
determines the function.

Two concurrent attempts to redrive a dead letter deliver it once, if they run in the same process. The same holds for
several processes with one PostgreSQL, such as the console's pods. Processes that share a SQLite file may deliver it
twice, which the functions tolerate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.operations.errors import NoResult
from eventing.dead_letters import original
from eventing.journal.entries import Attempt, Entry, Query
from eventing.journal.keys import event_keys
from eventing.journal.batching import bare
from eventing.replay.redrive import function_of, is_open, redrive, still_open

if TYPE_CHECKING:
    from console.operations.replay_runner import Targets
    from eventing.journal.store import Journal
    from kube.client.sync_client import Cluster

UNDER_WAY: set[int] = set()
"""Journal numbers of the dead letters that this process is redriving."""
GUARD = threading.Lock()


@dataclass(frozen=True)
class Item:
    """One dead letter to redrive.

    Attributes:
        url: The address of its function; "" if it is unknown, for the reason in `problem`.
    """

    letter: Entry
    url: str
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """The outcome of one redrive: the attempt, or the problem if no attempt was made.

    Attributes:
        is_closed: Whether the event has meanwhile been redriven to this function, so that nothing is left to do.
    """

    item: Item
    attempt: Attempt | None
    problem: str = ""
    is_closed: bool = False

    @property
    def failed(self) -> bool:
        """Return whether the dead letter is still open."""
        return not self.is_closed and (self.attempt is None or self.attempt.failed)


def waiting(book: Journal, ids: tuple[str, ...]) -> list[Entry]:
    """Return the open dead letters, all or those with these ids, without their data; a redrive reads each in full."""
    return list(map(bare, still_open(book.each(Query(dead=True, ids=ids)))))


def items(letters: Iterable[Entry], base: str, namespace: str, cluster: Cluster) -> list[Item]:
    """Return the target of each dead letter: its function, if a Trigger delivers such an event to that function.

    The address is the URL `base` plus the function's name; if `base` is "", the Triggers name the addresses. Raises
    `NoResult` if no Trigger exists.
    """
    letters = list(letters)
    if not letters:
        return []
    from console.operations.replay_runner import Targets, Wanted  # slow import, not needed to list dead letters

    targets = Targets(Wanted(base=base, namespace=namespace), cluster)
    return [item_of(letter, targets) for letter in letters]


def item_of(letter: Entry, targets: Targets) -> Item:
    """Return the target of one dead letter; the addresses of the event's other subscribers do not matter."""
    function = function_of(letter)
    if function not in targets.functions(original(letter.event)):
        return Item(letter, "", f"no Trigger delivers such an event to {function or 'a function that is not named'}")
    try:
        return Item(letter, targets.url(function))
    except NoResult:
        problem = f"no Trigger says where {function} is: name the URL below it by --functions or $FUNCTIONS"
        return Item(letter, "", problem)


def redriven(found: Sequence[Item], broker: str, book: Journal) -> Iterator[Result]:
    """Redrive the dead letters one by one, and record each attempt at once; a failure does not stop the others.

    A dead letter gets no attempt if it is already being redriven, has been redriven, or was removed from the journal.
    """
    for item in found:
        yield _redriven(item, broker, book)


def _redriven(item: Item, broker: str, book: Journal) -> Result:
    if item.problem:
        return Result(item, None, item.problem)
    with _claimed(item.letter.seq, book) as mine:
        if not mine:
            return Result(item, None, "it is being redriven already")
        letter = _recorded(item.letter, book)
        if letter is None:
            return Result(item, None, "the journal has it no more: list what is open now, and choose again")
        if not is_open(letter):
            return Result(item, None, "it was redriven meanwhile", is_closed=True)
        made = redrive(letter, item.url, broker)
        book.write_attempts([made])
        return Result(item, made)


@contextmanager
def _claimed(seq: int, book: Journal) -> Iterator[bool]:
    """Yield whether only this call redrives the dead letter, in this process and in others on the same PostgreSQL."""
    with GUARD:
        mine = seq not in UNDER_WAY
        UNDER_WAY.add(seq)
    if not mine:
        yield False
        return
    try:
        with book.redriving(seq) as alone:
            yield alone
    finally:
        UNDER_WAY.discard(seq)


def _recorded(letter: Entry, book: Journal) -> Entry | None:
    """Return the recorded dead letter in full, or None if it no longer exists.

    Its number may now belong to another event, if the journal's file was replaced or pruned completely.
    """
    keys, found = event_keys(letter.event), book.select(Query(dead=True, numbers=(letter.seq,)))
    return next((one for one in found if event_keys(one.event) == keys), None)


class Run:
    """A redrive in a thread of its own, with readable progress; it calls `told` with each result."""

    def __init__(
        self, found: Sequence[Item], broker: str, book: Journal, told: Callable[[Result], None] = lambda _result: None
    ) -> None:
        self.found = found
        self.results: list[Result] = []
        self._error, self._told = "", told
        self._thread = threading.Thread(target=self._work, args=(broker, book), name="redrive", daemon=True)
        self._thread.start()

    def _work(self, broker: str, book: Journal) -> None:
        try:
            for result in redriven(self.found, broker, book):
                self.results.append(result)
                self._told(result)
        except OSError as error:  # from the journal: a dead letter without a recorded attempt stays open
            self._error = str(error)
            for item in self.found[len(self.results) :]:
                self._told(Result(item, None, self._error))

    def await_end(self, seconds: float) -> None:
        """Wait until all dead letters are redriven, at most `seconds`."""
        self._thread.join(seconds)

    @property
    def under_way(self) -> bool:
        """Return whether the thread is still running."""
        return self._thread.is_alive()

    @property
    def error(self) -> str:
        """Return the error that stopped the thread early, "" if there is none."""
        return self._error


def broker_address(cluster: Cluster, namespace: str) -> str:
    """Return the Broker's address from its status. Raises `NoResult` if no Broker has one."""
    from kube.client.api import absent_ok  # slow import, not needed to list dead letters

    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers"
    found = cluster.run(absent_ok(cluster.api.list(path)))
    for item in found["items"] if found else []:
        if url := ((item.get("status") or {}).get("address") or {}).get("url"):
            return str(url)
    raise NoResult(f"no Broker in namespace {namespace} says its address: name it by --broker or $BROKER")


def letter_fields(letter: Entry) -> dict[str, Any]:
    """Return one dead letter as JSON data."""
    why = letter.dead_letter
    return {
        "event": letter.event.get_id(),
        "source": letter.event.get_source(),
        "type": letter.event.get_type(),
        "node": letter.node,
        "maintenance": letter.maintenance,
        "arrived": letter.arrived.isoformat(),
        "function": function_of(letter),
        "destination": why.destination if why else "",
        "code": why.code if why else 0,
        "reason": why.data if why else "",
        "open": is_open(letter),
    }
