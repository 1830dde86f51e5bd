"""What a drain costs: events by type, requests by verb and resource, CPU seconds and peak memory by process."""

from __future__ import annotations

import os
import sqlite3
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from bench.rig import Rig

TICKS = os.sysconf("SC_CLK_TCK")
REQUESTS = "apiserver_request_total"
WATCHES = ("WATCH", "CONNECT")


@dataclass(frozen=True)
class Costs:
    """Counters, from the start of what they count.

    Attributes:
        events: by type.
        requests: of all clients, by verb and resource.
        cpu: seconds, by process.
        memory: most MiB that a process had resident, by process.
    """

    events: Mapping[str, float] = field(default_factory=dict)
    requests: Mapping[str, float] = field(default_factory=dict)
    cpu: Mapping[str, float] = field(default_factory=dict)
    memory: Mapping[str, float] = field(default_factory=dict)

    def since(self, before: Costs) -> Costs:
        """What came in between; memory is as it is."""
        return Costs(
            _less(self.events, before.events),
            _less(self.requests, before.requests),
            _less(self.cpu, before.cpu),
            self.memory,
        )


def read(rig: Rig) -> Costs:
    """The counters of a rig as they are now."""
    families = {name: list(tree(pid)) for name, pid in rig.processes.items()}
    return Costs(
        _events(rig.journal),
        requests(rig.cluster.run(rig.cluster.api.text("/metrics")).decode()),
        {name: sum(map(cpu_seconds, pids)) for name, pids in families.items()},
        {name: sum(map(peak_mebibytes, pids)) for name, pids in families.items()},
    )


def _less(now: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    changed = {name: round(count - before.get(name, 0), 3) for name, count in now.items()}
    return {name: count for name, count in changed.items() if count}


def _events(journal: Path) -> dict[str, float]:
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as database:
        return dict(database.execute("SELECT type, count(*) FROM events WHERE destination = '' GROUP BY type"))


def requests(metrics: str) -> dict[str, float]:
    """Requests by `verb resource/subresource`; watches, which last, are left out."""
    counts: Counter[str] = Counter()
    for family in text_string_to_metric_families(metrics):
        for sample in family.samples:
            if sample.name == REQUESTS and sample.labels["verb"] not in WATCHES:
                what = "/".join(filter(None, (sample.labels["resource"], sample.labels["subresource"])))
                counts[f"{sample.labels['verb']} {what}"] += int(sample.value)
    return dict(counts)


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


def peak_mebibytes(pid: int) -> float:
    """The most that was resident so far; 0 when it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) / 1024
    return 0.0
