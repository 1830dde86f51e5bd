"""docs/performance.md shows exactly the results of docs/performance/results.json."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.findings import Finding
from bench.page.__main__ import FOLDER, PAGE, SHOWN, page, slower
from bench.page.limits import HINTS
from bench.page.plots import Plot, is_in, plots
from bench.results import Failure, Results, Round, read


@pytest.fixture(scope="module")
def shown() -> Results:
    return read(SHOWN)


def rounds(case: str, way: str, *seconds: float) -> list[Round]:
    costs = {"requests": {"list pods": 40.0}} if way == "ours" else {}
    return [Round("local", case, way, number, each, 0.1, 0.2, costs) for number, each in enumerate(seconds)]


def test_the_page_is_up_to_date(shown: Results) -> None:
    """docs/performance.md is up to date; `make performance` updates it."""
    assert PAGE.read_text() == page(shown)


def test_the_plots_are_up_to_date(shown: Results) -> None:
    """Check that the plots show the current data; another version of the library may draw them differently."""
    wanted = plots(shown)

    assert {file.name for file in FOLDER.glob("*.svg")} == {plot.name for plot in wanted}
    assert [plot.name for plot in wanted if not is_in((FOLDER / plot.name).read_text(), plot)] == []


def test_the_page_shows_what_was_measured_and_what_was_not() -> None:
    found = Results({"cores": 2}, rounds("10 pods", "ours", 1.0), failures=[Failure("local", "100 pods", "it rained")])

    text = page(found)

    assert "Measured with: cores 2.\n\n" in text
    assert "| local | 10 pods | ours | 1.00 (1.00–1.00) |" in text
    assert "local: 100 pods: not measured: it rained" in text
    assert "![local: how long a drain takes](performance/times-local.svg)" in text
    assert "{{" not in text


def test_the_page_says_what_an_earlier_run_has_measured() -> None:
    found = Results(
        {"cores": 2}, earlier={"local: a": {"cores": 1}, "local: b": {"cores": 8}, "local: c": {"cores": 1}}
    )

    text = page(found)

    assert "- by an earlier run: local: a; local: c: cores 1\n- by an earlier run: local: b: cores 8\n" in text


@pytest.mark.parametrize("hint", HINTS)
def test_the_page_names_each_event_that_is_counted_as_a_hint(hint: str) -> None:
    [sentence] = [line for line in page(Results()).splitlines() if "A hint is an event" in line]

    assert f"`{hint.removeprefix('dev.nodemaintenance.')}`" in sentence


def test_an_observation_is_on_the_page_with_its_limit_or_without() -> None:
    found = Results({}, [], [Finding("local", "rest", "events", 1.0, 0.0), Finding("local", "rest", "cores", 0.2)])

    assert "| local | rest | events | **1** | 0 |" in page(found)
    assert "| local | rest | cores | 0.2 |" in page(found)


def test_where_another_way_is_faster_is_said() -> None:
    found = [*rounds("a", "ours", 1.0), *rounds("a", "floor", 0.8), *rounds("a", "kubectl drain", 2.0)]

    assert slower(Results({}, found)) == "- local: a: 1.25 of floor"


@pytest.mark.slow
def test_the_same_results_make_the_same_plot(tmp_path: Path) -> None:
    """Check that the same results give the same file, so that regenerating the page changes only new measurements."""
    found = Results({}, [*rounds("a", "ours", 1.0, 3.0), *rounds("a", "floor", 0.8)])
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"

    for file in (first, second):
        plots(found)[0].draw(file)

    assert first.read_bytes() == second.read_bytes()


@pytest.mark.slow
def test_a_plot_tells_what_it_shows(tmp_path: Path) -> None:
    def drawn(*seconds: float) -> Plot:
        return plots(Results({}, rounds("a", "ours", *seconds)))[0]

    drawn(1.0).draw(tmp_path / "plot.svg")
    text = (tmp_path / "plot.svg").read_text()

    assert is_in(text, drawn(1.0))
    assert not is_in(text, drawn(2.0))


def test_each_engine_has_plots_of_times_and_requests() -> None:
    found = rounds("10 pods", "ours", 1.0, 2.0, 4.0) + rounds("10 pods", "floor", 0.5)

    times, requests = plots(Results({}, found))

    assert times.series == {"ours": {"10 pods": [1.0, 2.0, 4.0]}, "floor": {"10 pods": [0.5, 0.5, 0.5]}}
    assert requests.series == {"ours": {"10 pods": [40.0, 40.0, 40.0]}, "at most": {"10 pods": [42.0, 42.0, 42.0]}}
