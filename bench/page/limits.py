"""The limits that a run must meet: seconds and ratios, hint events, requests, memory. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench.cases import CASES, LARGE, TEN_BEHIND_BUDGET, TWO_EVICTORS, Case
from bench.costs import AT_DOOR, BESIDE_PACED, PODSOURCE
from bench.findings import Finding
from bench.results import Results, Round, grouped, medians, ratio, typical
from eventing.events import PODS_EVICTED
from eventing.podsource import watcher
from functions.app import FUNCTIONS

OURS, LOCAL = "ours", "local"
RIVALS = ("operator", "kubectl drain")
"""Drainers for the ratios; the first one that was measured counts."""
RATIOS = {"10 pods": (0.25, 0.4), "100 pods": (0.8, 1.0), TEN_BEHIND_BUDGET.name: (0.4, 0.5)}
"""For each case, the maximum share of the reference's time, on the local delivery and on the other engines."""
OF_FLOOR = {"100 pods": 1.3}
"""The maximum share of the lower bound's time, on the local delivery."""
SECONDS = {"20 nodes at once with 5 s termination": (7.0, 8.0)}
TAIL = (0.05, 0.1)
"""Seconds from the end of the last pod until Succeeded."""
HINTS = (*watcher.EMITS, PODS_EVICTED)
HINTS_PER_DRAIN, HINTS_PER_POD = 10, 3
REQUESTS_PER_NODE, REQUESTS_PER_POD, REQUESTS_PER_POD_ONE_BY_ONE = 30, 1.2, 8
PODSOURCE_MEBIBYTES, FUNCTION_MEBIBYTES, LONGEST_WAIT = 150, 120, 1.0
OF_ONE_PROCESS = 1.3
DRAINS = {case.name: case for case in CASES if isinstance(case, Case)}


def judged(results: Results) -> list[Finding]:
    """Return every figure that has a limit, in the order of the cases."""
    groups = grouped(results.rounds)
    found = [finding for key in groups if key[2] == OURS for finding in _of_case(key[0], DRAINS.get(key[1]), groups)]
    return [*found, *(finding for finding in results.findings if finding.limit is not None)]


Groups = Mapping[tuple[str, str, str], Sequence[Round]]


def _of_case(engine: str, case: Case | None, groups: Groups) -> Iterator[Finding]:
    """Yield the checked figures of the product's rounds of a case; none if the case no longer exists."""
    if case is None:
        return
    ours, place = groups[engine, case.name, OURS], 0 if engine == LOCAL else 1
    if case.name in SECONDS:
        yield Finding(engine, case.name, "seconds", _median(ours), SECONDS[case.name][place])
    yield from _ratios(engine, case.name, place, groups)
    yield Finding(engine, case.name, "seconds from last pod gone to done", _tail(ours), TAIL[place])
    hints = typical(ours, "events", HINTS)
    yield Finding(engine, case.name, "hints", hints, HINTS_PER_DRAIN + HINTS_PER_POD * case.nodes * case.pods)
    yield Finding(engine, case.name, "requests", typical(ours, "requests"), allowed_requests(case))
    if case == LARGE:
        yield from _of_size(engine, case.name, ours)


def _ratios(engine: str, case: str, place: int, groups: Groups) -> Iterator[Finding]:
    ours = groups[engine, case, OURS]
    rival = next((name for name in RIVALS if (engine, case, name) in groups), None)
    if case in RATIOS and rival:
        share = ratio(ours, groups[engine, case, rival])
        yield Finding(engine, case, f"time as a share of {rival}", round(share, 2), RATIOS[case][place])
    if case in OF_FLOOR and engine == LOCAL and (engine, case, "floor") in groups:
        share = ratio(ours, groups[engine, case, "floor"])
        yield Finding(engine, case, "time as a share of the floor", round(share, 2), OF_FLOOR[case])
    one = groups.get((engine, TEN_BEHIND_BUDGET.name, OURS))
    if case == TWO_EVICTORS.name and one:
        share = _median(ours) / _median(one)
        yield Finding(engine, case, "time as a share of one process", round(share, 2), OF_ONE_PROCESS)


def _of_size(engine: str, case: str, ours: Sequence[Round]) -> Iterator[Finding]:
    memory, waits = medians(ours, "memory"), medians(ours, "waits")
    functions = [size for name, size in memory.items() if name in (*FUNCTIONS, "functions")]
    yield Finding(engine, case, "MiB of PodSource", round(memory[PODSOURCE]), PODSOURCE_MEBIBYTES)
    yield Finding(engine, case, "MiB of the largest process of functions", round(max(functions)), FUNCTION_MEBIBYTES)
    yield Finding(engine, case, "seconds that a request waited at a function's door", waits[AT_DOOR], LONGEST_WAIT)
    yield Finding(engine, case, "seconds that an event waited, in the broker too, but for evict", waits[BESIDE_PACED])


def allowed_requests(case: Case) -> float:
    """Return the maximum number of the product's API requests for such a drain."""
    pods = case.nodes * case.pods
    if case.budget == 1:
        return REQUESTS_PER_POD_ONE_BY_ONE * pods
    return REQUESTS_PER_NODE * case.nodes + REQUESTS_PER_POD * pods


def _median(rounds: Sequence[Round]) -> float:
    return round(statistics.median(each.seconds for each in rounds), 2)


def _tail(rounds: Sequence[Round]) -> float:
    return round(statistics.median(each.tail for each in rounds), 3)
