"""The report of a run: the injected faults, the checks made, and the violations."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.invariant_checker import Tally
from localcluster.up.restarter import Record
from localcluster.components.selection import MAINTENANCE


@dataclass(frozen=True)
class Run:
    """A finished run.

    Attributes:
        seed: The seed of the plan.
        seconds: The duration of the fault injection.
        done: The number of completed actions by kind.
        failed: The errors of failed actions by kind.
        tally: The numbers of checks.
        violations: The violated invariants.
        calm: The seconds until the final state was correct; None if it never was.
        left: The remaining problems of the final state.
        ended: The processes that are down, and the product's processes that exited unexpectedly.
        wing: The component under test.
    """

    engine: str
    seed: int
    seconds: float
    done: Mapping[str, int]
    failed: Mapping[str, Sequence[str]]
    tally: Tally
    violations: list[str]
    calm: float | None
    left: list[str] = field(default_factory=list)
    ended: list[str] = field(default_factory=list)
    wing: str = MAINTENANCE

    @property
    def is_good(self) -> bool:
        """Return whether the run counts as passed.

        Checks were made, no invariant was violated, the final state was correct, and no kind of action mostly failed.
        """
        wrong = self.violations or self.left or self.ended or self.spared
        return not wrong and self.calm is not None and bool(self.tally.judged.total())

    @property
    def spared(self) -> list[str]:
        """Return the kinds of actions that mostly failed, so that the run proves nothing about them."""
        return [kind for kind, failures in self.failed.items() if len(failures) > self.done.get(kind, 0)]


def lines(run: Run) -> Iterator[str]:
    """Yield the lines of the report."""
    yield f"{run.wing} on engine {run.engine}, seed {run.seed}, {run.seconds:.0f} s: {'good' if run.is_good else 'BAD'}"
    yield "done: " + (_counts(run.done) or "nothing")
    for kind, failures in run.failed.items():
        yield from (f"not done: {kind} {failure}" for failure in failures)
    yield from (f"MOSTLY NOT DONE, so the run proves nothing of it: {kind}" for kind in run.spared)
    granted = run.tally.granted
    if run.wing == MAINTENANCE:
        yield f"pods evicted: {len(granted)}, of these granted twice: {sum(count > 1 for count in granted.values())}"
    yield f"judged: {_counts(run.tally.judged) or 'NOTHING, so the run proves nothing: give it more SECONDS'}"
    yield f"not judged, as a watch was broken: {_counts(run.tally.blind) or 'nothing'}"
    for violation, count in Counter(run.violations).items():
        yield f"VIOLATION: {violation}" + (f" ({count} times)" if count > 1 else "")
    yield from (f"ENDED BY ITSELF: {line}" for line in run.ended)
    if run.calm is not None:
        yield f"all was as it should be {run.calm:.1f} s after the last deed"
    yield from (f"LEFT: {line}" for line in run.left)


def ended_by_themselves(records: Iterable[Record], ours: Collection[str]) -> list[str]:
    """Return which of these processes exited unexpectedly, and how; the records do not contain injected kills."""
    return [
        f"{record.name}: {record.ended}, started again {record.restarts} times"
        for record in records
        if record.name in ours and record.ended
    ]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
