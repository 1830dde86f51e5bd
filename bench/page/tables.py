"""The tables of a run in Markdown, for a terminal and for docs/performance.md. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from bench.page.limits import judged
from bench.results import Results, Round, costs, summary, table

TIMES = ("engine", "case", "way", "seconds", "ratio", "last pod gone to done", "back")
COSTS = ("engine", "case", "cost", "sum", "of that")
FOUND = ("engine", "case", "what", "measured", "at most")


def everything(results: Results) -> str:
    """Return all tables that have a row, separated by empty lines."""
    parts = (times(results.rounds), limits(results), figures(results), spent(results.rounds), failures(results))
    return "\n\n".join(filter(None, parts))


def times(rounds: Iterable[Round]) -> str:
    """Return the table of the drainers' durations."""
    rows = summary(rounds)
    return table(TIMES, rows) if rows else ""


def limits(results: Results) -> str:
    """Return the table of measured values with their limits; a value over its limit is bold."""
    rows = [finding.row for finding in judged(results)]
    return table(FOUND, rows) if rows else ""


def figures(results: Results) -> str:
    """Return the table of the observations' figures without a limit."""
    rows = [finding.row[:-1] for finding in results.findings if finding.limit is None]
    return table(FOUND[:-1], rows) if rows else ""


def spent(rounds: Iterable[Round]) -> str:
    """Return the table of the product's costs."""
    rows = costs(rounds)
    return table(COSTS, rows) if rows else ""


def failures(results: Results) -> str:
    """Return the cases that were not measured, one line each."""
    return "\n".join(failure.line for failure in results.failures)
