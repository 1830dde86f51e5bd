"""Stores benchmark results, and summarizes them as medians, ranges, and ratios of drainers within each round."""

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
        engine: The name of the engine.
        case: The name of the case.
        drainer: The name of the drainer.
        number: The number of the round.
        seconds: The time from the drain's request until the drainer reported completion.
        lag_seconds: The time from the last pod's deletion until the drainer reported completion.
        restore_seconds: The time from the request to restore the nodes until the last node was restored.
        costs: Events, requests, CPU seconds, memory and waits (see `costs.Costs`); only for the product's drains.
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
        """Return the progress line that is printed when the round has been measured."""
        return f"{self.engine}: {self.case}: {self.drainer}: {self.seconds:.2f} s"


@dataclass(frozen=True)
class Failure:
    """A case that was not or not completely measured, with the error."""

    engine: str
    case: str
    error: str

    @property
    def line(self) -> str:
        """Return the progress line that is printed when the case has failed."""
        return f"{self.engine}: {self.case}: not measured: {self.error}"


@dataclass
class Results:
    """The results of one or more benchmark runs.

    Attributes:
        environment: The date and host of the latest run, which produced all results except those of earlier runs.
        rounds: The measured drains.
        findings: The figures of the observations.
        failures: The cases that failed.
        earlier_environments: The date and host of each case that an earlier run measured, by `get_case_key`.
    """

    environment: Mapping[str, Any] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    failures: list[Failure] = field(default_factory=list)
    earlier_environments: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    _started_cases: set[str] = field(default_factory=set, init=False, repr=False, compare=False)

    def add(self, measurement: Measurement) -> None:
        """Add a measurement of this run.

        The first measurement of a case replaces the results of earlier runs. A failure also replaces this run's
        measurements of the case, because they are incomplete. But if the failure is this run's first measurement of the
        case, and earlier runs have measured the case, the failure is discarded, and the earlier results are kept.
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
        """Return whether the case already has rounds or findings."""
        measured: list[Measurement] = [*self.rounds, *self.findings]
        return case in map(get_case_key, measured)

    def _remove_case(self, case: str) -> None:
        """Remove all results of the case."""
        self.rounds = [measurement for measurement in self.rounds if get_case_key(measurement) != case]
        self.findings = [measurement for measurement in self.findings if get_case_key(measurement) != case]
        self.failures = [measurement for measurement in self.failures if get_case_key(measurement) != case]
        self.earlier_environments.pop(case, None)

    def continue_run(self, environment: Mapping[str, Any]) -> Results:
        """Return a copy of the results, to which a run with this date and host can add its measurements."""
        measurements: list[Measurement] = [*self.rounds, *self.findings, *self.failures]
        cases = dict.fromkeys(map(get_case_key, measurements))
        environments = {case: self.earlier_environments.get(case, self.environment) for case in cases}
        earlier_environments = {
            case: case_environment for case, case_environment in environments.items() if case_environment != environment
        }
        return Results(environment, self.rounds, self.findings, self.failures, earlier_environments)

    def sort(self) -> Results:
        """Return a copy of the results that is sorted by engine and case."""
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
    """Return a key for the measurement's engine and case; all results with one key are from the same run."""
    return f"{measurement.engine}: {measurement.case}"


def describe_host() -> dict[str, Any]:
    """Return today's date, and the host's cores, memory, architecture and version of Python."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cores": os.cpu_count(),
        "memory": f"{memory:.0f} GiB",
        "machine": platform.machine(),
        "python": platform.python_version(),
    }


def summarize_rounds(rounds: Iterable[Round]) -> list[list[str]]:
    """Return a row for each case and drainer with the columns `tables.TIMES_HEADER`: medians, with minimum–maximum."""
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
    """Group the rounds by engine, case and drainer."""
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for measured_round in rounds:
        key = (measured_round.engine, measured_round.case, measured_round.drainer)
        groups.setdefault(key, []).append(measured_round)
    return groups


def compute_ratio(product_rounds: Sequence[Round], other_rounds: Sequence[Round]) -> float:
    """Return the median ratio of rounds with the same number, which ran one after another; NaN if there are none."""
    seconds_by_number = {other_round.number: other_round.seconds for other_round in other_rounds}
    ratios = [
        product_round.seconds / seconds_by_number[product_round.number]
        for product_round in product_rounds
        if product_round.number in seconds_by_number
    ]
    return statistics.median(ratios) if ratios else float("nan")


def format_range(seconds: Sequence[float]) -> str:
    """Format seconds as "median (minimum–maximum)"."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


def summarize_costs(rounds: Iterable[Round]) -> list[list[str]]:
    """Return a row for each case and kind of resource usage: the median total, and the medians of the largest parts."""
    rows = []
    for (engine, case, _), case_rounds in group_rounds(
        measured_round for measured_round in rounds if measured_round.costs
    ).items():
        for kind in COST_KINDS:
            medians = compute_medians(case_rounds, kind)
            parts = sorted(medians.items(), key=lambda part: -part[1])[:MAX_LISTED_PARTS]
            largest_parts = ", ".join(f"{name.removeprefix('dev.')} {count:.4g}" for name, count in parts if count)
            total = "" if kind == "waits" else f"{compute_median_cost(case_rounds, kind):.5g}"
            rows.append([engine, case, kind, total, largest_parts])
    return rows


def compute_median_cost(rounds: Sequence[Round], kind: str, parts: Collection[str] | None = None) -> float:
    """Return the median over the rounds of one kind of resource usage: of its total, or of the sum of `parts`."""
    sums = (
        sum(cost for name, cost in measured_round.costs.get(kind, {}).items() if parts is None or name in parts)
        for measured_round in rounds
    )
    return statistics.median(sums)


def compute_medians(rounds: Sequence[Round], kind: str) -> dict[str, float]:
    """Return the median over the rounds for each part of a kind of resource usage; a missing part counts as 0."""
    costs_by_round = [measured_round.costs.get(kind, {}) for measured_round in rounds]
    names = dict.fromkeys(name for round_costs in costs_by_round for name in round_costs)
    return {name: statistics.median(round_costs.get(name, 0) for round_costs in costs_by_round) for name in names}


def render_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Render a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write_results(file: Path, results: Results) -> None:
    """Write the results as JSON, with one round or finding per line; replace the file atomically."""
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
    """Read the results from `write_results`. Raises `LocalClusterError` if the file has a different format."""
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
