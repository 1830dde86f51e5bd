"""Starts the observer process and stores its output, so that measurements can query when a change was observed."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path

ROOT = Path(__file__).parents[1]
TIMEOUT_SECONDS = 600.0
"""Timeout of one drain."""


class ObserverProcess:
    """The observer process and its output; entering the context waits until the observer's watches are synced."""

    def __init__(self, kubeconfig: Path) -> None:
        command = [sys.executable, "-m", "bench.observer", str(kubeconfig)]
        self._process = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        self._seen: dict[tuple[str, str], list[tuple[float, str]]] = defaultdict(list)
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader_thread = threading.Thread(target=self._read_lines, name="observer", daemon=True)
        self._reader_thread.start()

    def __enter__(self) -> ObserverProcess:
        self.wait_for_change("synced")
        return self

    def __exit__(self, *_: object) -> None:
        with self._process:
            self._process.terminate()
            self._reader_thread.join()

    def wait_for_change(self, kind: str, name: str = "", value: str | None = None, *, since: float = 0.0) -> float:
        """Wait until the observer reports this change of an object; return the time at which it was observed first.

        Raises `TimeoutError` after `TIMEOUT_SECONDS`, and `RuntimeError` if the observer process has exited.
        """
        return self.wait_for_changes(kind, [name], value, since=since)

    def wait_for_changes(
        self, kind: str, names: Iterable[str], value: str | None = None, *, since: float = 0.0
    ) -> float:
        """Wait until the observer has reported this change for all objects; return the time of the latest change.

        Raises the errors of `wait_for_change`.
        """
        all_names = list(names)

        def find_first_time(name: str) -> float:
            times = (
                at for at, observed_value in self._seen[kind, name] if at >= since and value in (None, observed_value)
            )
            return next(times, 0.0)

        def find_latest_time() -> float:
            times: list[float] = []
            for name in all_names:
                times.append(find_first_time(name))
                if not times[-1]:
                    return 0.0
            return max(times)

        return self._wait_for_observation(
            find_latest_time, kind, all_names[0] if len(all_names) == 1 else f"{len(all_names)} objects"
        )

    def wait_until_schedulable(self, nodes: Iterable[str], since: float) -> float:
        """Wait until all nodes have become schedulable and untainted since `since`; return the latest change's time."""
        return self.wait_for_changes("node", nodes, "in", since=since)

    def wait_until_pods_gone(self, pods: set[str]) -> float:
        """Wait until the observer has reported the deletion of all pods; return the time of the latest deletion."""

        def find_latest_time() -> float:
            observations = [self._seen["pod gone", name] for name in pods]
            return max(times[-1][0] for times in observations) if all(observations) else 0.0

        return self._wait_for_observation(find_latest_time, "pod gone", f"{len(pods)} pods")

    def reset(self) -> None:
        """Discard all earlier observations."""
        with self._changed:
            self._seen.clear()

    def _wait_for_observation(self, find_time: Callable[[], float], kind: str, name: str) -> float:
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or find_time(), TIMEOUT_SECONDS)
            observed_at = find_time()
        if not observed_at and self._has_ended:
            raise RuntimeError(f"observer exited before it observed: {kind} {name}")
        if not observed_at:
            raise TimeoutError(f"not observed within {TIMEOUT_SECONDS:.0f} s: {kind} {name}")
        return observed_at

    def _read_lines(self) -> None:
        for line in self._process.stdout or ():
            with self._changed:
                change = json.loads(line)
                self._seen[change["what"], change["name"]].append((float(change["at"]), change["value"]))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()
