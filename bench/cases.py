"""The cases of the benchmark: drains, and observations of the product alone; selects the cases of a run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

QUICK, USUAL, FULL = "quick", "usual", "full"
SUBSETS = (QUICK, USUAL, FULL)
"""Each subset includes all cases of the previous one."""
ON_ONE_CLUSTER = ("ours", "kubectl drain", "floor")
"""Drainers that share a cluster with the background writes; the other operator has a cluster of its own."""
FLEET = 1000
"""Nodes of the large cluster."""


@dataclass(frozen=True)
class Case:
    """A workload to drain.

    Attributes:
        name: The name in the results.
        nodes: The number of nodes to drain concurrently.
        pods: The number of pods per node.
        budget: `maxUnavailable` of the budget over a node's pods, which move to another node; 0 for bare pods.
        termination: The seconds that a pod takes to terminate.
        writes: The ConfigMaps per second that another client writes in the background.
        evictors: The number of `evict` processes that share its events.
        cluster: The number of nodes of the cluster; 0 for as many as the cases need.
        ways: The names of the drainers to compare; all if empty.
        engines: The engines to measure on; all if empty.
        rounds: The maximum number of rounds; 0 for no limit.
        subset: The smallest subset that includes the case.
    """

    name: str
    nodes: int = 1
    pods: int = 10
    budget: int = 0
    termination: float = 0.0
    writes: int = 0
    evictors: int = 1
    cluster: int = 0
    ways: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    rounds: int = 0
    subset: str = FULL

    def compares(self, way: str) -> bool:
        """Return whether this drainer is compared."""
        return not self.ways or way in self.ways


@dataclass(frozen=True)
class Observation:
    """A measurement of the product alone over a period of time; `resting` implements each.

    Attributes:
        name: The name in the results.
        nodes: As in `Case`.
        cluster: As in `Case`.
        engines: As in `Case`.
        subset: As in `Case`.
        upgrades: Whether the upgrade mutex is installed, with fake OpenShift operators.
    """

    name: str
    nodes: int = 1
    cluster: int = 0
    engines: tuple[str, ...] = ()
    subset: str = FULL
    upgrades: bool = False


Measured = Case | Observation
REST = Observation("nothing to do", subset=USUAL)
RETURNING = Observation("5 pods that return", nodes=2)
RESTING = Observation("500 maintenances that rest", cluster=FLEET)
ASKED = Observation("50 creations a second at the door", nodes=2)
ASKED_AMONG_MANY = Observation("50 creations a second at the door of 1000 nodes", cluster=FLEET)
UPGRADE = Observation("an upgrade of 40 workers in 5 pools", cluster=40, upgrades=True)
LARGE_UPGRADE = Observation("an upgrade of 200 workers in 5 pools", cluster=200, upgrades=True)
TEN_BEHIND_BUDGET = Case("30 pods behind a budget of 10", pods=30, budget=10, subset=QUICK)
LARGE = Case("100 nodes at once with 100 pods each", nodes=100, pods=100, ways=("ours",), engines=("local",), rounds=1)
TWO_EVICTORS = Case(
    f"{TEN_BEHIND_BUDGET.name} with two processes of evict",
    pods=30,
    budget=10,
    evictors=2,
    ways=("ours",),
    engines=("knative",),
)
CASES: tuple[Measured, ...] = (
    REST,
    Case("10 pods", subset=QUICK),
    Case("100 pods", pods=100, subset=USUAL),
    TEN_BEHIND_BUDGET,
    TWO_EVICTORS,
    Case("30 pods behind a budget of 1", pods=30, budget=1),
    Case("10 pods beside 50 foreign writes a second", writes=50, ways=ON_ONE_CLUSTER),
    Case("5 nodes at once", nodes=5),
    Case("20 nodes at once", nodes=20),
    Case("20 nodes at once with 5 s termination", nodes=20, termination=5.0, subset=USUAL),
    Case("100 nodes at once", nodes=100, rounds=3, ways=("ours", "operator", "floor")),  # too many kubectl processes
    RETURNING,
    ASKED,
    LARGE,
    Case("10 pods on one of 1000 nodes", cluster=FLEET),
    RESTING,
    ASKED_AMONG_MANY,
    UPGRADE,
    LARGE_UPGRADE,
)
"""In the order of measurement; cases that leave the cluster busy come last."""


def chosen(words: str, subset: str) -> tuple[Measured, ...]:
    """Return the cases with these comma-separated names, or those of the subset if `words` is empty.

    A word that is not a name selects the cases whose names contain it. Raises `ValueError` for a word that no name
    contains.
    """
    if not words:
        wanted = SUBSETS[: SUBSETS.index(subset) + 1]
        return tuple(case for case in CASES if case.subset in wanted)
    found = []
    for word in (each.strip() for each in words.split(",")):
        matching = [case for case in CASES if word == case.name] or [case for case in CASES if word in case.name]
        if not matching:
            raise ValueError(f"no case has {word!r} in its name: {'; '.join(case.name for case in CASES)}")
        found += matching
    return tuple(dict.fromkeys(found))


def clusters(cases: Iterable[Measured], engine: str) -> dict[int, list[Measured]]:
    """Return, for each cluster size in nodes, the engine's cases that are measured on it."""
    sizes: dict[int, list[Measured]] = {}
    for case in cases:
        if not case.engines or engine in case.engines:
            sizes.setdefault(case.cluster, []).append(case)
    return {size or max(case.nodes for case in found) + 1: found for size, found in sizes.items()}
