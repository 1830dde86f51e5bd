"""Statistics of rounds (medians, ranges and ratios of adjacent rounds), and the results file."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from bench.cases import REST
from bench.findings import Finding
from bench.results import (
    Failure,
    Measurement,
    Results,
    Round,
    costs,
    medians,
    ratio,
    read,
    spread,
    summary,
    table,
    typical,
    write,
)
from localcluster.errors import LocalClusterError


def rounds(way: str, *seconds: float) -> list[Round]:
    return [Round("local", "10 pods", way, number, each, 0.1, 0.2) for number, each in enumerate(seconds)]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Check that a ratio is the median of each pair's ratio: a slow phase affects both rounds of a pair."""
    assert ratio(rounds("ours", 1.0, 4.0, 3.0), rounds("floor", 1.0, 2.0, 1.0)) == 2.0


def test_a_round_without_its_pair_does_not_count() -> None:
    assert ratio(rounds("ours", 1.0, 9.0), rounds("floor", 2.0)) == 0.5
    assert math.isnan(ratio(rounds("ours", 1.0), []))


def test_a_spread_is_median_and_range() -> None:
    assert spread([3.0, 1.0, 2.0]) == "2.00 (1.00–3.00)"


def test_each_case_has_a_row_for_each_way() -> None:
    rows = summary([*rounds("ours", 1.0, 2.0, 3.0), *rounds("kubectl drain", 2.0, 4.0, 6.0)])

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


def test_costs_are_the_medians_the_largest_parts_first() -> None:
    spent = [{"events": {"dev.a": each, "dev.b": 9.0}, "waits": {"longest": 0.5}} for each in (1.0, 3.0, 5.0)]
    found = [Round("knative", "10 pods", "ours", number, 1, 1, 1, each) for number, each in enumerate(spent)]

    assert costs(found)[0] == ["knative", "10 pods", "events", "12", "b 9, a 3"]
    assert costs(found)[-1] == ["knative", "10 pods", "waits", "", "longest 0.5"]


def test_a_table_is_markdown() -> None:
    assert table(("a", "b"), [["1", "2"]]) == "| a | b |\n| --- | --- |\n| 1 | 2 |"


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    measured = rounds("ours", 1.0, 2.0), [Finding("e", "c", "w", 1.0, 2.0)], [Failure("e", "c", "é")]
    found = Results({"cores": 2}, *measured, {"e: c": {"cores": 1}})
    file = tmp_path / "results.json"

    for each in (found, Results()):
        write(file, each)
        assert read(file) == each


def test_what_is_measured_anew_takes_the_place_of_that_case_when_it_comes_and_not_before() -> None:
    """Check that a new measurement replaces the earlier results of its case when it is added, and not before.

    The second round of a case does not replace the first.
    """
    old = Results({"date": "Monday"}, rounds("ours", 1.0), [Finding("local", REST.name, "w", 1.0)])
    found = old.continued({"date": "Friday"})
    assert found == replace(
        old,
        about={"date": "Friday"},
        earlier={"local: 10 pods": {"date": "Monday"}, f"local: {REST.name}": {"date": "Monday"}},
    )

    for each in rounds("ours", 7.0, 8.0):
        found.add(each)

    assert found.rounds == rounds("ours", 7.0, 8.0)
    assert found.findings == old.findings
    assert found.earlier == {f"local: {REST.name}": {"date": "Monday"}}


def test_a_case_keeps_when_it_was_measured_through_several_runs() -> None:
    found = Results({"date": "Monday"}, rounds("ours", 1.0))
    for day in ("Tuesday", "Friday"):
        found = found.continued({"date": day})

    assert found.earlier == {"local: 10 pods": {"date": "Monday"}}
    assert found.continued({"date": "Monday"}).earlier == {}


@pytest.mark.parametrize("text", ['{"about": {}, "rounds": [', "[]", '{"about": {}, "rounds": [{"no": 1}]}'])
def test_a_file_that_has_no_results_is_named_in_a_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "results.json"
    file.write_text(text)

    with pytest.raises(LocalClusterError, match=rf"{file} has no results of the bench: .*; remove it and measure anew"):
        read(file)


def test_a_file_that_cannot_be_written_is_as_it_was(tmp_path: Path) -> None:
    """Check that a failed write, for example because the disk is full, leaves the earlier file unchanged."""
    file, found = tmp_path / "results.json", Results({}, rounds("ours", 1.0))
    write(file, found)

    with pytest.raises(TypeError, match="object is not JSON serializable"):
        write(file, Results({"cores": object()}))
    Path(f"{file}.new").mkdir()
    with pytest.raises(IsADirectoryError):
        write(file, Results())

    assert read(file) == found


def test_each_kind_is_kept_by_itself_and_told_in_a_line() -> None:
    (drain,), finding, failure = rounds("ours", 1.0), Finding("e", "d", "w", 1.0), Failure("e", "c", "why")
    found = Results()
    for each in (drain, finding, failure):
        found.add(each)

    assert found == Results({}, [drain], [finding], [failure])
    assert drain.line == "local: 10 pods: ours: 1.00 s"
    assert failure.line == "e: c: not measured: why"


def test_a_case_that_failed_has_no_rounds_and_no_findings() -> None:
    """Check that a failed case loses its rounds and findings, because they were not measured under its conditions."""
    others = [Round("knative", "10 pods", "ours", 0, 1, 1, 1), Round("local", "100 pods", "ours", 0, 1, 1, 1)]
    failure, found = Failure("local", "10 pods", "why"), Results()
    measured: list[Measurement] = [*rounds("ours", 1.0, 2.0), Finding("local", "10 pods", "w", 1.0), *others, failure]
    for each in measured:
        found.add(each)

    assert found == Results({}, others, [], [failure])


def test_a_failure_before_the_first_round_leaves_what_an_earlier_run_has_measured() -> None:
    """Check that a failure before the first round keeps earlier runs' results, and replaces an earlier failure."""
    old = Results({"date": "Monday"}, rounds("ours", 1.0), [Finding("local", REST.name, "w", 1.0)])
    old.add(Failure("knative", "10 pods", "it rained"))
    found, again = old.continued({"date": "Friday"}), Failure("knative", "10 pods", "it rains")

    for each in (Failure("local", "10 pods", "why"), Failure("local", REST.name, "why"), again):
        found.add(each)

    assert (found.rounds, found.findings, found.failures) == (old.rounds, old.findings, [again])
    assert found.earlier == {"local: 10 pods": {"date": "Monday"}, f"local: {REST.name}": {"date": "Monday"}}


def test_results_are_ordered_as_the_cases_are_whenever_each_was_measured() -> None:
    """Check that results are sorted by engine and case, rounds keep their order, and unknown cases come last."""
    names = [
        ("knative", "10 pods"),
        ("local", "gone"),
        ("local", "100 pods"),
        ("local", "10 pods"),
        ("local", "10 pods"),
    ]
    found = Results(
        {}, [Round(engine, case, way, 0, 1, 1, 1) for (engine, case), way in zip(names, "abcde", strict=True)]
    )

    assert [each.way for each in found.ordered().rounds] == ["d", "e", "c", "b", "a"]


def test_what_a_drain_typically_costs_is_what_a_round_cost() -> None:
    """Check that the typical cost is the median of the rounds' totals, not the sum of the medians of all parts.

    A part that occurs in one of three rounds would otherwise be missing.
    """
    parts: list[dict[str, float]] = [{"get": 4.0, "list": 1.0}, {"get": 4.0, "patch": 3.0}, {"get": 4.0, "create": 2.0}]
    found = [Round("local", "10 pods", "ours", 0, 1, 1, 1, {"requests": each}) for each in parts]

    assert typical(found, "requests") == 6.0
    assert typical(found, "requests", ("list", "patch")) == 1.0
    assert sum(medians(found, "requests").values()) == 4.0
