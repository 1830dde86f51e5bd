"""Tests for the limits that a benchmark run must meet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.cases import HUNDRED_NODES, TWO_EVICT_PROCESSES, DrainCase
from bench.findings import Finding
from bench.page.limits import DRAIN_CASES, check_limits, compute_max_requests
from bench.results import Results, Round

TWENTY_NODES = "20 nodes at once with 5 s termination"
COSTS = {
    "events": {
        "dev.nodemaintenance.pods.gone": 4.0,
        "dev.nodemaintenance.budget.opened": 2.0,
        "dev.nodemaintenance.pods.evicted": 1.0,
        "dev.nodemaintenance.node.drained": 5.0,
    },
    "requests": {"list pods": 30.0, "create pods/eviction": 10.0},
    "memory": {"podsource": 151.0, "functions": 119.0, "kube-apiserver": 900.0},
    "waits": {"longest": 7.5, "longest except evict": 3.5, "longest in a server queue": 0.5},
}


def build_round(case: str, drainer: str = "ours", seconds: float = 1.0, engine: str = "local") -> Round:
    costs: Mapping[str, Mapping[str, float]] = COSTS if drainer == "ours" else {}
    return Round(engine, case, drainer, 0, seconds, 0.07, 0.1, costs)


def check_case_limits(*rounds: Round) -> dict[str, tuple[float, float | None]]:
    """Return the value and limit of each metric for the last round's case."""
    engine, case = rounds[-1].engine, rounds[-1].case
    findings = check_limits(Results({}, list(rounds)))
    return {
        finding.metric: (finding.value, finding.limit)
        for finding in findings
        if (finding.engine, finding.case) == (engine, case)
    }


def test_each_drain_case_has_limits_for_lag_hints_and_requests() -> None:
    """Check that each drain case has limits for lag, hints and requests.

    Hints are the events of PodSource, and the events `pods.evicted` of `evict`.
    """
    assert check_case_limits(build_round("5 nodes at once")) == {
        "seconds from last pod gone to done": (0.07, 0.05),
        "hints": (7.0, 10 + 3 * 50),
        "requests": (40.0, 30 * 5 + 1.2 * 50),
    }


def test_request_limit_is_higher_if_pdb_serializes_evictions() -> None:
    assert compute_max_requests(DrainCase("c", pods=30, max_unavailable=1)) == 240
    assert compute_max_requests(DrainCase("c", pods=30, max_unavailable=10)) == 66


def test_drain_is_compared_with_operator_if_present_else_with_kubectl() -> None:
    kubectl, operator = build_round("10 pods", "kubectl drain", 2.0), build_round("10 pods", "operator", 4.0)

    assert check_case_limits(kubectl, build_round("10 pods"))["time as a share of kubectl drain"] == (0.5, 0.25)
    assert check_case_limits(kubectl, operator, build_round("10 pods"))["time as a share of operator"] == (0.25, 0.25)
    assert "time as a share of kubectl drain" not in check_case_limits(kubectl, operator, build_round("10 pods"))


def test_limits_differ_between_engines() -> None:
    floor = build_round("100 pods", "floor", 0.5)

    assert check_case_limits(floor, build_round("100 pods"))["time as a share of the floor"] == (2.0, 1.3)
    assert "time as a share of the floor" not in check_case_limits(floor, build_round("100 pods", engine="knative"))
    assert check_case_limits(build_round(TWENTY_NODES))["seconds"] == (1.0, 7.0)
    assert check_case_limits(build_round(TWENTY_NODES, engine="knative"))["seconds"] == (1.0, 8.0)


def test_case_with_hundred_nodes_has_limits_for_memory_and_waiting_time() -> None:
    checked = check_case_limits(build_round(HUNDRED_NODES.name))

    assert checked["MiB of PodSource"] == (151, 150)
    assert checked["MiB of the largest function process"] == (119, 120)
    assert checked["seconds that a request waited in a function's server"] == (0.5, 1.0)
    assert checked["seconds that an event waited, including in the broker, except for evict"] == (3.5, None)


def test_limit_of_two_evict_processes_is_relative_to_one_process() -> None:
    one_process = build_round("30 pods behind a budget of 10", seconds=2.0, engine="knative")
    two_processes = build_round(TWO_EVICT_PROCESSES.name, seconds=2.4, engine="knative")

    assert check_case_limits(one_process, two_processes)["time as a share of one process"] == (1.2, 1.3)


def test_only_findings_with_a_limit_are_checked() -> None:
    findings = [Finding("local", "rest", "events", 1.0, 0.0), Finding("local", "rest", "cores", 0.2)]

    assert check_limits(Results({}, [], findings)) == findings[:1]


def test_limits_of_unknown_case_are_not_checked() -> None:
    assert check_limits(Results({}, [build_round("10 pigeons")])) == []


@pytest.mark.parametrize("case", ["10 pods", "100 pods", "30 pods behind a budget of 10", TWENTY_NODES])
def test_cases_with_limits_are_measured(case: str) -> None:
    """Check that each case with limits is still measured, so that renaming a case does not disable its limits."""
    assert case in DRAIN_CASES
