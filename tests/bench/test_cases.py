"""Tests for the selection of benchmark cases, and for the clusters on which they run."""

from __future__ import annotations

import pytest

from bench.cases import (
    CASES,
    FULL,
    HUNDRED_NODES,
    IDLE_MAINTENANCES,
    LARGE_CLUSTER_NODES,
    QUICK,
    TWO_EVICT_PROCESSES,
    USUAL,
    DrainCase,
    group_by_cluster_size,
    select_cases,
)


def test_subsets_of_cases_are_nested() -> None:
    quick, usual, full = (set(select_cases("", subset)) for subset in (QUICK, USUAL, FULL))

    assert quick < usual < full == set(CASES)


def test_complete_case_name_selects_only_that_case() -> None:
    """Check that a case's complete name selects only this case, even if it is a prefix of other names."""
    assert [case.name for case in select_cases("10 pods", QUICK)] == ["10 pods"]


def test_parts_of_names_select_cases_in_order_without_duplicates() -> None:
    assert [case.name for case in select_cases("behind a budget of 1, 100 pods,100 pods each", QUICK)] == [
        "30 pods behind a budget of 10",
        "30 pods behind a budget of 10 with two evict processes",
        "30 pods behind a budget of 1",
        "100 pods",
        "100 nodes at once with 100 pods each",
    ]


def test_filter_without_match_is_rejected_with_list_of_cases() -> None:
    with pytest.raises(ValueError, match="no case name contains 'pigeon': choose from nothing to do; 10 pods; "):
        select_cases("10 pods,pigeon", USUAL)


def test_each_case_can_be_selected_by_name() -> None:
    """Check that no case name contains a comma, the separator of names, so that each name selects its case."""
    assert [select_cases(case.name, FULL) for case in CASES] == [(case,) for case in CASES]


def test_large_cases_run_on_a_separate_cluster() -> None:
    five_nodes, twenty_nodes = DrainCase("five", nodes=5), DrainCase("twenty", nodes=20)

    assert group_by_cluster_size([five_nodes, IDLE_MAINTENANCES, twenty_nodes], "local") == {
        21: [five_nodes, twenty_nodes],
        LARGE_CLUSTER_NODES: [IDLE_MAINTENANCES],
    }


def test_case_is_measured_only_with_its_engines() -> None:
    case = DrainCase("everywhere")

    assert group_by_cluster_size([case, HUNDRED_NODES, TWO_EVICT_PROCESSES], "local") == {101: [case, HUNDRED_NODES]}
    assert group_by_cluster_size([case, HUNDRED_NODES, TWO_EVICT_PROCESSES], "knative") == {
        2: [case, TWO_EVICT_PROCESSES]
    }
    assert group_by_cluster_size([HUNDRED_NODES, TWO_EVICT_PROCESSES], "rabbitmq") == {}
