"""Starts the observer and keeps what it saw; whoever measures asks for the moment at which something was seen."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PATIENCE = 600.0
"""Seconds that one drain may take."""


class Watching:
    """The observer's process and its lines, from the moment its watches stand until the end of the block."""

    def __init__(self, kubeconfig: Path) -> None:
        command = [sys.executable, "-m", "bench.observer", str(kubeconfig)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._seen: list[dict[str, Any]] = []
        self._changed = threading.Condition()
        threading.Thread(target=self._read, name="observer", daemon=True).start()

    def __enter__(self) -> Watching:
        self.first("synced")
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait()

    def first(self, what: str, name: str = "", value: str | None = None, *, since: float = 0.0) -> float:
        """The moment at which that was first seen; waits for it. Raises `TimeoutError` after `PATIENCE`."""

        def fits(line: dict[str, Any]) -> bool:
            found = (line["what"], line["name"]) == (what, name) and line["at"] >= since
            return found and value in (None, line["value"])

        return self._await(lambda: next((float(line["at"]) for line in self._seen if fits(line)), 0.0), what, name)

    def in_service(self, nodes: Iterable[str], since: float) -> float:
        """The moment at which the last of these nodes was seen to be back in service, after `since`."""
        return max(self.first("node", node, "in", since=since) for node in nodes)

    def last_gone(self, names: set[str]) -> float:
        """The moment at which the last of these pods was seen to be gone."""

        def last() -> float:
            gone = {line["name"]: line["at"] for line in self._seen if line["what"] == "pod gone"}
            return max(gone[name] for name in names) if names <= gone.keys() else 0.0

        return self._await(last, "pod gone", f"{len(names)} pods")

    def forget(self) -> None:
        """What was seen until now is no longer asked for."""
        with self._changed:
            self._seen.clear()

    def _await(self, moment: Callable[[], float], what: str, name: str) -> float:
        with self._changed:
            found = self._changed.wait_for(moment, PATIENCE)
        if not found:
            raise TimeoutError(f"not seen within {PATIENCE:.0f} s: {what} {name}")
        return float(found)

    def _read(self) -> None:
        for line in self._process.stdout or ():
            with self._changed:
                self._seen.append(json.loads(line))
                self._changed.notify_all()
