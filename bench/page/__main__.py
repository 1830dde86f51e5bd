"""`make performance`: writes docs/performance.md and its plots from the results of `make bench`.

Without new results, the program uses the results that the page already shows. The page is rendered from `template.md`
in this directory: each name in double braces is replaced with a generated part.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench import results
from bench.observer_process import ROOT
from bench.page import plots, tables
from bench.results import Results, compute_ratio, group_rounds
from localcluster.errors import LocalClusterError

RESULTS_FILE = ROOT / "bench" / "results.json"
PAGE_FILE = ROOT / "docs" / "performance.md"
PLOTS_DIR = PAGE_FILE.with_suffix("")
SHOWN_RESULTS_FILE = PLOTS_DIR / "results.json"
"""The results that the page shows. The page depends only on this file and on the template."""
TEMPLATE_FILE = Path(__file__).with_name("template.md")
EMPTY_SECTION = "None."


def render_page(run_results: Results) -> str:
    """Render the whole page as Markdown."""
    parts = {
        "machine": format_environment(run_results.environment),
        "earlier": format_earlier_runs(run_results),
        "plots": "\n".join(f"![{plot.title}](performance/{plot.file_name})" for plot in plots.build_plots(run_results)),
        "times": tables.render_times(run_results.rounds),
        "slower": format_slower_cases(run_results) or EMPTY_SECTION,
        "limits": tables.render_limits(run_results) or EMPTY_SECTION,
        "figures": tables.render_figures(run_results) or EMPTY_SECTION,
        "failures": tables.render_failures(run_results) or EMPTY_SECTION,
        "spent": tables.render_costs(run_results.rounds),
    }
    text = TEMPLATE_FILE.read_text()
    for name, part in parts.items():
        text = text.replace(f"{{{{{name}}}}}", part)
    return text


def format_environment(environment: Mapping[str, Any]) -> str:
    """Format the date of the measurements and the host as Markdown."""
    return ", ".join(f"{name} {value}" for name, value in environment.items())


def format_earlier_runs(run_results: Results) -> str:
    """Return one Markdown line per date and host of earlier runs, with the cases; "" if one run measured all cases."""
    runs: dict[str, list[str]] = {}
    for case, environment in run_results.earlier_environments.items():
        runs.setdefault(format_environment(environment), []).append(case)
    return "\n".join(f"- by an earlier run: {'; '.join(cases)}: {environment}" for environment, cases in runs.items())


def format_slower_cases(run_results: Results) -> str:
    """Return a Markdown list of the cases in which another drainer is faster than the product; "" if none exists."""
    groups = group_rounds(run_results.rounds)
    pairs = [(key, ours, key[:2]) for key, ours in groups.items() if key[2] == "ours"]
    ratios = [
        (engine, case, drainer, compute_ratio(ours, other_rounds))
        for _, ours, engine_and_case in pairs
        for (engine, case, drainer), other_rounds in groups.items()
        if (engine, case) == engine_and_case and drainer != "ours"
    ]
    return "\n".join(
        f"- {engine}: {case}: {ratio:.2f} of {drainer}" for engine, case, drainer, ratio in ratios if ratio > 1
    )


def main() -> None:
    """Write the page, its plots, and the results that the page shows."""
    source = RESULTS_FILE if RESULTS_FILE.exists() else SHOWN_RESULTS_FILE
    run_results = results.read_results(source).sort()
    PLOTS_DIR.mkdir(exist_ok=True)
    for old_plot in PLOTS_DIR.glob("*.svg"):
        old_plot.unlink()
    for plot in plots.build_plots(run_results):
        plot.draw(PLOTS_DIR / plot.file_name)
    results.write_results(SHOWN_RESULTS_FILE, run_results)
    PAGE_FILE.write_text(render_page(run_results))
    print(f"{PAGE_FILE.relative_to(ROOT)}: written from {source.relative_to(ROOT)}", file=sys.stderr)


if __name__ == "__main__":
    try:
        main()
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
