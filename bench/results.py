"""Stores benchmark results, and summarizes them: medians and ranges, and ratios between drainers in the same round."""

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
from localcluster.delivery_engines import ENGINES
from localcluster.errors import LocalClusterError

COST_KINDS = ("events", "requests", "cpu", "memory", "waits")
MAX_LISTED_PARTS = 8


@dataclass(frozen=True)
class Round:
    """The measurement of one drain by one drainer.

    Attributes:
        case: The name of the case.
        drainer: The name of the drainer.
        number: The number of the round.
        seconds: Seconds from the request until the drainer reported completion.
        lag_seconds: Seconds from the end of the last pod until the drainer reported completion.
        restore_seconds: Seconds from the request to restore the nodes until the last one was restored.
        costs: Events, requests, CPU seconds, memory and waits; only for the product's drains.
    """

    engine: str
    case: str
    drainer: str
    number: int
    seconds: float
    lag_seconds: float
    restore_seconds: float
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def line(self) -> str:
        """Return the line that is printed as soon as the round is measured."""
        return f"{self.engine}: {self.case}: {self.drainer}: {self.seconds:.2f} s"


@dataclass(frozen=True)
class Failure:
    """A case that was not measured completely, with the error."""

    engine: str
    case: str
    error: str

    @property
    def line(self) -> str:
        """Return the line that is printed as soon as the case has failed."""
        return f"{self.engine}: {self.case}: not measured: {self.error}"


@dataclass
class Results:
    """All results.

    Attributes:
        environment: The date and the host of all results, except for those in `earlier_environments`.
        rounds: The drains.
        findings: The figures of the observations.
        failures: The cases that failed.
        earlier_environments: The date and the host of results from earlier runs, by `get_case_key`.
    """

    environment: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    earlier_environments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _started_cases: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def add(self, measurement: Measurement) -> None:
        """Add a result.

        The first result of a case replaces the results of earlier runs. A failure also replaces this run's results of
        the case, because they are incomplete. However, if a failure is this run's first result of the case, the results
        of earlier runs are kept.
        """
        case = get_case_key(measurement)
        if isinstance(measurement, Failure) and case not in self._started_cases and self._has_measurements(case):
            return
        if isinstance(measurement, Failure) or case not in self._started_cases:
            self._remove_case(case)
        self._started_cases.add(case)
        if isinstance(measurement, Round):
            self.rounds.append(measurement)
        elif isinstance(measurement, Finding):
            self.findings.append(measurement)
        else:
            self.failures.append(measurement)

    def _has_measurements(self, case: str) -> bool:
        """Return whether a case has rounds or findings."""
        measured: list[Measurement] = [*self.rounds, *self.findings]
        return case in map(get_case_key, measured)

    def _remove_case(self, case: str) -> None:
        """Remove all results of a case."""
        self.rounds = [measurement for measurement in self.rounds if get_case_key(measurement) != case]
        self.findings = [measurement for measurement in self.findings if get_case_key(measurement) != case]
        self.failures = [measurement for measurement in self.failures if get_case_key(measurement) != case]
        self.earlier_environments.pop(case, None)

    def continue_run(self, environment: Mapping[str, Any]) -> Results:
        """Return a copy to which a run on this date and host can add results."""
        measurements: list[Measurement] = [*self.rounds, *self.findings, *self.failures]
        cases = dict.fromkeys(map(get_case_key, measurements))
        environments = {case: self.earlier_environments.get(case, self.environment) for case in cases}
        earlier_environments = {
            case: case_environment for case, case_environment in environments.items() if case_environment != environment
        }
        return Results(environment, self.rounds, self.findings, self.failures, earlier_environments)

    def sort(self) -> Results:
        """Return a copy sorted by engine and case."""
        engines, cases = [*ENGINES], [case.name for case in CASES]

        def get_sort_key(measurement: Measurement) -> tuple[int, int]:
            case = measurement.case
            return engines.index(measurement.engine), cases.index(case) if case in cases else len(cases)

        return Results(
            self.environment,
            sorted(self.rounds, key=get_sort_key),
            sorted(self.findings, key=get_sort_key),
            sorted(self.failures, key=get_sort_key),
            self.earlier_environments,
        )


Measurement = Round | Finding | Failure


def get_case_key(measurement: Measurement) -> str:
    """Return the key of the engine and case; a single run produced all results with the same key."""
    return f"{measurement.engine}: {measurement.case}"


def describe_host() -> dict[str, Any]:
    """Return the date and a description of the host."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "memory": f"{memory:.0f} GiB",
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def summarize_rounds(rounds: Iterable[Round]) -> list[list[str]]:
    """Return a row for each case and drainer, with the columns `tables.TIMES_HEADER` and medians (minimum–maximum)."""
    rows = []
    groups = group_rounds(rounds)
    for (engine, case, drainer), drainer_rounds in groups.items():
        other_drainers = {
            other_drainer: group
            for (other_engine, other_case, other_drainer), group in groups.items()
            if (other_engine, other_case) == (engine, case) and other_drainer != drainer
        }
        ratios = ", ".join(
            f"{compute_ratio(drainer_rounds, group):.2f} of {other_drainer}"
            for other_drainer, group in other_drainers.items()
        )
        times = [
            format_range([measured_round.seconds for measured_round in drainer_rounds]),
            format_range([measured_round.lag_seconds for measured_round in drainer_rounds]),
        ]
        rows.append([engine, case, drainer, times[0], ratios if drainer == "ours" else "", times[1]])
        rows[-1].append(format_range([measured_round.restore_seconds for measured_round in drainer_rounds]))
    return rows


def group_rounds(rounds: Iterable[Round]) -> dict[tuple[str, str, str], list[Round]]:
    """Return the rounds by engine, case and drainer."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for measured_round in rounds:
        key = (measured_round.engine, measured_round.case, measured_round.drainer)
        groups.setdefault(key, []).append(measured_round)
    return groups


def compute_ratio(product_rounds: Sequence[Round], other_rounds: Sequence[Round]) -> float:
    """Return the median ratio of rounds with the same number, which ran one after another; NaN without such a pair."""
    seconds_by_number = {other_round.number: other_round.seconds for other_round in other_rounds}
    ratios = [
        product_round.seconds / seconds_by_number[product_round.number]
        for product_round in product_rounds
        if product_round.number in seconds_by_number
    ]
    return statistics.median(ratios) if ratios else float("nan")


def format_range(seconds: Sequence[float]) -> str:
    """Format the median and the range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


def summarize_costs(rounds: Iterable[Round]) -> list[list[str]]:
    """Return a row for each case and kind of resource usage: the total and the largest parts, as medians."""
    rows = []
    for (engine, case, _), case_rounds in group_rounds(
        measured_round for measured_round in rounds if measured_round.costs
    ).items():
        for kind in COST_KINDS:
            medians = compute_medians(case_rounds, kind)
            parts = sorted(medians.items(), key=lambda part: -part[1])[:MAX_LISTED_PARTS]
            largest_parts = ", ".join(f"{name.removeprefix('dev.')} {count:.4g}" for name, count in parts if count)
            total = "" if kind == "waits" else f"{compute_typical_cost(case_rounds, kind):.5g}"
            rows.append([engine, case, kind, total, largest_parts])
    return rows


def compute_typical_cost(rounds: Sequence[Round], kind: str, parts: Collection[str] | None = None) -> float:
    """Return the median, over the rounds, of one kind of resource usage: the total, or the sum of these parts."""
    sums = (
        sum(cost for name, cost in measured_round.costs.get(kind, {}).items() if parts is None or name in parts)
        for measured_round in rounds
    )
    return statistics.median(sums)


def compute_medians(rounds: Sequence[Round], kind: str) -> dict[str, float]:
    """Return the median of each part of one kind of resource usage; a round without a part counts as 0."""
    costs_by_round = [measured_round.costs.get(kind, {}) for measured_round in rounds]
    names = dict.fromkeys(name for round_costs in costs_by_round for name in round_costs)
    return {name: statistics.median(round_costs.get(name, 0) for round_costs in costs_by_round) for name in names}


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_results(file: Path, results: Results) -> None:
    """Write all results as JSON, one round or finding per line, and replace the file atomically."""
    entries = [f'"{name}": {json.dumps(getattr(results, name))}' for name in ("environment", "earlier_environments")]
    for name in ("rounds", "findings", "failures"):
        lines = ",\n".join(
            json.dumps(asdict(measurement), ensure_ascii=False) for measurement in getattr(results, name)
        )
        entries.append(f'"{name}": [\n{lines}\n]')
    new_file = file.with_name(f"{file.name}.new")
    new_file.write_text("{\n" + ",\n".join(entries) + "\n}\n")
    new_file.replace(file)


def read_results(file: Path) -> Results:
    """Return the results that `write_results` wrote. Raises `LocalClusterError` if the file has a different format."""
    try:
        content = json.loads(file.read_text())
        return Results(
            content["environment"],
            [Round(**fields) for fields in content["rounds"]],
            [Finding(**fields) for fields in content["findings"]],
            [Failure(**fields) for fields in content["failures"]],
            content.get("earlier_environments", {}),
        )
    except (ValueError, TypeError, KeyError) as error:
        raise LocalClusterError(
            f"{file}: invalid benchmark results: {error!r}: remove the file and run the benchmark again"
        ) from None
