"""The costs of a drain: events, API requests, CPU time and memory by process, and the events' waiting times."""

from __future__ import annotations

import os
import sqlite3
import statistics
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from bench.api_requests import AuditLog, counted
from bench.rig import Rig
from eventing import logs
from eventing.subscriptions import function_of

TICKS = os.sysconf("SC_CLK_TCK")
LATE = 1.5
"""Seconds after which an event is in the journal at the latest."""
PODSOURCE = "podsource"
PODSOURCE_COMMAND = b"eventing.podsource"
WAITS = """
    SELECT json_extract(bodies.event, '$.time'), min(attempts.at), attempts.function FROM attempts
    JOIN events ON events.id = attempts.event AND events.source = attempts.source AND events.destination = ''
    JOIN bodies ON bodies.seq = events.seq
    WHERE attempts.at >= ? AND attempts.replay = '' AND attempts.function != 'record'
    GROUP BY attempts.event, attempts.source, attempts.function
"""


PACED = "evict"
"""The function whose events wait for earlier evictions, which are rate-limited."""
BESIDE_PACED = f"longest but {PACED}"
AT_DOOR = "longest at a door"
BEGUN = "SELECT event, source, function, max(at) FROM attempts WHERE at >= ? GROUP BY 1, 2, 3 HAVING count(*) = 1"


@dataclass(frozen=True)
class Costs:
    """The costs of a period.

    Attributes:
        events: Number of events by type.
        requests: Number of the product's API requests by verb and resource, without watches.
        cpu: CPU seconds by process.
        memory: Peak resident MiB of a process and its children since its start, by process.
        waits: Seconds from an event to the function's first attempt: median, 99th percentile, longest, and longest
            except for `evict`. On the local delivery also the longest time that a request was queued in a function's
            server.
    """

    events: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)


class Meter:
    """Measures the costs of a cluster from its creation on."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._since = time.time()
        self._log = AuditLog(audit_log(rig))
        self._events, self._cpu = _events(rig.journal), cpu(rig)

    def spent(self) -> Costs:
        """Return the costs so far; the requests count from the previous call."""
        requests, spent = counted(self._log.read()), _less(cpu(self._rig), self._cpu)
        most = {name: memory(pids) for name, pids in families(self._rig.processes).items()}
        time.sleep(LATE)
        events = _less(_events(self._rig.journal), self._events)
        waited = waits(self._rig.journal, self._since) | at_door(
            self._rig.journal, delivery_log(self._rig), self._since
        )
        return Costs(events, requests, spent, most, waited)


def audit_log(rig: Rig) -> Path:
    """Return the audit log of the cluster's API server."""
    return rig.directory / "servers" / "audit.log"


def delivery_log(rig: Rig) -> Path:
    """Return the log of the local delivery; other engines do not have one."""
    return rig.directory / "product" / "delivery.log"


def cpu(rig: Rig) -> dict[str, float]:
    """Return the CPU seconds of each process since its start."""
    return {name: sum(map(cpu_seconds, pids)) for name, pids in families(rig.processes).items()}


def families(processes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the process tree of each process; PodSource is listed separately, whichever process started it."""
    found: dict[str, list[int]] = {}
    for name, pid in processes.items():
        for each in tree(pid):
            found.setdefault(PODSOURCE if _is_podsource(each) else name, []).append(each)
    return found


def _is_podsource(pid: int) -> bool:
    with suppress(OSError):
        return PODSOURCE_COMMAND in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _less(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    changed = {name: round(count - before.get(name, 0), 3) for name, count in now.items()}
    return {name: count for name, count in changed.items() if count}


def _events(journal: Path) -> dict[str, float]:
    with closing(opened(journal)) as database:
        return dict(database.execute("SELECT type, count(*) FROM events WHERE destination = '' GROUP BY type"))


def opened(journal: Path) -> sqlite3.Connection:
    """Open the journal's database read-only."""
    return sqlite3.connect(f"file:{journal}?mode=ro", uri=True)


def waits(journal: Path, since: float) -> dict[str, float]:
    """Return how long events waited for their functions, for attempts since this time; empty if there were none."""
    with closing(opened(journal)) as database:
        rows = [row for row in database.execute(WAITS, (since,)) if row[0]]
    found = sorted((begun - _seconds(emitted), function) for emitted, begun, function in rows)
    others = [seconds for seconds, function in found if function != PACED]
    beside = {BESIDE_PACED: round(others[-1], 3)} if others else {}
    return spread([seconds for seconds, _ in found]) | beside if found else {}


def at_door(journal: Path, log: Path, since: float) -> dict[str, float]:
    """Return the longest time that a request was queued in a function's server, from its post to the first attempt.

    Only first deliveries since `since` count. The result is empty if the delivery has no log.
    """
    if not log.exists():
        return {}
    with closing(opened(journal)) as database:
        begun = {tuple(row[:3]): row[3] for row in database.execute(BEGUN, (since,))}
    found = []
    for entry in filter(None, map(logs.entry_of, log.read_text().splitlines())):
        if entry["msg"] == "delivered" and entry["ts"] >= since:
            posted = entry["ts"] - entry["ms"] / 1000
            found.append(begun.get((entry["id"], entry["source"], function_of(entry["trigger"])), posted) - posted)
    return {AT_DOOR: round(max(found), 3)} if found else {}


def spread(waits: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the longest of sorted values."""
    most = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
    return {"median": round(statistics.median(waits), 3), "99 %": round(most, 3), "longest": round(waits[-1], 3)}


def _seconds(moment: str) -> float:
    """Return a timestamp in seconds since 1970; Go writes up to nine fractional digits, of which Python parses six."""
    whole, _, rest = moment.replace("Z", "").replace("+00:00", "").partition(".")
    return datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}+00:00").timestamp()


def tree(pid: int) -> Iterator[int]:
    """Yield a process and all its descendants."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    """Return the user and system CPU time of a process; 0 if it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def memory(pids: Sequence[int]) -> float:
    """Return the memory of a process tree in MiB: the peak of its largest process plus the others' private memory now.

    Memory that a forked child shares with its parent counts once.
    """
    largest = max(pids, key=peak_mebibytes)
    return round(peak_mebibytes(largest) + sum(own_mebibytes(pid) for pid in pids if pid != largest), 1)


def own_mebibytes(pid: int) -> float:
    """Return the private resident memory of a process in MiB; 0 if it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    return 0.0


def peak_mebibytes(pid: int) -> float:
    """Return the peak resident memory of a process in MiB; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
