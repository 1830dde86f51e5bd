"""Rows of rounds: medians, ranges, and ratios of rounds that ran next to each other; and the file that keeps them."""

from __future__ import annotations

import math
from pathlib import Path

from bench.cases import REST, Case
from bench.findings import Finding
from bench.results import Failure, Results, Round, costs, medians, ratio, read, spread, summary, table, typical, write


def rounds(way: str, *seconds: float) -> list[Round]:
    return [Round("local", "10 pods", way, number, each, 0.1, 0.2) for number, each in enumerate(seconds)]


def test_a_ratio_is_the_median_of_the_rounds_ratios() -> None:
    """Not the ratio of the medians: a machine that is slow for a while slows both of a pair."""
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
    found = Results(
        {"cores": 2}, rounds("ours", 1.0, 2.0), [Finding("e", "c", "w", 1.0, 2.0)], [Failure("e", "c", "é")]
    )
    file = tmp_path / "results.json"

    for each in (found, Results()):
        write(file, each)
        assert read(file) == each


def test_what_is_measured_anew_replaces_that_engine_and_case_alone() -> None:
    found = Results(
        {}, rounds("ours", 1.0), [Finding("local", REST.name, "w", 1.0)], [Failure("knative", "10 pods", "e")]
    )

    assert found.without(["local"], [Case("10 pods"), REST]) == Results(
        {}, failures=[Failure("knative", "10 pods", "e")]
    )
    assert found.without(["local"], [Case("100 pods")]) == found


def test_each_kind_is_kept_by_itself_and_told_in_a_line() -> None:
    (drain,), finding, failure = rounds("ours", 1.0), Finding("e", "d", "w", 1.0), Failure("e", "c", "why")
    found = Results()
    for each in (drain, finding, failure):
        found.add(each)

    assert found == Results({}, [drain], [finding], [failure])
    assert drain.line == "local: 10 pods: ours: 1.00 s"
    assert failure.line == "e: c: not measured: why"


def test_a_case_that_failed_has_no_rounds_and_no_findings() -> None:
    """As one beside foreign writes that were too few: what was drained meanwhile is published as no such case."""
    others = [Round("knative", "10 pods", "ours", 0, 1, 1, 1), Round("local", "100 pods", "ours", 0, 1, 1, 1)]
    failure, found = Failure("local", "10 pods", "why"), Results()
    for each in (*rounds("ours", 1.0, 2.0), Finding("local", "10 pods", "w", 1.0), *others, failure):
        found.add(each)

    assert found == Results({}, others, [], [failure])


def test_results_are_ordered_as_the_cases_are_whenever_each_was_measured() -> None:
    """The rounds of a case stay in their order; one that is no longer a case comes last."""
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
    """Not the sum of what each part typically cost: a part that one round in three has would be nobody's."""
    parts: list[dict[str, float]] = [{"get": 4.0, "list": 1.0}, {"get": 4.0, "patch": 3.0}, {"get": 4.0, "create": 2.0}]
    found = [Round("local", "10 pods", "ours", 0, 1, 1, 1, {"requests": each}) for each in parts]

    assert typical(found, "requests") == 6.0
    assert typical(found, "requests", ("list", "patch")) == 1.0
    assert sum(medians(found, "requests").values()) == 4.0
