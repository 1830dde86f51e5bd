"""What a drain costs: events by type, requests by verb and resource, CPU seconds and peak memory by process, waits."""

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
"""Seconds after which what happened is in the journal, too."""
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
"""Its events wait for the evictions before them: so many a second are sent, and no more."""
BESIDE_PACED = f"longest but {PACED}"
AT_DOOR = "longest at a door"
BEGUN = "SELECT event, source, function, max(at) FROM attempts WHERE at >= ? GROUP BY 1, 2, 3 HAVING count(*) = 1"


@dataclass(frozen=True)
class Costs:
    """What was spent in a while.

    Attributes:
        events: by type.
        requests: of the product, by verb and resource; without watches.
        cpu: seconds, by process.
        memory: most MiB that a process and its children had resident since it was started, by process.
        waits: seconds between an event and the function's first attempt on it: median, of 99 in 100, the longest,
            and the longest for another function than `evict`; on the local delivery also how long a request waited at
            the door of a function, the longest.
    """

    events: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)


class Meter:
    """Measures what is spent on a rig from now on."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._since = time.time()
        self._log = AuditLog(audit_log(rig))
        self._events, self._cpu = _events(rig.journal), cpu(rig)

    def spent(self) -> Costs:
        """What was spent until now; requests: since the last time that this was asked."""
        requests, spent = counted(self._log.read()), _less(cpu(self._rig), self._cpu)
        most = {name: memory(pids) for name, pids in families(self._rig.processes).items()}
        time.sleep(LATE)
        events = _less(_events(self._rig.journal), self._events)
        waited = waits(self._rig.journal, self._since) | at_door(
            self._rig.journal, delivery_log(self._rig), self._since
        )
        return Costs(events, requests, spent, most, waited)


def audit_log(rig: Rig) -> Path:
    """The file in which the rig's API server logs who asked for what."""
    return rig.directory / "servers" / "audit.log"


def delivery_log(rig: Rig) -> Path:
    """The log of the local delivery; other engines have none."""
    return rig.directory / "product" / "delivery.log"


def cpu(rig: Rig) -> dict[str, float]:
    """CPU seconds by process since each was started."""
    return {name: sum(map(cpu_seconds, pids)) for name, pids in families(rig.processes).items()}


def families(processes: Mapping[str, int]) -> dict[str, list[int]]:
    """Each process with all its children's children; PodSource by itself, whoever started it."""
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
    """The journal's database, to read."""
    return sqlite3.connect(f"file:{journal}?mode=ro", uri=True)


def waits(journal: Path, since: float) -> dict[str, float]:
    """How long events waited for their functions, of those that were begun since then; nothing when there were none."""
    with closing(opened(journal)) as database:
        rows = [row for row in database.execute(WAITS, (since,)) if row[0]]
    found = sorted((begun - _seconds(emitted), function) for emitted, begun, function in rows)
    others = [seconds for seconds, function in found if function != PACED]
    beside = {BESIDE_PACED: round(others[-1], 3)} if others else {}
    return spread([seconds for seconds, _ in found]) | beside if found else {}


def at_door(journal: Path, log: Path, since: float) -> dict[str, float]:
    """How long the request waited that waited longest at the door of a function, from its post to the function's work.

    Of those that were delivered since then and at once; nothing where there is no log.
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
    """Median, the one that 99 in 100 do not exceed, and the longest; in: sorted."""
    most = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
    return {"median": round(statistics.median(waits), 3), "99 %": round(most, 3), "longest": round(waits[-1], 3)}


def _seconds(moment: str) -> float:
    """Seconds since 1970. Go writes up to nine digits of a second, of which Python reads six."""
    whole, _, rest = moment.replace("Z", "").replace("+00:00", "").partition(".")
    return datetime.fromisoformat(f"{whole}.{rest[:6]:0<6}+00:00").timestamp()


def tree(pid: int) -> Iterator[int]:
    """A process and all its children's children."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from tree(int(child))


def cpu_seconds(pid: int) -> float:
    """User and system time; 0 when it has ended."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS
    return 0.0


def memory(pids: Sequence[int]) -> float:
    """MiB of a family: the most of its largest process, and what the others have for themselves now.

    What they share with it, as a child does that was forked, is there once.
    """
    largest = max(pids, key=peak_mebibytes)
    return round(peak_mebibytes(largest) + sum(own_mebibytes(pid) for pid in pids if pid != largest), 1)


def own_mebibytes(pid: int) -> float:
    """What is resident and shared with nobody; 0 when it has ended."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    return 0.0


def peak_mebibytes(pid: int) -> float:
    """The most that was resident so far; 0 when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
