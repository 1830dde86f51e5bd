"""The events as they are delivered, read from the delivery's log: printed line by line and summarized at the end."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from eventing import logs
from eventing.subscriptions import function_of
from localcluster.errors import LocalClusterError

OURS = "dev.nodemaintenance."
LOOK_SECONDS = 0.02
"""Interval of polling the log; a portable notification for a growing file does not exist."""


class Flow:
    """Follows a delivery's log in a thread while the block runs; skips the lines that are already in the log.

    Args:
        log: The log's path.
        show: Prints a line; prints nothing by default.
        width: The column width for function names.
    """

    def __init__(self, log: Path, show: Callable[[str], None] = lambda line: None, width: int = 8) -> None:
        self._log, self._show, self._width = log, show, width
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._entries: list[dict[str, Any]] = []
        self._start = 0.0
        self._thread = threading.Thread(target=self._follow, name="flow", daemon=True)

    def __enter__(self) -> Flow:
        self._position = self._log.stat().st_size
        self._start = time.time()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ending.set()
        self._thread.join()

    def interleave(self, line: str) -> None:
        """Print a line from another source between the event lines."""
        with self._changed:
            self._show(line)

    def await_type(self, kind: str, seconds: float, times: int = 1) -> None:
        """Return when `times` events of this type were accepted. Raises `LocalClusterError` after `seconds`."""
        with self._changed:
            if not self._changed.wait_for(lambda: sum(_is(entry, kind) for entry in self._entries) >= times, seconds):
                raise LocalClusterError(f"not {times} times {kind} within {seconds} s")

    def summary(self) -> list[str]:
        """Return, for each function, the number of calls and the median and longest duration."""
        taken: dict[str, list[float]] = {}
        for entry in self._entries:
            if entry["msg"] == "delivered" and "trigger" in entry:
                taken.setdefault(function_of(entry["trigger"]), []).append(float(entry["ms"]))
        lines = []
        for function, ms in taken.items():
            ms.sort()
            median, longest = ms[len(ms) // 2], ms[-1]
            called = f"{function:{self._width}} called {len(ms):3d} times"
            lines.append(f"{called}, median {median:6.1f} ms, longest {longest:6.1f} ms")
        return sorted(lines)

    def _follow(self) -> None:
        with self._log.open() as file:
            file.seek(self._position)
            rest = ""
            while True:
                ending = self._ending.is_set()
                rest += file.read()
                *lines, rest = rest.split("\n")
                for line in lines:
                    self._take(line)
                if ending:
                    return
                self._ending.wait(LOOK_SECONDS)

    def _take(self, line: str) -> None:
        entry = logs.entry_of(line)
        if entry is None:
            return
        with self._changed:
            self._entries.append(entry)
            if _worth_showing(entry):
                self._show(self._line(entry))
            self._changed.notify_all()

    def _line(self, entry: dict[str, Any]) -> str:
        kind = str(entry["type"]).removeprefix(OURS).removeprefix("dev.knative.")
        function = function_of(str(entry["trigger"]))
        seconds, ms = entry["ts"] - self._start, float(entry["ms"])
        return f"  +{seconds:7.3f} s {kind:26} ─▶ {function:{self._width}} {ms:6.1f} ms"


def _is(entry: dict[str, Any], kind: str) -> bool:
    return bool(entry["msg"] == "accepted" and entry.get("type") == kind)


def _worth_showing(entry: dict[str, Any]) -> bool:
    """Return whether to print the entry: a delivery to a function that acts on it.

    `record` receives every event, and most updates need no action.
    """
    if entry["msg"] != "delivered" or str(entry.get("trigger", "")).startswith("record"):
        return False
    if str(entry["type"]).startswith(OURS) or str(entry["type"]).endswith(".add"):
        return True
    return entry.get("status") != 204
