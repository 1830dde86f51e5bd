"""Follows the local delivery's log: prints each delivered event, and finally summarizes the calls of the functions."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from eventing import logs
from eventing.events import shorten_type
from eventing.subscriptions import parse_function_name
from localcluster.errors import LocalClusterError

EVENT_TYPE_PREFIX = "dev.nodemaintenance."
POLL_SECONDS = 0.02
"""Interval between reads of the log; a portable notification that a file has grown does not exist."""


class EventLogFollower:
    """Follows the local delivery's log in a thread during the `with` block; skips the lines that the log already has.

    Args:
        log: The log's path.
        print_line: Called with each line to print; by default, nothing is printed.
        width: The width of the column with the function's name.
    """

    def __init__(self, log: Path, print_line: Callable[[str], None] = lambda line: None, width: int = 8) -> None:
        self._log, self._print_line, self._width = log, print_line, width
        self._changed = threading.Condition()
        self._stopping = threading.Event()
        self._entries: list[dict[str, Any]] = []
        self._started_at = 0.0
        self._thread = threading.Thread(target=self._follow_log, name="event-log", daemon=True)

    def __enter__(self) -> EventLogFollower:
        self._position = self._log.stat().st_size
        self._started_at = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()

    def print_between_entries(self, line: str) -> None:
        """Print a line from another source between the event lines."""
        with self._changed:
            self._print_line(line)

    def wait_for_events(self, event_type: str, timeout: float, count: int = 1) -> None:
        """Return once `count` events of this type were accepted. Raises `LocalClusterError` after `timeout` seconds."""
        with self._changed:
            if not self._changed.wait_for(
                lambda: sum(_is_accepted_event(entry, event_type) for entry in self._entries) >= count, timeout
            ):
                raise LocalClusterError(f"event {event_type}: accepted fewer than {count} times within {timeout:.0f} s")

    def summarize_calls(self) -> list[str]:
        """Return one line per function, with the number of its calls and their median and longest duration."""
        durations: dict[str, list[float]] = {}
        for entry in self._entries:
            if entry["msg"] == "delivered" and "trigger" in entry:
                durations.setdefault(parse_function_name(entry["trigger"]), []).append(float(entry["ms"]))
        lines = []
        for function, ms in durations.items():
            ms.sort()
            median, longest = ms[len(ms) // 2], ms[-1]
            calls = f"{function:{self._width}} called {len(ms):3d} times"
            lines.append(f"{calls}, median {median:6.1f} ms, longest {longest:6.1f} ms")
        return sorted(lines)

    def _follow_log(self) -> None:
        with self._log.open() as file:
            file.seek(self._position)
            incomplete_line = ""
            while True:
                is_stopping = self._stopping.is_set()
                incomplete_line += file.read()
                *lines, incomplete_line = incomplete_line.split("\n")
                for line in lines:
                    self._handle_line(line)
                if is_stopping:
                    return
                self._stopping.wait(POLL_SECONDS)

    def _handle_line(self, line: str) -> None:
        entry = logs.parse_log_line(line)
        if entry is None:
            return
        with self._changed:
            self._entries.append(entry)
            if _is_worth_printing(entry):
                self._print_line(self._format_entry(entry))
            self._changed.notify_all()

    def _format_entry(self, entry: dict[str, Any]) -> str:
        kind = shorten_type(str(entry["type"]))
        function = parse_function_name(str(entry["trigger"]))
        seconds, ms = entry["ts"] - self._started_at, float(entry["ms"])
        return f"  +{seconds:7.3f} s {kind:26} ─▶ {function:{self._width}} {ms:6.1f} ms"


def _is_accepted_event(entry: dict[str, Any], event_type: str) -> bool:
    return bool(entry["msg"] == "accepted" and entry.get("type") == event_type)


def _is_worth_printing(entry: dict[str, Any]) -> bool:
    """Return whether to print the entry: a delivery to a function that acts on the event.

    Deliveries to `record` are not printed, because it receives every event, nor are updates that have no effect.
    """
    if entry["msg"] != "delivered" or str(entry.get("trigger", "")).startswith("record"):
        return False
    if str(entry["type"]).startswith(EVENT_TYPE_PREFIX) or str(entry["type"]).endswith(".add"):
        return True
    return entry.get("status") != 204
