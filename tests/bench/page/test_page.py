"""Tests that docs/performance.md shows exactly the results in docs/performance/results.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.findings import Finding
from bench.page.__main__ import PAGE_FILE, PLOTS_DIR, SHOWN_RESULTS_FILE, format_slower_cases, render_page
from bench.page.limits import HINT_TYPES
from bench.page.plots import Plot, build_plots, contains_plot
from bench.results import Failure, Results, Round, read_results


@pytest.fixture(scope="module")
def shown_results() -> Results:
    return read_results(SHOWN_RESULTS_FILE)


def build_rounds(case: str, drainer: str, *seconds: float) -> list[Round]:
    costs = {"requests": {"list pods": 40.0}} if drainer == "ours" else {}
    return [
        Round("local", case, drainer, number, round_seconds, 0.1, 0.2, costs)
        for number, round_seconds in enumerate(seconds)
    ]


def test_performance_page_is_up_to_date(shown_results: Results) -> None:
    """Check that docs/performance.md is up to date; `make performance` updates it."""
    assert PAGE_FILE.read_text() == render_page(shown_results)


def test_plots_are_up_to_date(shown_results: Results) -> None:
    """Check that the committed plots show the current data; another version of matplotlib may draw them differently."""
    expected = build_plots(shown_results)

    assert {file.name for file in PLOTS_DIR.glob("*.svg")} == {plot.file_name for plot in expected}
    assert [
        plot.file_name for plot in expected if not contains_plot((PLOTS_DIR / plot.file_name).read_text(), plot)
    ] == []


def test_page_lists_measurements_and_failures() -> None:
    results = Results(
        {"cores": 2}, build_rounds("10 pods", "ours", 1.0), failures=[Failure("local", "100 pods", "timed out")]
    )

    text = render_page(results)

    assert "Measured with: cores 2.\n\n" in text
    assert "| local | 10 pods | ours | 1.00 (1.00–1.00) |" in text
    assert "local: 100 pods: not measured: timed out" in text
    assert "![local: duration of a drain](performance/times-local.svg)" in text
    assert "{{" not in text


def test_page_lists_earlier_runs() -> None:
    results = Results(
        {"cores": 2},
        earlier_environments={"local: a": {"cores": 1}, "local: b": {"cores": 8}, "local: c": {"cores": 1}},
    )

    text = render_page(results)

    assert "- by an earlier run: local: a; local: c: cores 1\n- by an earlier run: local: b: cores 8\n" in text


@pytest.mark.parametrize("hint", HINT_TYPES)
def test_page_names_each_hint_type(hint: str) -> None:
    [sentence] = [line for line in render_page(Results()).splitlines() if "A hint is one of the events" in line]

    assert f"`{hint.removeprefix('dev.nodemaintenance.')}`" in sentence


def test_page_lists_findings_with_limits() -> None:
    results = Results({}, [], [Finding("local", "rest", "events", 1.0, 0.0), Finding("local", "rest", "cores", 0.2)])

    assert "| local | rest | events | **1** | 0 |" in render_page(results)
    assert "| local | rest | cores | 0.2 |" in render_page(results)


def test_page_lists_cases_that_became_slower() -> None:
    rounds = [
        *build_rounds("a", "ours", 1.0),
        *build_rounds("a", "floor", 0.8),
        *build_rounds("a", "kubectl drain", 2.0),
    ]

    assert format_slower_cases(Results({}, rounds)) == "- local: a: 1.25 of floor"


@pytest.mark.slow
def test_plots_are_reproducible(tmp_path: Path) -> None:
    """Check that equal results produce identical plot files, so that an update of the page changes only new plots."""
    results = Results({}, [*build_rounds("a", "ours", 1.0, 3.0), *build_rounds("a", "floor", 0.8)])
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"

    for file in (first, second):
        build_plots(results)[0].draw(file)

    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_plot_file_matches_only_the_plotted_results(tmp_path: Path) -> None:
    def build_plot(*seconds: float) -> Plot:
        return build_plots(Results({}, build_rounds("a", "ours", *seconds)))[0]

    build_plot(1.0).draw(tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()

    assert contains_plot(text, build_plot(1.0))
    assert not contains_plot(text, build_plot(2.0))


def test_each_engine_has_plots_of_times_and_requests() -> None:
    rounds = build_rounds("10 pods", "ours", 1.0, 2.0, 4.0) + build_rounds("10 pods", "floor", 0.5)

    times, requests = build_plots(Results({}, rounds))

    assert times.series == {"ours": {"10 pods": [1.0, 2.0, 4.0]}, "floor": {"10 pods": [0.5, 0.5, 0.5]}}
    assert requests.series == {"ours": {"10 pods": [40.0, 40.0, 40.0]}, "limit": {"10 pods": [42.0, 42.0, 42.0]}}
