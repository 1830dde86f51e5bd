"""The limits that a benchmark run must meet."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from bench.cases import LARGE, TWO_EVICTORS, Case
from bench.findings import Finding
from bench.page.limits import DRAINS, allowed_requests, judged
from bench.results import Results, Round

TWENTY = "20 nodes at once with 5 s termination"
SPENT = {
    "events": {
        "dev.nodemaintenance.pods.gone": 4.0,
        "dev.nodemaintenance.budget.opened": 2.0,
        "dev.nodemaintenance.pods.evicted": 1.0,
        "dev.nodemaintenance.node.drained": 5.0,
    },
    "requests": {"list pods": 30.0, "create pods/eviction": 10.0},
    "memory": {"podsource": 151.0, "functions": 119.0, "kube-apiserver": 900.0},
    "waits": {"longest": 7.5, "longest but evict": 3.5, "longest at a door": 0.5},
}


def drain(case: str, way: str = "ours", seconds: float = 1.0, engine: str = "local") -> Round:
    costs: Mapping[str, Mapping[str, float]] = SPENT if way == "ours" else {}
    return Round(engine, case, way, 0, seconds, 0.07, 0.1, costs)


def limits(*rounds: Round) -> dict[str, tuple[float, float | None]]:
    """Return label → value and limit for the last round's case."""
    engine, case = rounds[-1].engine, rounds[-1].case
    found = judged(Results({}, list(rounds)))
    return {each.what: (each.value, each.limit) for each in found if (each.engine, each.case) == (engine, case)}


def test_every_drain_has_limits_for_tail_hints_and_requests() -> None:
    """Check that each drain has limits for lag, hints and requests.

    Hints are the sources' events and the replies of passes.
    """
    assert limits(drain("5 nodes at once")) == {
        "seconds from last pod gone to done": (0.07, 0.05),
        "hints": (7.0, 10 + 3 * 50),
        "requests": (40.0, 30 * 5 + 1.2 * 50),
    }


def test_requests_are_more_where_pods_leave_one_by_one() -> None:
    assert allowed_requests(Case("c", pods=30, budget=1)) == 240
    assert allowed_requests(Case("c", pods=30, budget=10)) == 66


def test_the_rival_is_the_operator_or_else_kubectl() -> None:
    kubectl, operator = drain("10 pods", "kubectl drain", 2.0), drain("10 pods", "operator", 4.0)

    assert limits(kubectl, drain("10 pods"))["time as a share of kubectl drain"] == (0.5, 0.25)
    assert limits(kubectl, operator, drain("10 pods"))["time as a share of operator"] == (0.25, 0.25)
    assert "time as a share of kubectl drain" not in limits(kubectl, operator, drain("10 pods"))


def test_limits_differ_between_engines() -> None:
    floor = drain("100 pods", "floor", 0.5)

    assert limits(floor, drain("100 pods"))["time as a share of the floor"] == (2.0, 1.3)
    assert "time as a share of the floor" not in limits(floor, drain("100 pods", engine="knative"))
    assert limits(drain(TWENTY))["seconds"] == (1.0, 7.0)
    assert limits(drain(TWENTY, engine="knative"))["seconds"] == (1.0, 8.0)


def test_the_large_case_must_stay_small() -> None:
    found = limits(drain(LARGE.name))

    assert found["MiB of PodSource"] == (151, 150)
    assert found["MiB of the largest process of functions"] == (119, 120)
    assert found["seconds that a request waited at a function's door"] == (0.5, 1.0)
    assert found["seconds that an event waited, in the broker too, but for evict"] == (3.5, None)


def test_two_processes_are_compared_with_one() -> None:
    one = drain("30 pods behind a budget of 10", seconds=2.0, engine="knative")
    two = drain(TWO_EVICTORS.name, seconds=2.4, engine="knative")

    assert limits(one, two)["time as a share of one process"] == (1.2, 1.3)


def test_what_observations_found_is_judged_where_it_has_a_limit() -> None:
    found = [Finding("local", "rest", "events", 1.0, 0.0), Finding("local", "rest", "cores", 0.2)]

    assert judged(Results({}, [], found)) == found[:1]


def test_a_case_that_is_no_longer_one_is_not_judged() -> None:
    assert judged(Results({}, [drain("10 pigeons")])) == []


@pytest.mark.parametrize("case", ["10 pods", "100 pods", "30 pods behind a budget of 10", TWENTY])
def test_the_cases_with_goals_are_measured(case: str) -> None:
    """Check that each case with limits is still measured, so that a renamed case does not lose them."""
    assert case in DRAINS
