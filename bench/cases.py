"""Defines the benchmark's cases (drains, and observations of the product alone), and selects the cases of one run."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

QUICK, USUAL, FULL = "quick", "usual", "full"
SUBSETS = (QUICK, USUAL, FULL)
"""The subsets of cases; each one includes the previous one."""
SAME_CLUSTER_DRAINERS = ("ours", "kubectl drain", "floor")
"""Names of drainers on the product's cluster, where the background writes are; another operator has its own cluster."""
LARGE_CLUSTER_NODES = 1000
"""Number of nodes of the large cluster."""


@dataclass(frozen=True)
class DrainCase:
    """A drain to measure, with its workload.

    Attributes:
        name: The case's name in the results.
        nodes: The number of nodes to drain concurrently.
        pods: The number of pods per node.
        max_unavailable: `maxUnavailable` of the PDB of a node's pods, which a Deployment recreates on another node;
            0 for bare pods without a PDB.
        termination_seconds: The time that a pod takes to terminate.
        writes_per_second: The number of ConfigMaps per second that another client writes during the drain.
        evict_processes: The number of `evict` processes among which the function's events are distributed.
        cluster_nodes: The number of nodes in the cluster; 0 for as many as the cases need.
        drainers: The names of the drainers to compare; if empty, all drainers.
        engines: The engines to measure; if empty, all engines.
        max_rounds: The maximum number of rounds; 0 for no limit.
        subset: The smallest subset that includes the case.
    """

    name: str
    nodes: int = 1
    pods: int = 10
    max_unavailable: int = 0
    termination_seconds: float = 0.0
    writes_per_second: int = 0
    evict_processes: int = 1
    cluster_nodes: int = 0
    drainers: tuple[str, ...] = ()
    engines: tuple[str, ...] = ()
    max_rounds: int = 0
    subset: str = FULL

    def includes_drainer(self, drainer: str) -> bool:
        """Return whether the case measures the drainer with this name."""
        return not self.drainers or drainer in self.drainers


@dataclass(frozen=True)
class Observation:
    """A measurement of the product without other drainers over a period of time; see `bench.observations`.

    Attributes:
        name: The observation's name in the results.
        nodes: As in `DrainCase`.
        cluster_nodes: As in `DrainCase`.
        engines: As in `DrainCase`.
        subset: As in `DrainCase`.
        with_mutex: Whether the component `mutex` is installed, with fakes of OpenShift's operators.
    """

    name: str
    nodes: int = 1
    cluster_nodes: int = 0
    engines: tuple[str, ...] = ()
    subset: str = FULL
    with_mutex: bool = False


AnyCase = DrainCase | Observation
IDLE = Observation("nothing to do", subset=USUAL)
RECREATED_PODS = Observation("5 recreated pods", nodes=2)
IDLE_MAINTENANCES = Observation("500 drained maintenances", cluster_nodes=LARGE_CLUSTER_NODES)
ADMISSION_LOAD = Observation("50 creations a second at the webhook", nodes=2)
LARGE_ADMISSION_LOAD = Observation(
    "50 creations a second at the webhook with 1000 nodes", cluster_nodes=LARGE_CLUSTER_NODES
)
CONSOLE_VIEWERS = Observation("50 open pages of the console with 1000 nodes", cluster_nodes=LARGE_CLUSTER_NODES)
UPGRADE = Observation("an upgrade of 40 workers in 5 pools", cluster_nodes=40, with_mutex=True)
LARGE_UPGRADE = Observation("an upgrade of 200 workers in 5 pools", cluster_nodes=200, with_mutex=True)
BUDGET_OF_TEN = DrainCase("30 pods behind a budget of 10", pods=30, max_unavailable=10, subset=QUICK)
HUNDRED_NODES = DrainCase(
    "100 nodes at once with 100 pods each", nodes=100, pods=100, drainers=("ours",), engines=("local",), max_rounds=1
)
TWO_EVICT_PROCESSES = DrainCase(
    f"{BUDGET_OF_TEN.name} with two evict processes",
    pods=30,
    max_unavailable=10,
    evict_processes=2,
    drainers=("ours",),
    engines=("knative",),
)
CASES: tuple[AnyCase, ...] = (
    IDLE,
    DrainCase("10 pods", subset=QUICK),
    DrainCase("100 pods", pods=100, subset=USUAL),
    BUDGET_OF_TEN,
    TWO_EVICT_PROCESSES,
    DrainCase("30 pods behind a budget of 1", pods=30, max_unavailable=1),
    DrainCase("10 pods during 50 background writes a second", writes_per_second=50, drainers=SAME_CLUSTER_DRAINERS),
    DrainCase("5 nodes at once", nodes=5),
    DrainCase("20 nodes at once", nodes=20),
    DrainCase("20 nodes at once with 5 s termination", nodes=20, termination_seconds=5.0, subset=USUAL),
    DrainCase(
        "100 nodes at once", nodes=100, max_rounds=3, drainers=("ours", "operator", "floor")
    ),  # without kubectl, which would need one process per node
    RECREATED_PODS,
    ADMISSION_LOAD,
    HUNDRED_NODES,
    DrainCase("10 pods on one of 1000 nodes", cluster_nodes=LARGE_CLUSTER_NODES),
    CONSOLE_VIEWERS,
    IDLE_MAINTENANCES,
    LARGE_ADMISSION_LOAD,
    UPGRADE,
    LARGE_UPGRADE,
)
"""All cases in measurement order; cases after which the cluster stays busy for a while come last."""


def select_cases(names: str, subset: str) -> tuple[AnyCase, ...]:
    """Return the cases in a comma-separated list of names; if the list is empty, the cases of the subset.

    An item that is not a case name selects all cases whose names contain it. Raises `ValueError` if there are none.
    """
    if not names:
        subsets = SUBSETS[: SUBSETS.index(subset) + 1]
        return tuple(case for case in CASES if case.subset in subsets)
    selected = []
    for word in (part.strip() for part in names.split(",")):
        matches = [case for case in CASES if word == case.name] or [case for case in CASES if word in case.name]
        if not matches:
            raise ValueError(f"no case name contains {word!r}: choose from {'; '.join(case.name for case in CASES)}")
        selected += matches
    return tuple(dict.fromkeys(selected))


def group_by_cluster_size(cases: Iterable[AnyCase], engine: str) -> dict[int, list[AnyCase]]:
    """Return the engine's cases, grouped by the number of nodes in their cluster."""
    sizes: dict[int, list[AnyCase]] = {}
    for case in cases:
        if not case.engines or engine in case.engines:
            sizes.setdefault(case.cluster_nodes, []).append(case)
    return {size or max(case.nodes for case in group) + 1: group for size, group in sizes.items()}
