"""The cases of the bench: drains, and observations of the product alone; which of them a run measures."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

QUICK, USUAL, FULL = "quick", "usual", "full"
SUBSETS = (QUICK, USUAL, FULL)
"""Each holds all cases of the one before."""
ON_ONE_CLUSTER = ("ours", "kubectl drain", "floor")
"""Ways that meet what happens beside them there; the operator has a cluster of its own."""
FLEET = 1000
"""Nodes of the large cluster."""


@dataclass(frozen=True)
class Case:
    """A workload to drain.

    Attributes:
        nodes: so many are drained at once.
        pods: on each node.
        budget: pods of a node that may be away at once; 0 is no budget. They come back on another node.
        termination: seconds that a pod takes to end.
        writes: ConfigMaps that somebody else writes a second meanwhile.
        evictors: processes of `evict` that share its events.
        cluster: nodes of the cluster; 0: as many as the cases need.
        ways: names of those that are compared; none names all.
        engines: where it is measured; none names all.
        rounds: at most so many; 0 is no limit.
        subset: the smallest one that it is part of.
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
        """Whether the way of that name is compared."""
        return not self.ways or way in self.ways


@dataclass(frozen=True)
class Observation:
    """Something that is looked at for a time, once, of the product alone; `resting` has what is done.

    Attributes: as those of `Case`; `upgrades` has the mutex installed, and OpenShift played.
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
    Case("100 nodes at once", nodes=100, rounds=3, ways=("ours", "operator", "floor")),  # so many kubectl are too many
    RETURNING,
    ASKED,
    LARGE,
    Case("10 pods on one of 1000 nodes", cluster=FLEET),
    RESTING,
    ASKED_AMONG_MANY,
    UPGRADE,
    LARGE_UPGRADE,
)
"""In the order in which they are measured: what leaves the cluster busy comes late."""


def chosen(words: str, subset: str) -> tuple[Measured, ...]:
    """The cases of these names, separated by commas; those of the subset without any.

    A word that is no name stands for the cases whose names contain it. Raises `ValueError` for a word that is in
    no name.
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
    """Nodes of a cluster → the cases of that engine that are measured on it."""
    sizes: dict[int, list[Measured]] = {}
    for case in cases:
        if not case.engines or engine in case.engines:
            sizes.setdefault(case.cluster, []).append(case)
    return {size or max(case.nodes for case in found) + 1: found for size, found in sizes.items()}
