"""What was measured, as rows, tables and a file: medians and ranges, and ratios of pairs from one round."""

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
from localcluster.deliveries import DELIVERIES
from localcluster.trouble import LocalClusterError

KINDS = ("events", "requests", "cpu", "memory", "waits")
LARGEST_PARTS = 8


@dataclass(frozen=True)
class Round:
    """One drain, in seconds.

    Attributes:
        seconds: from the request until it was said to be done.
        tail: from the end of the last pod until it was said to be done.
        back: from the request to give the nodes back until the last one was.
        costs: events, requests, CPU seconds, memory, waits; of the product's drains only.
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
        """What is said of it at once."""
        return f"{self.engine}: {self.case}: {self.way}: {self.seconds:.2f} s"


@dataclass(frozen=True)
class Failure:
    """A case that was not measured to its end, and why not."""

    engine: str
    case: str
    error: str

    @property
    def line(self) -> str:
        """What is said of it at once."""
        return f"{self.engine}: {self.case}: not measured: {self.error}"


@dataclass
class Results:
    """All that was measured.

    Attributes:
        about: when and on what, of all that `earlier` does not name.
        earlier: the same of what an earlier run has measured, by `place`.
    """

    about: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    earlier: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _begun: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def add(self, each: Measurement) -> None:
        """Keep one.

        The first of a case takes the place of what an earlier run has of it; a failure that of what this run has, which
        was no such case then. Before this run has anything of the case, a failure leaves an earlier run's rows.
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
        """Whether anything was measured of a case."""
        measured: list[Measurement] = [*self.rounds, *self.findings]
        return case in map(place, measured)

    def _drop(self, case: str) -> None:
        """Forget all of a case."""
        self.rounds = [each for each in self.rounds if place(each) != case]
        self.findings = [each for each in self.findings if place(each) != case]
        self.failures = [each for each in self.failures if place(each) != case]
        self.earlier.pop(case, None)

    def continued(self, about: Mapping[str, Any]) -> Results:
        """The same, to be added to by a run that measures then, and on that."""
        known: list[Measurement] = [*self.rounds, *self.findings, *self.failures]
        cases = dict.fromkeys(map(place, known))
        before = {case: self.earlier.get(case, self.about) for case in cases}
        earlier = {case: found for case, found in before.items() if found != about}
        return Results(about, self.rounds, self.findings, self.failures, earlier)

    def ordered(self) -> Results:
        """The same in the order of the engines and cases, whenever each was measured."""
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
    """The engine and the case, which are measured by one run."""
    return f"{each.engine}: {each.case}"


def machine() -> dict[str, Any]:
    """What is measured on, and when."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "memory": f"{memory:.0f} GiB",
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def summary(rounds: Iterable[Round]) -> list[list[str]]:
    """A row for each case and way, as `tables.TIMES` has it; medians (lowest–highest)."""
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
    """Engine, case and way → its rounds."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.engine, each.case, each.way), []).append(each)
    return groups


def ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Median of the ratios of the rounds of one number, which ran next to each other; not a number without a pair."""
    by_number = {each.number: each.seconds for each in theirs}
    ratios = [each.seconds / by_number[each.number] for each in ours if each.number in by_number]
    return statistics.median(ratios) if ratios else float("nan")


def spread(seconds: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


def costs(rounds: Iterable[Round]) -> list[list[str]]:
    """A row for each case of ours: engine, case, and by kind of cost its sum and the largest parts, each a median."""
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
    """The median of what the rounds cost of a kind, in all or of these parts alone."""
    sums = (sum(n for name, n in each.costs.get(kind, {}).items() if parts is None or name in parts) for each in rounds)
    return statistics.median(sums)


def medians(rounds: Sequence[Round], kind: str) -> dict[str, float]:
    """The parts of a kind of cost, each at its median; a round that has none of a part counts as 0."""
    parts = [each.costs.get(kind, {}) for each in rounds]
    names = dict.fromkeys(name for each in parts for name in each)
    return {name: statistics.median(each.get(name, 0) for each in parts) for name in names}


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(file: Path, results: Results) -> None:
    """All of it as JSON, a round or a finding a line. The file is whole at any moment; raises `OSError`."""
    entries = [f'"{name}": {json.dumps(getattr(results, name))}' for name in ("about", "earlier")]
    for name in ("rounds", "findings", "failures"):
        lines = ",\n".join(json.dumps(asdict(each), ensure_ascii=False) for each in getattr(results, name))
        entries.append(f'"{name}": [\n{lines}\n]')
    new = file.with_name(f"{file.name}.new")
    new.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    new.replace(file)


def read(file: Path) -> Results:
    """What `write` wrote. Raises `LocalClusterError` for a file that is none of those."""
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
