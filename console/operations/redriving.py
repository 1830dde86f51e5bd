"""Dead letters for commands and pages: where to deliver one again, doing so for several, and the fields of one.

A dead letter names the address that it could not be delivered to; whoever may post to `record` may have written that.
So the address is taken from the Triggers, and the letter says only which function it was.

Of two that redrive one at once one does: in one process always, and in several at one PostgreSQL, as the pods of the
console are. Several at one SQLite may deliver it twice, which functions tolerate.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from console.operations.errors import NoResult
from eventing.deadletters import original
from eventing.journal.entries import Attempt, Entry, Query
from eventing.journal.keys import event_keys
from eventing.journal.portions import bare
from eventing.replay.redrive import function_of, is_open, redrive, still_open

if TYPE_CHECKING:
    from console.operations.replaying import Targets
    from eventing.journal.store import Journal
    from kube.door.sync_client import Cluster

UNDER_WAY: set[int] = set()
"""Numbers of the dead letters that this process redrives now."""
GUARD = threading.Lock()


@dataclass(frozen=True)
class Item:
    """One dead letter to redrive.

    Attributes:
        url: where its function is; "" where `problem` says why nobody knows.
    """

    letter: Entry
    url: str
    problem: str = ""


@dataclass(frozen=True)
class Result:
    """What became of one: the attempt, or, where none was made, the problem.

    Attributes:
        is_closed: somebody redrove it meanwhile, or another letter of that event and function: nothing is left to do.
    """

    item: Item
    attempt: Attempt | None
    problem: str = ""
    is_closed: bool = False

    @property
    def failed(self) -> bool:
        """Whether the dead letter is still open."""
        return not self.is_closed and (self.attempt is None or self.attempt.failed)


def waiting(book: Journal, ids: tuple[str, ...]) -> list[Entry]:
    """The dead letters that are open, of these ids or all, bare: each is read whole when it is redriven."""
    return list(map(bare, still_open(book.each(Query(dead=True, ids=ids)))))


def items(letters: Iterable[Entry], base: str, namespace: str, cluster: Cluster) -> list[Item]:
    """Where each is to be delivered: to the function of its name, if a Trigger delivers such an event to it.

    Functions are found below the URL `base`, with "" where their Triggers say. Raises `NoResult` without any Trigger.
    """
    letters = list(letters)
    if not letters:
        return []
    from console.operations.replaying import Targets, Wanted  # no dead letter is listed the later for it

    targets = Targets(Wanted(base=base, namespace=namespace), cluster)
    return [item_of(letter, targets) for letter in letters]


def item_of(letter: Entry, targets: Targets) -> Item:
    """Where this one is to be delivered; where the other functions are that take its event is nothing to it."""
    function = function_of(letter)
    if function not in targets.functions(original(letter.event)):
        return Item(letter, "", f"no Trigger delivers such an event to {function or 'a function that is not named'}")
    try:
        return Item(letter, targets.url(function))
    except NoResult:
        problem = f"no Trigger says where {function} is: name the URL below it by --functions or $FUNCTIONS"
        return Item(letter, "", problem)


def redriven(found: Sequence[Item], broker: str, book: Journal) -> Iterator[Result]:
    """Redrive one after another, each attempt recorded as soon as it is made; what fails hides none of the others.

    One that is under way, was redriven meanwhile, or is not in the journal any more is left alone.
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
    """Whether nobody else redrives it, in this process or another one."""
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
    """The letter as it is recorded now, whole, None when it is not there any more.

    Its number may be another one's since, in a file that was replaced or of which all was pruned.
    """
    keys, found = event_keys(letter.event), book.select(Query(dead=True, numbers=(letter.seq,)))
    return next((one for one in found if event_keys(one.event) == keys), None)


class Run:
    """Redrives in a thread of its own; whoever looks sees how far it is. `told` hears what became of each."""

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
        except OSError as error:  # of the journal: what was not written down is open, and may be redriven again
            self._error = str(error)
            for item in self.found[len(self.results) :]:
                self._told(Result(item, None, self._error))

    def await_end(self, seconds: float) -> None:
        """Wait until all are redriven, at most so long."""
        self._thread.join(seconds)

    @property
    def under_way(self) -> bool:
        """Whether it is not at its end."""
        return self._thread.is_alive()

    @property
    def error(self) -> str:
        """What ended it early, "" for nothing."""
        return self._error


def broker_address(cluster: Cluster, namespace: str) -> str:
    """The address that Knative gave the Broker. Raises `NoResult` where no Broker has one."""
    from kube.door.api import absent_ok  # no dead letter is shown the later for it

    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers"
    found = cluster.run(absent_ok(cluster.api.list(path)))
    for item in found["items"] if found else []:
        if url := ((item.get("status") or {}).get("address") or {}).get("url"):
            return str(url)
    raise NoResult(f"no Broker in namespace {namespace} says its address: name it by --broker or $BROKER")


def letter_fields(letter: Entry) -> dict[str, Any]:
    """One dead letter as JSON."""
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
