"""The selection of cases, and their clusters."""

from __future__ import annotations

import pytest

from bench.cases import CASES, FLEET, FULL, LARGE, QUICK, RESTING, TWO_EVICTORS, USUAL, Case, chosen, clusters


def test_each_subset_holds_the_one_before() -> None:
    quick, usual, full = (set(chosen("", subset)) for subset in (QUICK, USUAL, FULL))

    assert quick < usual < full == set(CASES)


def test_a_name_chooses_its_case_alone() -> None:
    """Check that a complete name selects only its case, although other names begin with it."""
    assert [case.name for case in chosen("10 pods", QUICK)] == ["10 pods"]


def test_words_choose_in_their_order_and_none_twice() -> None:
    assert [case.name for case in chosen("behind a budget of 1, 100 pods,100 pods each", QUICK)] == [
        "30 pods behind a budget of 10",
        "30 pods behind a budget of 10 with two processes of evict",
        "30 pods behind a budget of 1",
        "100 pods",
        "100 nodes at once with 100 pods each",
    ]


def test_a_word_that_no_case_has_is_refused_with_the_cases() -> None:
    with pytest.raises(ValueError, match="no case has 'pigeon' in its name: nothing to do; 10 pods; "):
        chosen("10 pods,pigeon", USUAL)


def test_each_case_can_be_chosen_by_its_name() -> None:
    """Check that no name contains a comma, so that each case can be selected by its name."""
    assert [chosen(case.name, FULL) for case in CASES] == [(case,) for case in CASES]


def test_cases_share_a_cluster_with_a_node_to_spare_but_those_of_the_fleet() -> None:
    five, twenty = Case("five", nodes=5), Case("twenty", nodes=20)

    assert clusters([five, RESTING, twenty], "local") == {21: [five, twenty], FLEET: [RESTING]}


def test_a_case_is_measured_on_its_engines_alone() -> None:
    everywhere = Case("everywhere")

    assert clusters([everywhere, LARGE, TWO_EVICTORS], "local") == {101: [everywhere, LARGE]}
    assert clusters([everywhere, LARGE, TWO_EVICTORS], "knative") == {2: [everywhere, TWO_EVICTORS]}
    assert clusters([LARGE, TWO_EVICTORS], "rabbitmq") == {}
