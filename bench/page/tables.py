"""Renders benchmark results as Markdown tables, for a terminal and for docs/performance.md. Pure functions."""

from __future__ import annotations

from collections.abc import Iterable

from bench.page.limits import check_limits
from bench.results import Results, Round, render_table, summarize_costs, summarize_rounds

TIMES_HEADER = ("engine", "case", "drainer", "seconds", "ratio", "last pod gone to done", "restore")
COSTS_HEADER = ("engine", "case", "cost", "total", "largest parts")
FINDINGS_HEADER = ("engine", "case", "metric", "measured", "limit")


def render_all(results: Results) -> str:
    """Render all tables that have a row, separated by empty lines."""
    parts = (
        render_times(results.rounds),
        render_limits(results),
        render_figures(results),
        render_costs(results.rounds),
        render_failures(results),
    )
    return "\n\n".join(filter(None, parts))


def render_times(rounds: Iterable[Round]) -> str:
    """Render the table of the drainers' durations; "" if there are no rounds."""
    rows = summarize_rounds(rounds)
    return render_table(TIMES_HEADER, rows) if rows else ""


def render_limits(results: Results) -> str:
    """Render the table of figures with limits, with figures over their limit in bold; "" if there are none."""
    rows = [finding.row for finding in check_limits(results)]
    return render_table(FINDINGS_HEADER, rows) if rows else ""


def render_figures(results: Results) -> str:
    """Render the table of the observations' figures that have no limit; "" if there are none."""
    rows = [finding.row[:-1] for finding in results.findings if finding.limit is None]
    return render_table(FINDINGS_HEADER[:-1], rows) if rows else ""


def render_costs(rounds: Iterable[Round]) -> str:
    """Render the table of the product's resource usage; "" if there is none."""
    rows = summarize_costs(rounds)
    return render_table(COSTS_HEADER, rows) if rows else ""


def render_failures(results: Results) -> str:
    """Return one line for each case that could not be measured."""
    return "\n".join(failure.line for failure in results.failures)
