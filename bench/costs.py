"""Measures the costs of a drain: events, API requests, CPU time and memory per process, and events' waiting times."""

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
from typing import Any

from bench.api_requests import AuditLog, count_requests
from bench.rig import Rig
from eventing import logs
from eventing.subscriptions import parse_function_name

CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")
JOURNAL_DELAY_SECONDS = 1.5
"""Maximum delay in seconds between the emission of an event and its insertion into the journal."""
PODSOURCE = "podsource"
PODSOURCE_COMMAND = b"eventing.podsource"
WAITS_QUERY = """
    SELECT json_extract(bodies.event, '$.time'), min(attempts.at), attempts.function FROM attempts
    JOIN events ON events.id = attempts.event AND events.source = attempts.source AND events.destination = ''
    JOIN bodies ON bodies.seq = events.seq
    WHERE attempts.at >= ? AND attempts.replay = '' AND attempts.function != 'record'
    GROUP BY attempts.event, attempts.source, attempts.function
"""
PACED_FUNCTION = "evict"
"""The function whose events wait for earlier evictions, because evictions are rate-limited."""
LONGEST_UNPACED = f"longest except {PACED_FUNCTION}"
LONGEST_QUEUED = "longest in a server queue"
FIRST_ATTEMPTS_QUERY = (
    "SELECT event, source, function, max(at) FROM attempts WHERE at >= ? GROUP BY 1, 2, 3 HAVING count(*) = 1"
)


@dataclass(frozen=True)
class Costs:
    """The resource usage of the product and its cluster during a period.

    Attributes:
        events: The number of events by type.
        requests: The number of the product's API requests by verb and resource, without watches.
        cpu: The CPU seconds by process.
        memory: The peak resident memory in MiB by process, including its children, since the process started.
        waits: Statistics of the seconds from an event to the function's first attempt: median, 99th percentile,
            maximum, and maximum without `evict`. With local delivery, also the longest time that a request was queued
            in a function's server.
    """

    events: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)
    waits: Mapping[str, float] = field(default_factory=dict)


class CostMeter:
    """Measures the resource usage of the product and its cluster since the creation of this object."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self._since = time.time()
        self._log = AuditLog(get_audit_log(rig))
        self._events, self._cpu = _count_events(rig.journal), measure_cpu(rig)

    def read_costs(self) -> Costs:
        """Return the resource usage so far; the API requests are only those since the previous call."""
        requests, cpu = count_requests(self._log.read()), _compute_differences(measure_cpu(self._rig), self._cpu)
        memory = {name: measure_memory(pids) for name, pids in group_pids_by_process_name(self._rig.processes).items()}
        time.sleep(JOURNAL_DELAY_SECONDS)
        events = _compute_differences(_count_events(self._rig.journal), self._events)
        waits = measure_event_waits(self._rig.journal, self._since) | measure_longest_queue_time(
            self._rig.journal, get_delivery_log(self._rig), self._since
        )
        return Costs(events, requests, cpu, memory, waits)


def get_audit_log(rig: Rig) -> Path:
    """Return the path of the API server's audit log."""
    return rig.directory / "servers" / "audit.log"


def get_delivery_log(rig: Rig) -> Path:
    """Return the path of the local delivery's log, which does not exist with other engines."""
    return rig.directory / "product" / "delivery.log"


def measure_cpu(rig: Rig) -> dict[str, float]:
    """Return the CPU seconds since the start of each process, by the process's name."""
    return {name: sum(map(read_cpu_seconds, pids)) for name, pids in group_pids_by_process_name(rig.processes).items()}


def group_pids_by_process_name(processes: Mapping[str, int]) -> dict[str, list[int]]:
    """Return the ids in each process's tree by the process's name; PodSource is separate from the process it is in."""
    groups: dict[str, list[int]] = {}
    for name, pid in processes.items():
        for descendant in list_process_tree(pid):
            groups.setdefault(PODSOURCE if _is_podsource(descendant) else name, []).append(descendant)
    return groups


def _is_podsource(pid: int) -> bool:
    with suppress(OSError):
        return PODSOURCE_COMMAND in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    return False


def _compute_differences(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    differences = {name: round(count - before.get(name, 0), 3) for name, count in after.items()}
    return {name: count for name, count in differences.items() if count}


def _count_events(journal: Path) -> dict[str, float]:
    return dict(_read_rows(journal, "SELECT type, count(*) FROM events WHERE destination = '' GROUP BY type"))


def _read_rows(journal: Path, query: str, *parameters: float) -> list[tuple[Any, ...]]:
    """Return the rows of a query; return no rows if the journal is in a pod instead of on this host."""
    if not journal.exists():
        return []
    with closing(open_journal(journal)) as database:
        return list(database.execute(query, parameters))


def open_journal(journal: Path) -> sqlite3.Connection:
    """Open the journal's SQLite database read-only."""
    return sqlite3.connect(f"file:{journal}?mode=ro", uri=True)


def measure_event_waits(journal: Path, started_at: float) -> dict[str, float]:
    """Return statistics of the events' waiting times for attempts since `started_at`; {} if there are none."""
    rows = [row for row in _read_rows(journal, WAITS_QUERY, started_at) if row[0]]
    waits = sorted((begun_at - _parse_timestamp(emitted_at), function) for emitted_at, begun_at, function in rows)
    unpaced_waits = [seconds for seconds, function in waits if function != PACED_FUNCTION]
    unpaced = {LONGEST_UNPACED: round(unpaced_waits[-1], 3)} if unpaced_waits else {}
    return summarize_waits([seconds for seconds, _ in waits]) | unpaced if waits else {}


def measure_longest_queue_time(journal: Path, log: Path, started_at: float) -> dict[str, float]:
    """Return the longest time that a request was queued in a function's server: from its POST to the attempt's start.

    Only deliveries without retries since `started_at` count. The result is empty if the local delivery has no log.
    """
    if not log.exists():
        return {}
    begun_at_by_attempt = {row[:3]: row[3] for row in _read_rows(journal, FIRST_ATTEMPTS_QUERY, started_at)}
    queue_times = []
    for entry in filter(None, map(logs.parse_log_line, log.read_text().splitlines())):
        if entry["msg"] == "delivered" and entry["ts"] >= started_at:
            posted_at = entry["ts"] - entry["ms"] / 1000
            queue_times.append(
                begun_at_by_attempt.get(
                    (entry["id"], entry["source"], parse_function_name(entry["trigger"])), posted_at
                )
                - posted_at
            )
    return {LONGEST_QUEUED: round(max(queue_times), 3)} if queue_times else {}


def summarize_waits(waits: Sequence[float]) -> dict[str, float]:
    """Return the median, the 99th percentile and the maximum of the waiting times, which must be sorted."""
    p99 = waits[min(len(waits) - 1, len(waits) * 99 // 100)]
    return {"median": round(statistics.median(waits), 3), "99 %": round(p99, 3), "longest": round(waits[-1], 3)}


def _parse_timestamp(timestamp: str) -> float:
    """Return a timestamp in seconds since the epoch; cut off the digits after microseconds, which Go may write."""
    seconds, _, fraction = timestamp.replace("Z", "").replace("+00:00", "").partition(".")
    return datetime.fromisoformat(f"{seconds}.{fraction[:6]:0<6}+00:00").timestamp()


def list_process_tree(pid: int) -> Iterator[int]:
    """Yield the ids of a process and of all its descendants."""
    yield pid
    with suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                yield from list_process_tree(int(child))


def read_cpu_seconds(pid: int) -> float:
    """Return a process's user and system CPU time in seconds; 0 if it has exited."""
    with suppress(OSError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND
    return 0.0


def measure_memory(pids: Sequence[int]) -> float:
    """Return the memory of these processes in MiB: the largest peak, plus the private memory of the other processes.

    So memory that a forked child shares with its parent counts only once.
    """
    largest = max(pids, key=read_peak_mebibytes)
    return round(read_peak_mebibytes(largest) + sum(read_private_mebibytes(pid) for pid in pids if pid != largest), 1)


def read_private_mebibytes(pid: int) -> float:
    """Return a process's private resident memory in MiB; 0 if it has exited."""
    with suppress(OSError):
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Private_")) / 1024
    return 0.0


def read_peak_mebibytes(pid: int) -> float:
    """Return a process's peak resident memory in MiB; 0 if it has exited."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
