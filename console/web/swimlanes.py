"""Draws the recorded events of a maintenance or run: one lane per function, time from left to right. Pure functions.

A drain consists of bursts of milliseconds and waits of minutes. A wait is therefore drawn short and marked.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import chain

from eventing.event_types import short
from eventing.events import SOURCE
from eventing.journal.entries import Attempt, Entry

STEPS = (
    *("begin", "cordon", "taint", "evict", "status", "guard", "resync", "restore"),
    *("check-rule", "check-target", "check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes"),
    *("edit-pools", "run-job", "release-node", "await-version", "restore-pools", "resync-runs", "record"),
)
"""Lanes from top to bottom, in the order of a maintenance and of a run; other event sources come first."""
PIXELS_A_SECOND = 400.0
LEAST, MOST = 9.0, 46.0
"""Pixels between two moments: the minimum keeps them apart, the maximum keeps a wait short."""
LANE, TOP, LEFT, RIGHT = 26, 24, 110, 60
"""Pixels: height of a lane, top margin for times, left margin for names, right margin for the last time."""
SHORTEST_BAR = 5.0


@dataclass(frozen=True)
class Bar:
    """An attempt, drawn as a bar in the lane of its function."""

    seq: int
    x: float
    y: float
    width: float
    bad: bool
    title: str


@dataclass(frozen=True)
class Ring:
    """An event, drawn as a ring in the lane of its emitter."""

    seq: int
    x: float
    y: float
    bad: bool
    title: str


@dataclass(frozen=True)
class Line:
    """A line from an event to an attempt on it."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class Tick:
    """A time label in seconds after the first moment; `wait` marks a long wait before it."""

    x: float
    text: str
    wait: bool


@dataclass(frozen=True)
class Picture:
    """The complete drawing, in pixels."""

    width: float
    height: float
    lanes: tuple[tuple[str, float], ...]
    attempts: tuple[Bar, ...]
    events: tuple[Ring, ...]
    lines: tuple[Line, ...]
    ticks: tuple[Tick, ...]


class Scale:
    """A mapping from times to pixels: proportional within a burst, shortened in a wait."""

    def __init__(self, moments: Iterable[datetime]) -> None:
        self._moments = sorted(set(moments))
        self._pixels = [float(LEFT)]
        for before, after in zip(self._moments, self._moments[1:], strict=False):
            wide = (after - before).total_seconds() * PIXELS_A_SECOND
            self._pixels.append(self._pixels[-1] + min(MOST, max(LEAST, wide)))

    @property
    def end(self) -> float:
        """Return the pixel of the last moment."""
        return self._pixels[-1]

    def __call__(self, moment: datetime) -> float:
        """Return the pixel of a moment; between known moments it is interpolated."""
        at = bisect_right(self._moments, moment) - 1
        if at < 0:
            return self._pixels[0]
        if at + 1 >= len(self._moments):
            return self._pixels[-1]
        before, after = self._moments[at], self._moments[at + 1]
        share = (moment - before) / (after - before)
        return self._pixels[at] + share * (self._pixels[at + 1] - self._pixels[at])

    def ticks(self) -> list[Tick]:
        """Return a time label wherever there is enough space, and after each long wait."""
        found: list[Tick] = []
        last = self._moments[0]
        for moment, x in zip(self._moments, self._pixels, strict=True):
            wait = (moment - last).total_seconds() * PIXELS_A_SECOND > MOST
            if not found or x - found[-1].x >= MOST:
                found.append(Tick(x, seconds((moment - self._moments[0]).total_seconds()), wait))
            last = moment
        return found


def seconds(value: float) -> str:
    """Format a duration for display."""
    if value < 10:
        return f"{value:.2f} s"
    return f"{value:.0f} s" if value < 120 else f"{value / 60:.0f} min"


def origin(entry: Entry) -> str:
    """Return the emitter of the event: the name of our function, or of another event source."""
    source = entry.event.get_source()
    if source.startswith(SOURCE):
        return source.removeprefix(SOURCE)
    kind = entry.event.get_type()
    return "API server" if ".apiserver." in kind else "tick" if kind.endswith(".ping") else source.rsplit("/", 1)[-1]


def real(entry: Entry) -> list[Attempt]:
    """Return the attempts that are not replays."""
    return [attempt for attempt in entry.attempts if not attempt.replay]


def draw(entries: Sequence[Entry]) -> Picture | None:
    """Draw these events; return None if there are none."""
    if not entries:
        return None
    scale = Scale([*map(began, entries), *(attempt.at for entry in entries for attempt in real(entry))])
    names = {origin(entry) for entry in entries} | {each.function for entry in entries for each in real(entry)}
    ordered = [*sorted(names - set(STEPS)), *(name for name in STEPS if name in names)]
    rows = {name: TOP + LANE * (number + 0.5) for number, name in enumerate(ordered)}
    bars = {entry.seq: [_bar(entry, each, scale, rows) for each in real(entry)] for entry in entries}
    drawn = tuple(chain.from_iterable(bars.values()))
    rings = {entry.seq: _ring(entry, scale, rows) for entry in entries}
    width = max([scale.end, *(bar.x + bar.width for bar in drawn)]) + RIGHT
    return Picture(
        width,
        TOP + LANE * len(ordered) + 6,
        tuple(rows.items()),
        drawn,
        tuple(rings.values()),
        tuple(_lines(entries, bars, rings)),
        tuple(scale.ticks()),
    )


def began(entry: Entry) -> datetime:
    """Return when the event was emitted: its own time if set, but never later than its arrival or an attempt."""
    emitted = entry.event.get_time() or entry.arrived
    return min([emitted, entry.arrived, *(attempt.at for attempt in real(entry))])


def _bar(entry: Entry, attempt: Attempt, scale: Scale, rows: dict[str, float]) -> Bar:
    x = scale(attempt.at)
    kind = short(entry.event.get_type())
    answer = attempt.error or ", ".join(short(str(reply.get("type", ""))) for reply in attempt.replies) or "no event"
    title = f"{attempt.function} on {kind}: {attempt.status} in {attempt.seconds * 1000:.0f} ms, {answer}"
    width = min(MOST, max(SHORTEST_BAR, attempt.seconds * PIXELS_A_SECOND))
    return Bar(entry.seq, x, rows[attempt.function], width, attempt.failed or bool(attempt.error), title)


def _ring(entry: Entry, scale: Scale, rows: dict[str, float]) -> Ring:
    kind = entry.event.get_type()
    bad = entry.dead_letter is not None or kind.endswith((".failed", ".stopped"))
    return Ring(entry.seq, scale(began(entry)), rows[origin(entry)], bad, f"{short(kind)}, emitted by {origin(entry)}")


def _lines(entries: Sequence[Entry], bars: dict[int, list[Bar]], rings: dict[int, Ring]) -> Iterable[Line]:
    """Yield a line from each event to each attempt, except those of `record`: it consumes all events."""
    for entry in entries:
        ring = rings[entry.seq]
        for attempt, bar in zip(real(entry), bars[entry.seq], strict=True):
            if attempt.function != "record" and bar.y != ring.y:
                yield Line(ring.x, ring.y, bar.x, bar.y)
