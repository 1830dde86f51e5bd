"""Draws the recorded events of a maintenance or run: one lane per function, time from left to right. Pure functions.

A drain consists of bursts of milliseconds and waits of minutes. Long waits are therefore shortened and marked.
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
"""Lanes from top to bottom, in the order of a maintenance and of a run; other event sources come first."""
PIXELS_PER_SECOND = 400.0
MIN_GAP_PIXELS, MAX_GAP_PIXELS = 9.0, 46.0
"""Pixels between two moments: the minimum separates the moments, the maximum limits the width of a wait."""
LANE_HEIGHT, TOP_MARGIN, SIDE_MARGIN = 26, 24, 14
"""Pixels: height of a lane, top margin for times, margin at the left and right.

The names of the lanes are outside the drawing; console.css gives them the same height and top margin.
"""
MIN_BAR_WIDTH = 5.0
LONG_WAIT_SECONDS = 1.0
"""Duration of a wait from which on the drawing marks that the wait is shortened."""
MIN_TICK_PIXELS = 18.0
"""Distance of two time labels in pixels; the page hides labels that overlap at its width and zoom."""


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
    """A time label, the clock time in UTC; `follows_gap` is true if a long wait precedes the label."""

    x: float
    text: str
    follows_gap: bool


@dataclass(frozen=True)
class Diagram:
    """The complete drawing, in pixels of its natural width; the page scales all horizontal positions to its own width.

    `day` is the date of the first moment in UTC.
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
    """A mapping from times to pixels: proportional within a burst, shortened during a wait."""

    def __init__(self, times: Iterable[datetime]) -> None:
        self._times = sorted(set(times))
        self._pixels = [float(SIDE_MARGIN)]
        for before, after in zip(self._times, self._times[1:], strict=False):
            proportional = (after - before).total_seconds() * PIXELS_PER_SECOND
            self._pixels.append(self._pixels[-1] + min(MAX_GAP_PIXELS, max(MIN_GAP_PIXELS, proportional)))

    @property
    def start(self) -> datetime:
        """Return the first moment."""
        return self._times[0]

    @property
    def end(self) -> float:
        """Return the pixel of the last moment."""
        return self._pixels[-1]

    def __call__(self, time: datetime) -> float:
        """Return the pixel of a moment, interpolated between known moments."""
        index = bisect_right(self._times, time) - 1
        if index < 0:
            return self._pixels[0]
        if index + 1 >= len(self._times):
            return self._pixels[-1]
        before, after = self._times[index], self._times[index + 1]
        fraction = (time - before) / (after - before)
        return self._pixels[index] + fraction * (self._pixels[index + 1] - self._pixels[index])

    def build_ticks(self) -> list[AxisTick]:
        """Return a time label wherever there is enough space."""
        ticks: list[AxisTick] = []
        previous = self._times[0]
        for time, x in zip(self._times, self._pixels, strict=True):
            follows_gap = (time - previous).total_seconds() > LONG_WAIT_SECONDS
            if not ticks or x - ticks[-1].x >= MIN_TICK_PIXELS:
                ticks.append(AxisTick(x, format_clock_time(time), follows_gap))
            previous = time
        return ticks


def format_clock_time(time: datetime) -> str:
    """Format the clock time in UTC with tenths of a second, which distinguish the steps of a drain."""
    return f"{time.astimezone(timezone.utc):%H:%M:%S.%f}"[:-5]


def get_emitter(entry: Entry) -> str:
    """Return the emitter of the event: the name of our function, or of another event source."""
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
    """Return the attempts that are not replays."""
    return [attempt for attempt in entry.attempts if not attempt.replay]


def build_diagram(entries: Sequence[Entry]) -> Diagram | None:
    """Draw these events; return None if there are none."""
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
    """Return when the event was emitted: its own time if set, but never later than its arrival or an attempt."""
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
    """Yield a line from each event to each attempt, except attempts of `record`, which receives all events."""
    for entry in entries:
        ring = rings[entry.seq]
        for attempt, bar in zip(list_attempts_without_replays(entry), bars[entry.seq], strict=True):
            if attempt.function != "record" and bar.y != ring.y:
                yield Line(ring.x, ring.y, bar.x, bar.y)
