"""Tests for the statistics of benchmark rounds (medians, ranges, ratios of paired rounds), and for the results file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases import IDLE
from bench.findings import Finding
from bench.results import (
    Failure,
    Measurement,
    Results,
    Round,
    compute_median_cost,
    compute_medians,
    compute_ratio,
    format_range,
    read_results,
    render_table,
    summarize_costs,
    summarize_rounds,
    write_results,
)
from localcluster.errors import LocalClusterError


def build_rounds(drainer: str, *seconds: float) -> list[Round]:
    return [
        Round("local", "10 pods", drainer, number, round_seconds, 0.1, 0.2)
        for number, round_seconds in enumerate(seconds)
    ]


def test_ratio_is_median_of_ratios_of_paired_rounds() -> None:
    """Check that a ratio is the median over pairs of rounds, because a slow phase affects both rounds of a pair."""
    assert compute_ratio(build_rounds("ours", 1.0, 4.0, 3.0), build_rounds("floor", 1.0, 2.0, 1.0)) == 2.0


def test_unpaired_round_does_not_affect_ratio() -> None:
    assert compute_ratio(build_rounds("ours", 1.0, 9.0), build_rounds("floor", 2.0)) == 0.5
    assert math.isnan(compute_ratio(build_rounds("ours", 1.0), []))


def test_formatted_range_contains_median_minimum_and_maximum() -> None:
    assert format_range([3.0, 1.0, 2.0]) == "2.00 (1.00–3.00)"


def test_each_case_has_a_row_for_each_drainer() -> None:
    rows = summarize_rounds([*build_rounds("ours", 1.0, 2.0, 3.0), *build_rounds("kubectl drain", 2.0, 4.0, 6.0)])

    assert rows == [
        [
            "local",
            "10 pods",
            "ours",
            "2.00 (1.00–3.00)",
            "0.50 of kubectl drain",
            "0.10 (0.10–0.10)",
            "0.20 (0.20–0.20)",
        ],
        ["local", "10 pods", "kubectl drain", "4.00 (2.00–6.00)", "", "0.10 (0.10–0.10)", "0.20 (0.20–0.20)"],
    ]


def test_median_costs_are_sorted_in_descending_order() -> None:
    costs = [{"events": {"dev.a": count, "dev.b": 9.0}, "waits": {"longest": 0.5}} for count in (1.0, 3.0, 5.0)]
    rounds = [Round("knative", "10 pods", "ours", number, 1, 1, 1, count) for number, count in enumerate(costs)]

    assert summarize_costs(rounds)[0] == ["knative", "10 pods", "events", "12", "b 9, a 3"]
    assert summarize_costs(rounds)[-1] == ["knative", "10 pods", "waits", "", "longest 0.5"]


def test_table_is_rendered_as_markdown() -> None:
    assert render_table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_written_results_file_can_be_read(tmp_path: Path) -> None:
    measured = build_rounds("ours", 1.0, 2.0), [Finding("e", "c", "w", 1.0, 2.0)], [Failure("e", "c", "é")]
    results = Results({"cores": 2}, *measured, {"e: c": {"cores": 1}})
    file = tmp_path / "results.json"

    for expected in (results, Results()):
        write_results(file, expected)
        assert read_results(file) == expected


def test_new_measurement_replaces_earlier_results_of_its_case() -> None:
    """Check that adding a case's new measurement replaces the case's earlier results.

    The second round of a case does not replace the first round of the same run.
    """
    old = Results({"date": "Monday"}, build_rounds("ours", 1.0), [Finding("local", IDLE.name, "w", 1.0)])
    continued = old.continue_run({"date": "Friday"})
    assert continued == replace(
        old,
        environment={"date": "Friday"},
        earlier_environments={"local: 10 pods": {"date": "Monday"}, f"local: {IDLE.name}": {"date": "Monday"}},
    )

    for round_ in build_rounds("ours", 7.0, 8.0):
        continued.add(round_)

    assert continued.rounds == build_rounds("ours", 7.0, 8.0)
    assert continued.findings == old.findings
    assert continued.earlier_environments == {f"local: {IDLE.name}": {"date": "Monday"}}


def test_environment_of_earlier_run_is_kept_in_later_runs() -> None:
    results = Results({"date": "Monday"}, build_rounds("ours", 1.0))
    for day in ("Tuesday", "Friday"):
        results = results.continue_run({"date": day})

    assert results.earlier_environments == {"local: 10 pods": {"date": "Monday"}}
    assert results.continue_run({"date": "Monday"}).earlier_environments == {}


@pytest.mark.parametrize(
    "text", ['{"environment": {}, "rounds": [', "[]", '{"environment": {}, "rounds": [{"no": 1}]}']
)
def test_invalid_results_file_is_reported(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)

    with pytest.raises(LocalClusterError, match=rf"{file}: invalid benchmark results: .*: remove the file and run"):
        read_results(file)


def test_failed_write_leaves_results_file_unchanged(tmp_path: Path) -> None:
    """Check that a failed write, for example because the disk is full, leaves the earlier file unchanged."""
    file, results = tmp_path / "results.json", Results({}, build_rounds("ours", 1.0))
    write_results(file, results)

    with pytest.raises(TypeError, match="object is not JSON serializable"):
        write_results(file, Results({"cores": object()}))
    Path(f"{file}.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write_results(file, Results())

    assert read_results(file) == results


def test_results_store_and_format_each_kind_of_measurement() -> None:
    (drain,), finding, failure = build_rounds("ours", 1.0), Finding("e", "d", "w", 1.0), Failure("e", "c", "why")
    results = Results()
    for measurement in (drain, finding, failure):
        results.add(measurement)

    assert results == Results({}, [drain], [finding], [failure])
    assert drain.line == "local: 10 pods: ours: 1.00 s"
    assert failure.line == "e: c: not measured: why"


def test_rounds_and_findings_of_failed_case_are_removed() -> None:
    """Check that a failed case loses its rounds and findings, because its measurement is incomplete."""
    other_rounds = [Round("knative", "10 pods", "ours", 0, 1, 1, 1), Round("local", "100 pods", "ours", 0, 1, 1, 1)]
    failure, results = Failure("local", "10 pods", "why"), Results()
    measured: list[Measurement] = [
        *build_rounds("ours", 1.0, 2.0),
        Finding("local", "10 pods", "w", 1.0),
        *other_rounds,
        failure,
    ]
    for measurement in measured:
        results.add(measurement)

    assert results == Results({}, other_rounds, [], [failure])


def test_failure_before_first_round_keeps_earlier_results() -> None:
    """Check that a failure before the first round keeps the results of earlier runs, and replaces their failure."""
    old = Results({"date": "Monday"}, build_rounds("ours", 1.0), [Finding("local", IDLE.name, "w", 1.0)])
    old.add(Failure("knative", "10 pods", "timed out"))
    continued, second_failure = old.continue_run({"date": "Friday"}), Failure("knative", "10 pods", "timed out again")

    for failure in (Failure("local", "10 pods", "why"), Failure("local", IDLE.name, "why"), second_failure):
        continued.add(failure)

    assert (continued.rounds, continued.findings, continued.failures) == (old.rounds, old.findings, [second_failure])
    assert continued.earlier_environments == {
        "local: 10 pods": {"date": "Monday"},
        f"local: {IDLE.name}": {"date": "Monday"},
    }


def test_results_are_sorted_by_engine_and_case() -> None:
    """Check that results are sorted by engine and case, rounds keep their order, and unknown cases come last."""
    names = [
        ("knative", "10 pods"),
        ("local", "gone"),
        ("local", "100 pods"),
        ("local", "10 pods"),
        ("local", "10 pods"),
    ]
    results = Results(
        {}, [Round(engine, case, drainer, 0, 1, 1, 1) for (engine, case), drainer in zip(names, "abcde", strict=True)]
    )

    assert [round_.drainer for round_ in results.sort().rounds] == ["d", "e", "c", "b", "a"]


def test_typical_cost_is_median_of_round_totals() -> None:
    """Check that the typical cost is the median of the rounds' totals, not the sum of the components' medians.

    That sum would omit a component that occurs in only one of three rounds.
    """
    request_counts: list[dict[str, float]] = [
        {"get": 4.0, "list": 1.0},
        {"get": 4.0, "patch": 3.0},
        {"get": 4.0, "create": 2.0},
    ]
    rounds = [Round("local", "10 pods", "ours", 0, 1, 1, 1, {"requests": counts}) for counts in request_counts]

    assert compute_median_cost(rounds, "requests") == 6.0
    assert compute_median_cost(rounds, "requests", ("list", "patch")) == 1.0
    assert sum(compute_medians(rounds, "requests").values()) == 4.0
