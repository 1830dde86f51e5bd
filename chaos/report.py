"""The report of a run: the injected faults, the completed checks, and the violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.invariant_checker import Tally
from localcluster.components.selection import MAINTENANCE
from localcluster.up.restarter import ProcessRecord


@dataclass(frozen=True)
class RunReport:
    """The results of a run.

    Attributes:
        engine: The name of the engine.
        seed: The seed of the plan.
        duration_seconds: The duration of the fault injection.
        completed_action_counts: The number of completed actions by kind.
        failures: The errors of failed actions by kind.
        tally: The numbers of checks, and the granted evictions.
        violations: The messages about violated invariants.
        settle_seconds: The time until the final state was correct; None if it never was.
        problems: The remaining problems of the final state.
        exited_servers: The names of processes that are down, and of the product's processes that exited unexpectedly.
        component: The tested component.
    """

    engine: str
    seed: int
    duration_seconds: float
    completed_action_counts: Mapping[str, int]
    failures: Mapping[str, Sequence[str]]
    tally: Tally
    violations: list[str]
    settle_seconds: float | None
    problems: list[str] = field(default_factory=list)
    exited_servers: list[str] = field(default_factory=list)
    component: str = MAINTENANCE

    @property
    def has_passed(self) -> bool:
        """Return whether the run has passed.

        A run passes if checks were made, no invariant was violated, the final state was correct, and no process exited
        unexpectedly. In addition, at least half of the actions of each kind must have succeeded.
        """
        problems = self.violations or self.problems or self.exited_servers or self.mostly_failed_kinds
        return not problems and self.settle_seconds is not None and bool(self.tally.checked.total())

    @property
    def mostly_failed_kinds(self) -> list[str]:
        """Return the kinds of actions of which most failed, so that the run does not test them."""
        return [
            kind
            for kind, failures in self.failures.items()
            if len(failures) > self.completed_action_counts.get(kind, 0)
        ]


def format_report(report: RunReport) -> Iterator[str]:
    """Yield the report's lines."""
    run = f"{report.component} on engine {report.engine}, seed {report.seed}, {report.duration_seconds:.0f} s"
    yield f"{run}: {'passed' if report.has_passed else 'FAILED'}"
    yield f"done: {_format_counts(report.completed_action_counts) or 'nothing'}"
    for kind, failures in report.failures.items():
        yield from (f"action failed: {kind} {failure}" for failure in failures)
    yield from (f"MOSTLY FAILED, so the run does not test it: {kind}" for kind in report.mostly_failed_kinds)
    granted = report.tally.grants
    if report.component == MAINTENANCE:
        yield f"pods evicted: {len(granted)}, of these granted twice: {sum(count > 1 for count in granted.values())}"
    yield f"checked: {_format_counts(report.tally.checked) or 'NOTHING, so the run tests nothing: increase SECONDS'}"
    yield f"not checked because of a watch gap: {_format_counts(report.tally.unchecked) or 'nothing'}"
    for violation, count in Counter(report.violations).items():
        yield f"VIOLATION: {violation}" + (f" ({count} times)" if count > 1 else "")
    yield from (f"EXITED UNEXPECTEDLY: {line}" for line in report.exited_servers)
    if report.settle_seconds is not None:
        yield f"final state correct {report.settle_seconds:.1f} s after the last action"
    yield from (f"PROBLEM: {line}" for line in report.problems)


def list_unexpected_exits(records: Iterable[ProcessRecord], own_names: Collection[str]) -> list[str]:
    """Describe the unexpected exits of these processes; the records do not contain kills by the fault injection."""
    return [
        f"{record.name}: {record.exit_reason}, restarted {record.restarts} times"
        for record in records
        if record.name in own_names and record.exit_reason
    ]


def _format_counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
