"""Checks the limits of a benchmark run: durations and ratios, hints, API requests, memory. Pure functions."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench.cases import BUDGET_OF_TEN, CASES, HUNDRED_NODES, TWO_EVICT_PROCESSES, DrainCase
from bench.costs import LONGEST_QUEUED, LONGEST_UNPACED, PODSOURCE
from bench.findings import Finding
from bench.results import Results, Round, compute_median_cost, compute_medians, compute_ratio, group_rounds
from eventing.events import PODS_EVICTED
from eventing.podsource import watcher
from functions.app import FUNCTIONS

PRODUCT_DRAINER, LOCAL_ENGINE = "ours", "local"
REFERENCE_DRAINERS = ("operator", "kubectl drain")
"""Drainers with which the product is compared, in order of preference; the first one that was measured is used."""
MAX_RATIOS = {"10 pods": (0.25, 0.4), "100 pods": (0.8, 1.0), BUDGET_OF_TEN.name: (0.4, 0.5)}
"""Maximum ratio of the product's and the reference drainer's duration, by case: local delivery, other engines."""
MAX_FLOOR_RATIOS = {"100 pods": 1.3}
"""Maximum ratio of the product's and the floor's duration, by case, with local delivery."""
MAX_SECONDS = {"20 nodes at once with 5 s termination": (7.0, 8.0)}
MAX_LAG_SECONDS = (0.05, 0.1)
"""Maximum seconds from the last pod's deletion until the phase Succeeded: local delivery, other engines."""
HINT_TYPES = (*watcher.EMITTED_TYPES, PODS_EVICTED)
MAX_HINTS_PER_DRAIN, MAX_HINTS_PER_POD = 10, 3
MAX_REQUESTS_PER_NODE, MAX_REQUESTS_PER_POD, MAX_SERIAL_REQUESTS_PER_POD = 30, 1.2, 8
MAX_PODSOURCE_MEBIBYTES, MAX_FUNCTION_MEBIBYTES, MAX_QUEUED_SECONDS = 150, 120, 1.0
MAX_ONE_PROCESS_RATIO = 1.3
DRAIN_CASES = {case.name: case for case in CASES if isinstance(case, DrainCase)}


def check_limits(results: Results) -> list[Finding]:
    """Return all figures that have a limit, in the order of the cases."""
    groups = group_rounds(results.rounds)
    findings = [
        finding
        for key in groups
        if key[2] == PRODUCT_DRAINER
        for finding in _check_drain_case(key[0], DRAIN_CASES.get(key[1]), groups)
    ]
    return [*findings, *(finding for finding in results.findings if finding.limit is not None)]


RoundGroups = Mapping[tuple[str, str, str], Sequence[Round]]
"""Rounds, grouped by engine, case and drainer."""


def _check_drain_case(engine: str, case: DrainCase | None, groups: RoundGroups) -> Iterator[Finding]:
    """Yield the figures with a limit from the product's rounds of a case; yield none if the case no longer exists."""
    if case is None:
        return
    ours, engine_index = groups[engine, case.name, PRODUCT_DRAINER], 0 if engine == LOCAL_ENGINE else 1
    if case.name in MAX_SECONDS:
        duration, max_duration = _compute_median_duration(ours), MAX_SECONDS[case.name][engine_index]
        yield Finding(engine, case.name, "seconds", duration, max_duration)
    yield from _check_ratios(engine, case.name, engine_index, groups)
    lag, max_lag = _compute_median_lag(ours), MAX_LAG_SECONDS[engine_index]
    yield Finding(engine, case.name, "seconds from last pod gone to done", lag, max_lag)
    hints = compute_median_cost(ours, "events", HINT_TYPES)
    yield Finding(engine, case.name, "hints", hints, MAX_HINTS_PER_DRAIN + MAX_HINTS_PER_POD * case.nodes * case.pods)
    yield Finding(engine, case.name, "requests", compute_median_cost(ours, "requests"), compute_max_requests(case))
    if case == HUNDRED_NODES:
        yield from _check_memory_and_waits(engine, case.name, ours)


def _check_ratios(engine: str, case: str, engine_index: int, groups: RoundGroups) -> Iterator[Finding]:
    ours = groups[engine, case, PRODUCT_DRAINER]
    reference = next((name for name in REFERENCE_DRAINERS if (engine, case, name) in groups), None)
    if case in MAX_RATIOS and reference:
        ratio = compute_ratio(ours, groups[engine, case, reference])
        yield Finding(engine, case, f"time as a share of {reference}", round(ratio, 2), MAX_RATIOS[case][engine_index])
    if case in MAX_FLOOR_RATIOS and engine == LOCAL_ENGINE and (engine, case, "floor") in groups:
        ratio = compute_ratio(ours, groups[engine, case, "floor"])
        yield Finding(engine, case, "time as a share of the floor", round(ratio, 2), MAX_FLOOR_RATIOS[case])
    one_process = groups.get((engine, BUDGET_OF_TEN.name, PRODUCT_DRAINER))
    if case == TWO_EVICT_PROCESSES.name and one_process:
        ratio = _compute_median_duration(ours) / _compute_median_duration(one_process)
        yield Finding(engine, case, "time as a share of one process", round(ratio, 2), MAX_ONE_PROCESS_RATIO)


def _check_memory_and_waits(engine: str, case: str, rounds: Sequence[Round]) -> Iterator[Finding]:
    memory, waits = compute_medians(rounds, "memory"), compute_medians(rounds, "waits")
    function_sizes = [size for name, size in memory.items() if name in (*FUNCTIONS, "functions")]
    yield Finding(engine, case, "MiB of PodSource", round(memory[PODSOURCE]), MAX_PODSOURCE_MEBIBYTES)
    yield Finding(
        engine, case, "MiB of the largest function process", round(max(function_sizes)), MAX_FUNCTION_MEBIBYTES
    )
    yield Finding(
        engine, case, "seconds that a request waited in a function's server", waits[LONGEST_QUEUED], MAX_QUEUED_SECONDS
    )
    yield Finding(
        engine, case, "seconds that an event waited, including in the broker, except for evict", waits[LONGEST_UNPACED]
    )


def compute_max_requests(case: DrainCase) -> float:
    """Return the maximum number of the product's API requests for a drain of this case."""
    pods = case.nodes * case.pods
    if case.max_unavailable == 1:
        return MAX_SERIAL_REQUESTS_PER_POD * pods
    return MAX_REQUESTS_PER_NODE * case.nodes + MAX_REQUESTS_PER_POD * pods


def _compute_median_duration(rounds: Sequence[Round]) -> float:
    return round(statistics.median(measured_round.seconds for measured_round in rounds), 2)


def _compute_median_lag(rounds: Sequence[Round]) -> float:
    return round(statistics.median(measured_round.lag_seconds for measured_round in rounds), 3)
