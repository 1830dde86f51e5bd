"""What was measured, as rows, tables and a file: medians and ranges, and ratios of pairs from one round."""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Round:
    """One drain, in seconds.

    Attributes:
        seconds: from the request until it was said to be done.
        tail: from the end of the last pod until it was said to be done.
        back: from the request to give the nodes back until the last one was.
        costs: events, requests, CPU seconds, memory; of the product's drains only.
    """

    engine: str
    case: str
    way: str
    number: int
    seconds: float
    tail: float
    back: float
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


def summary(rounds: Iterable[Round]) -> list[list[str]]:
    """A row for each case and way, as `HEAD` of the command has it; medians (lowest–highest)."""
    rows = []
    groups: dict[tuple[str, str, str], list[Round]] = {}
    for each in rounds:
        groups.setdefault((each.engine, each.case, each.way), []).append(each)
    for (engine, case, way), found in groups.items():
        others = {name: group for (e, c, name), group in groups.items() if (e, c) == (engine, case) and name != way}
        ratios = ", ".join(f"{ratio(found, group):.2f} of {name}" for name, group in others.items())
        times = [spread([each.seconds for each in found]), spread([each.tail for each in found])]
        rows.append([engine, case, way, times[0], ratios if way == "ours" else "", times[1]])
        rows[-1].append(spread([each.back for each in found]))
    return rows


def ratio(ours: Sequence[Round], theirs: Sequence[Round]) -> float:
    """Median of the ratios of the rounds of one number, which ran next to each other."""
    by_number = {each.number: each.seconds for each in theirs}
    return statistics.median(each.seconds / by_number[each.number] for each in ours if each.number in by_number)


def spread(seconds: Sequence[float]) -> str:
    """Median and range."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f}–{max(seconds):.2f})"


def costs(rounds: Iterable[Round]) -> list[list[str]]:
    """A row for each case of ours: engine, case, and by kind of cost its sum and the largest parts, at the median."""
    groups: dict[tuple[str, str], list[Round]] = {}
    for each in rounds:
        if each.costs:
            groups.setdefault((each.engine, each.case), []).append(each)
    rows = []
    for (engine, case), found in groups.items():
        for kind in ("events", "requests", "cpu", "memory"):
            names = {name for each in found for name in each.costs[kind]}
            median = {name: statistics.median(each.costs[kind].get(name, 0) for each in found) for name in names}
            parts = sorted(median.items(), key=lambda part: -part[1])[:8]
            listed = ", ".join(f"{name.removeprefix('dev.')} {count:.4g}" for name, count in parts if count)
            rows.append([engine, case, kind, f"{sum(median.values()):.4g}", listed])
    return rows


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def write(file: Path, rounds: Sequence[Round], about: Mapping[str, Any]) -> None:
    """All rounds as JSON, with what they ran on."""
    file.write_text(json.dumps({**about, "rounds": [asdict(each) for each in rounds]}, indent=1) + "\n")
