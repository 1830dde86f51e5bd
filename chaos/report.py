"""What a run says at its end: what was done, what was judged, what was wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from chaos.judge import Tally
from localcluster.up.keeper import Record
from localcluster.wings.choice import MAINTENANCE


@dataclass(frozen=True)
class Run:
    """A run that has ended.

    Attributes:
        done: how many deeds of a kind were done.
        failed: those of a kind that could not be, and why.
        calm: seconds until all was as it should be, None when it never was; then `left` says what is not.
        ended: processes that are down, and those of ours that ended by themselves, and how.
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
        """Mischief was done, something was judged, nothing was violated, and the calm came in time."""
        wrong = self.violations or self.left or self.ended or self.spared
        return not wrong and self.calm is not None and bool(self.tally.judged.total())

    @property
    def spared(self) -> list[str]:
        """The kinds of deeds that failed more often than they were done: of these the run proves nothing."""
        return [kind for kind, failures in self.failed.items() if len(failures) > self.done.get(kind, 0)]


def lines(run: Run) -> Iterator[str]:
    """The report, a line each."""
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
    """Which of these names ended by themselves, and how; what mischief ended is not in a record."""
    return [
        f"{record.name}: {record.ended}, started again {record.restarts} times"
        for record in records
        if record.name in ours and record.ended
    ]


def _counts(counts: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))
