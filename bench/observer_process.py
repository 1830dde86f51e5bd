"""Starts the observer and keeps its output, so that measurements can get the time of an observed change."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATIENCE = 600.0
"""Timeout of one drain, in seconds."""


class Watching:
    """The observer's process and its output; entering waits until its watches are synced."""

    def __init__(self, kubeconfig: Path) -> None:
        command = [sys.executable, "-m", "bench.observer", str(kubeconfig)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._seen: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._ended = False
        self._reader = threading.Thread(target=self._read, name="observer", daemon=True)
        self._reader.start()

    def __enter__(self) -> Watching:
        self.first("synced")
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.terminate()
            self._reader.join()

    def first(self, what: str, name: str = "", value: str | None = None, *, since: float = 0.0) -> float:
        """Return the time at which the change was first observed; wait for it.

        Raises `TimeoutError` after `PATIENCE`, and `RuntimeError` if the observer has exited.
        """

        return self.last(what, [name], value, since=since)

    def last(self, what: str, names: Iterable[str], value: str | None = None, *, since: float = 0.0) -> float:
        """Return the time at which the last of these changes was first observed; wait for all (errors: see `first`)."""
        wanted = list(names)

        def first(name: str) -> float:
            fitting = (at for at, said in self._seen[what, name] if at >= since and value in (None, said))
            return next(fitting, 0.0)

        def moment() -> float:
            found: list[float] = []
            for name in wanted:
                found.append(first(name))
                if not found[-1]:
                    return 0.0
            return max(found)

        return self._await(moment, what, wanted[0] if len(wanted) == 1 else f"{len(wanted)} of them")

    def in_service(self, nodes: Iterable[str], since: float) -> float:
        """Return the time after `since` at which the last of these nodes was seen schedulable and untainted."""
        return self.last("node", nodes, "in", since=since)

    def last_gone(self, names: set[str]) -> float:
        """Return the time at which the last of these pods was observed to be gone."""

        def last() -> float:
            gone = [self._seen["pod gone", name] for name in names]
            return max(moments[-1][0] for moments in gone) if all(gone) else 0.0

        return self._await(last, "pod gone", f"{len(names)} pods")

    def forget(self) -> None:
        """Discard all earlier observations."""
        with self._changed:
            self._seen.clear()

    def _await(self, moment: Callable[[], float], what: str, name: str) -> float:
        with self._changed:
            self._changed.wait_for(lambda: self._ended or moment(), PATIENCE)
            found = moment()
        if not found and self._ended:
            raise RuntimeError(f"the observer has ended, and had not seen: {what} {name}")
        if not found:
            raise TimeoutError(f"not seen within {PATIENCE:.0f} s: {what} {name}")
        return found

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with self._changed:
                seen = json.loads(line)
                self._seen[seen["what"], seen["name"]].append((float(seen["at"]), seen["value"]))
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()
