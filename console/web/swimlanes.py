"""Computes a swimlane diagram of a maintenance's or run's recorded events, with one lane per function. Pure functions.

Time runs from left to right. A drain consists of bursts of milliseconds and waits of minutes, so the diagram shortens
and marks long waits.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import chain

from eventing.events import FAILURE_TYPES, SOURCE_PREFIX, shorten_type
from eventing.journal.entries import Attempt, Entry

LANE_ORDER = (
    *("begin", "cordon", "taint", "evict", "status", "guard", "resync", "restore"),
    *("check-rule", "check-target", "check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes"),
    *("edit-pools", "run-job", "release-node", "await-version", "restore-pools", "resync-runs", "record"),
)
"""Order of the functions' lanes from top to bottom; the lanes of event sources are above them."""
PIXELS_PER_SECOND = 400.0
MIN_GAP_PIXELS, MAX_GAP_PIXELS = 9.0, 46.0
"""Minimum and maximum distance in pixels between two consecutive points in time."""
LANE_HEIGHT, TOP_MARGIN, SIDE_MARGIN = 26, 24, 14
"""Height of a lane, margin at the top (for time labels), and margin at the left and right, in pixels.

The names of the lanes are outside the drawing; console.css gives them the same height and top margin.
"""
MIN_BAR_WIDTH = 5.0
LONG_WAIT_SECONDS = 1.0
"""Minimum duration of a wait that the diagram marks as shortened."""
MIN_TICK_PIXELS = 18.0
"""Minimum distance of two time labels in pixels; the page hides labels that overlap at its width and zoom."""


@dataclass(frozen=True)
class Bar:
    """An attempt, drawn as a bar in the lane of its function."""

    seq: int
    x: float
    y: float
    width: float
    is_failed: bool
    title: str


@dataclass(frozen=True)
class Ring:
    """An event, drawn as a ring in the lane of its emitter."""

    seq: int
    x: float
    y: float
    is_failed: bool
    title: str


@dataclass(frozen=True)
class Line:
    """A line from an event to an attempt to process it."""

    x1: float
    y1: float
    x2: float
    y2: float


@dataclass(frozen=True)
class AxisTick:
    """A time label on the axis, in UTC; `follows_gap` is whether a long wait precedes the label."""

    x: float
    text: str
    follows_gap: bool


@dataclass(frozen=True)
class Diagram:
    """The complete diagram, in pixels at its natural width; the page scales all horizontal positions to its own width.

    `lanes` contains each lane's name and vertical position. `day` is the UTC date of the earliest event.
    """

    width: float
    height: float
    lanes: tuple[tuple[str, float], ...]
    attempts: tuple[Bar, ...]
    events: tuple[Ring, ...]
    lines: tuple[Line, ...]
    ticks: tuple[AxisTick, ...]
    day: str


class TimeScale:
    """Scale that maps times to horizontal positions: proportional within a burst, shortened during a wait."""

    def __init__(self, times: Iterable[datetime]) -> None:
        self._times = sorted(set(times))
        self._pixels = [float(SIDE_MARGIN)]
        for before, after in zip(self._times, self._times[1:], strict=False):
            proportional = (after - before).total_seconds() * PIXELS_PER_SECOND
            self._pixels.append(self._pixels[-1] + min(MAX_GAP_PIXELS, max(MIN_GAP_PIXELS, proportional)))

    @property
    def start(self) -> datetime:
        """Return the earliest time on the scale."""
        return self._times[0]

    @property
    def end(self) -> float:
        """Return the position of the latest time, in pixels."""
        return self._pixels[-1]

    def __call__(self, time: datetime) -> float:
        """Return the position of a time in pixels, interpolated between the times on the scale."""
        index = bisect_right(self._times, time) - 1
        if index < 0:
            return self._pixels[0]
        if index + 1 >= len(self._times):
            return self._pixels[-1]
        before, after = self._times[index], self._times[index + 1]
        fraction = (time - before) / (after - before)
        return self._pixels[index] + fraction * (self._pixels[index + 1] - self._pixels[index])

    def build_ticks(self) -> list[AxisTick]:
        """Return time labels with a distance of at least `MIN_TICK_PIXELS`."""
        ticks: list[AxisTick] = []
        previous = self._times[0]
        for time, x in zip(self._times, self._pixels, strict=True):
            follows_gap = (time - previous).total_seconds() > LONG_WAIT_SECONDS
            if not ticks or x - ticks[-1].x >= MIN_TICK_PIXELS:
                ticks.append(AxisTick(x, format_clock_time(time), follows_gap))
            previous = time
        return ticks


def format_clock_time(time: datetime) -> str:
    """Format the UTC time of day with tenths of a second, which distinguish the steps of a drain."""
    return f"{time.astimezone(timezone.utc):%H:%M:%S.%f}"[:-5]


def get_emitter(entry: Entry) -> str:
    """Return the emitter of the event: the name of this product's function, or of an event source."""
    source = entry.event.get_source()
    if source.startswith(SOURCE_PREFIX):
        return source.removeprefix(SOURCE_PREFIX)
    event_type = entry.event.get_type()
    return (
        "API server"
        if ".apiserver." in event_type
        else "tick"
        if event_type.endswith(".ping")
        else source.rsplit("/", 1)[-1]
    )


def list_attempts_without_replays(entry: Entry) -> list[Attempt]:
    """Return the entry's attempts, except replays."""
    return [attempt for attempt in entry.attempts if not attempt.replay]


def build_diagram(entries: Sequence[Entry]) -> Diagram | None:
    """Build the diagram of these events; return None if there are none."""
    if not entries:
        return None
    attempts = [attempt for entry in entries for attempt in list_attempts_without_replays(entry)]
    scale = TimeScale([*map(get_emitted_time, entries), *(attempt.at for attempt in attempts)])
    names = {*map(get_emitter, entries), *(attempt.function for attempt in attempts)}
    ordered = [*sorted(names - set(LANE_ORDER)), *(name for name in LANE_ORDER if name in names)]
    lanes = {name: TOP_MARGIN + LANE_HEIGHT * (number + 0.5) for number, name in enumerate(ordered)}
    bars = {
        entry.seq: [_build_bar(entry, attempt, scale, lanes) for attempt in list_attempts_without_replays(entry)]
        for entry in entries
    }
    rings = {entry.seq: _build_ring(entry, scale, lanes) for entry in entries}
    all_bars = tuple(chain.from_iterable(bars.values()))
    return Diagram(
        width=max([scale.end, *(bar.x + bar.width for bar in all_bars)]) + SIDE_MARGIN,
        height=TOP_MARGIN + LANE_HEIGHT * len(lanes) + 6,
        lanes=tuple(lanes.items()),
        attempts=all_bars,
        events=tuple(rings.values()),
        lines=tuple(_build_lines(entries, bars, rings)),
        ticks=tuple(scale.build_ticks()),
        day=f"{scale.start.astimezone(timezone.utc):%Y-%m-%d}",
    )


def get_emitted_time(entry: Entry) -> datetime:
    """Return the event's `time`, or else its arrival time, but no later time than its arrival and its attempts."""
    emitted = entry.event.get_time() or entry.arrived
    return min([emitted, entry.arrived, *(attempt.at for attempt in list_attempts_without_replays(entry))])


def _build_bar(entry: Entry, attempt: Attempt, scale: TimeScale, lane_y: dict[str, float]) -> Bar:
    x = scale(attempt.at)
    event_type = shorten_type(entry.event.get_type())
    result = (
        attempt.error
        or attempt.reported_error
        or ", ".join(shorten_type(str(reply.get("type", ""))) for reply in attempt.replies)
        or "no event"
    )
    title = f"{attempt.function} on {event_type}: {attempt.status} in {attempt.seconds * 1000:.0f} ms, {result}"
    width = min(MAX_GAP_PIXELS, max(MIN_BAR_WIDTH, attempt.seconds * PIXELS_PER_SECOND))
    return Bar(entry.seq, x, lane_y[attempt.function], width, attempt.step_failed or bool(attempt.error), title)


def _build_ring(entry: Entry, scale: TimeScale, lane_y: dict[str, float]) -> Ring:
    event_type = entry.event.get_type()
    is_failed = entry.dead_letter is not None or event_type in FAILURE_TYPES
    reason = f": {entry.failure_reason}" if entry.failure_reason else ""
    return Ring(
        entry.seq,
        scale(get_emitted_time(entry)),
        lane_y[get_emitter(entry)],
        is_failed,
        f"{shorten_type(event_type)}, emitted by {get_emitter(entry)}{reason}",
    )


def _build_lines(entries: Sequence[Entry], bars: dict[int, list[Bar]], rings: dict[int, Ring]) -> Iterable[Line]:
    """Yield a line from each event to each of its attempts, except those of `record`, which consumes all events."""
    for entry in entries:
        ring = rings[entry.seq]
        for attempt, bar in zip(list_attempts_without_replays(entry), bars[entry.seq], strict=True):
            if attempt.function != "record" and bar.y != ring.y:
                yield Line(ring.x, ring.y, bar.x, bar.y)
