"""Results as rows, tables and a file: medians and ranges, and ratios between drainers in the same round."""

from __future__ import annotations

import json
import os
import platform
import statistics
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from bench.cases import CASES
from bench.findings import Finding
from localcluster.delivery_engines import DELIVERIES
from localcluster.errors import LocalClusterError

KINDS = ("events", "requests", "cpu", "memory", "waits")
LARGEST_PARTS = 8


@dataclass(frozen=True)
class Round:
    """One drain.

    Attributes:
        case: The name of the case.
        way: The name of the drainer.
        number: The number of the round.
        seconds: Seconds from the request until the drainer reported completion.
        tail: Seconds from the end of the last pod until the drainer reported completion.
        back: Seconds from the request to restore the nodes until the last one was restored.
        costs: Events, requests, CPU seconds, memory and waits; only for the product's drains.
    """

    engine: str
    case: str
    way: str
    number: int
    seconds: float
    tail: float
    back: float
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Return the progress line that is printed at once."""
        return f"{self.engine}: {self.case}: {self.way}: {self.seconds:.2f} s"


@dataclass(frozen=True)
class Failure:
    """A case that was not measured completely, with the error."""

    engine: str
    case: str
    error: str

    @property
    def line(self) -> str:
        """Return the progress line that is printed at once."""
        return f"{self.engine}: {self.case}: not measured: {self.error}"


@dataclass
class Results:
    """All results.

    Attributes:
        about: The date and the host of all results, except for those in `earlier`.
        rounds: The drains.
        findings: The figures of the observations.
        failures: The cases that failed.
        earlier: The date and the host of results from earlier runs, by `place`.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    earlier: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def add(self, each: Measurement) -> None:
        """Add a result.

        The first result of a case replaces the results of earlier runs. A failure also replaces this run's results of
        the case, which are incomplete then. But a failure that is this run's first result keeps the results of earlier
        runs.
        """
        case = place(each)
        if isinstance(each, Failure) and case not in self._begun and self._has_rows(case):
            return
        if isinstance(each, Failure) or case not in self._begun:
            self._drop(case)
        self._begun.add(case)
        if isinstance(each, Round):
            self.rounds.append(each)
        elif isinstance(each, Finding):
            self.findings.append(each)
        else:
            self.failures.append(each)

    def _has_rows(self, case: str) -> bool:
        """Return whether a case has rounds or findings."""
        measured: list[Measurement] = [*self.rounds, *self.findings]
        return case in map(place, measured)

    def _drop(self, case: str) -> None:
        """Remove all results of a case."""
        self.rounds = [each for each in self.rounds if place(each) != case]
        self.findings = [each for each in self.findings if place(each) != case]
        self.failures = [each for each in self.failures if place(each) != case]
        self.earlier.pop(case, None)

    def continued(self, about: Mapping[str, Any]) -> Results:
        """Return a copy for a run that continues with this date and host."""
        known: list[Measurement] = [*self.rounds, *self.findings, *self.failures]
        cases = dict.fromkeys(map(place, known))
        before = {case: self.earlier.get(case, self.about) for case in cases}
        earlier = {case: found for case, found in before.items() if found != about}
        return Results(about, self.rounds, self.findings, self.failures, earlier)

    def ordered(self) -> Results:
        """Return a copy in the order of the engines and cases."""
        engines, cases = [*DELIVERIES], [case.name for case in CASES]

        def order(each: Measurement) -> tuple[int, int]:
            return engines.index(each.engine), cases.index(each.case) if each.case in cases else len(cases)

        return Results(
            self.about,
            sorted(self.rounds, key=order),
            sorted(self.findings, key=order),
            sorted(self.failures, key=order),
            self.earlier,
        )


Measurement = Round | Finding | Failure


def place(each: Measurement) -> str:
    """Return the key of engine and case; each key is measured by a single run."""
    return f"{each.engine}: {each.case}"


def machine() -> dict[str, Any]:
    """Return the date and a description of the host."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "memory": f"{memory:.0f} GiB",
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def summary(rounds: Iterable[Round]) -> list[list[str]]:
    """Return a row for each case and drainer, with the columns `tables.TIMES` and medians (minimum–maximum)."""
    rows = []
    groups = grouped(rounds)
    for (engine, case, way), found in groups.items():
        others = {name: group for (e, c, name), group in groups.items() if (e, c) == (engine, case) and name != way}
        ratios = ", ".join(f"{ratio(found, group):.2f} of {name}" for name, group in others.items())
        times = [spread([each.seconds for each in found]), spread([each.tail for each in found])]
        rows.append([engine, case, way, times[0], ratios if way == "ours" else "", times[1]])
        rows[-1].append(spread([each.back for each in found]))
    return rows


def grouped(rounds: Iterable[Round]) -> dict[tuple[str, str, str], list[Round]]:
    """Return the rounds by engine, case and drainer."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.engine, each.case, each.way), []).append(each)
    return groups


def ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Return the median ratio of rounds with the same number, which ran one after another; NaN without such a pair."""
    by_number = {each.number: each.seconds for each in theirs}
    ratios = [each.seconds / by_number[each.number] for each in ours if each.number in by_number]
    return statistics.median(ratios) if ratios else float("nan")


def spread(seconds: Sequence[float]) -> str:
    """Return the median and the range as text."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


def costs(rounds: Iterable[Round]) -> list[list[str]]:
    """Return a row for each of the product's cases and kind of cost: its sum and its largest parts, as medians."""
    rows = []
    for (engine, case, _), found in grouped(each for each in rounds if each.costs).items():
        for kind in KINDS:
            median = medians(found, kind)
            parts = sorted(median.items(), key=lambda part: -part[1])[:LARGEST_PARTS]
            listed = ", ".join(f"{name.removeprefix('dev.')} {count:.4g}" for name, count in parts if count)
            total = "" if kind == "waits" else f"{typical(found, kind):.5g}"
            rows.append([engine, case, kind, total, listed])
    return rows


def typical(rounds: Sequence[Round], kind: str, parts: Collection[str] | None = None) -> float:
    """Return the median over the rounds of a kind of cost, in total or only of these parts."""
    sums = (sum(n for name, n in each.costs.get(kind, {}).items() if parts is None or name in parts) for each in rounds)
    return statistics.median(sums)


def medians(rounds: Sequence[Round], kind: str) -> dict[str, float]:
    """Return the median of each part of a kind of cost; a round without a part counts as 0."""
    parts = [each.costs.get(kind, {}) for each in rounds]
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: statistics.median(each.get(name, 0) for each in parts) for name in names}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(file: Path, results: Results) -> None:
    """Write all results as JSON, one round or finding per line, and replace the file atomically. Raises `OSError`."""
    entries = [f'"{name}": {json.dumps(getattr(results, name))}' for name in ("about", "earlier")]
    for name in ("rounds", "findings", "failures"):
        lines = ",\n".join(json.dumps(asdict(each), ensure_ascii=False) for each in getattr(results, name))
        entries.append(f'"{name}": [\n{lines}\n]')
    new = file.with_name(f"{file.name}.new")
    new.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    new.replace(file)


def read(file: Path) -> Results:
    """Return the results that `write` wrote. Raises `LocalClusterError` for any other file."""
    try:
        found = json.loads(file.read_text())
        return Results(
            found["about"],
            [Round(**each) for each in found["rounds"]],
            [Finding(**each) for each in found["findings"]],
            [Failure(**each) for each in found["failures"]],
            found.get("earlier", {}),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise LocalClusterError(f"{file} has no results of the bench: {error!r}; remove it and measure anew") from None
