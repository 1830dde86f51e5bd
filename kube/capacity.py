"""Estimates whether the remaining nodes have capacity for the pods that a drain displaces. Pure functions.

The estimator is greedy (first fit): it places each pod on the first node that accepts the pod. If a pod then fits on no
node, the estimator tries other orders of the pods. kube-scheduler is greedy, too, but may choose other nodes. The
result is therefore an estimate: `FITS` means that a placement of these pods exists; `NOWHERE` means that none of the
tried orders finds one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kube.nodes import Node, build_natural_sort_key
from kube.pods import Pod, format_key, get_node_name, is_finished
from kube.quantities import Resources
from kube.scheduling import (
    AntiAffinityIndex,
    compute_pod_requests,
    find_rejection,
    list_unchecked_constraints,
    parse_allocatable,
)
from kube.text_limits import format_count

FITS, UNKNOWN, NOWHERE = "fits", "unknown", "nowhere"
"""Verdicts on a displaced pod.

- `FITS`: A node accepts the pod in addition to the other displaced pods.
- `UNKNOWN`: A node has free resources for the pod, but the pod has a constraint that the estimator does not check.
- `NOWHERE`: No node accepts the pod in addition to the other displaced pods.
"""
OTHER_ANTI_AFFINITY = "anti-affinity of another pod"
NO_NODES = "no other node"


class Placement(NamedTuple):
    """The verdict on one displaced pod.

    Attributes:
        node: The node on which the estimator places the pod; "" for `NOWHERE`.
        reason: The constraints that the estimator does not check, or the nodes' reasons to reject the pod; "" for
            `FITS`.
    """

    pod: Pod
    verdict: str
    node: str = ""
    reason: str = ""


class _SortCriteria(NamedTuple):
    """The sort criteria of a displaced pod: its number of eligible nodes, and its share of all nodes' resources."""

    eligible_nodes: int
    resource_share: float
    pod_key: str


_ORDERS: tuple[Callable[[_SortCriteria], tuple[float, float, str]], ...] = (
    lambda criteria: (criteria.eligible_nodes, -criteria.resource_share, criteria.pod_key),
    lambda criteria: (-criteria.resource_share, criteria.eligible_nodes, criteria.pod_key),
    lambda criteria: (criteria.resource_share, criteria.eligible_nodes, criteria.pod_key),
)
"""Sort keys of the orders to try until every pod has a node: fewest eligible nodes, largest pods, smallest pods."""


@dataclass
class _CandidateNode:
    """A remaining node with its free resources, which decrease with each pod that is placed on it."""

    node: Node
    free: dict[str, int]

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    def list_insufficient(self, requests: Resources) -> list[str]:
        """Return the names of the requested resources of which the node has too little left."""
        return [name for name, amount in requests.items() if amount > self.free.get(name, 0)]

    def reserve(self, requests: Resources) -> None:
        """Subtract a pod's requests from the node's free resources."""
        for name, amount in requests.items():
            self.free[name] = self.free.get(name, 0) - amount


def place_pods(
    displaced: Iterable[Pod], nodes: Collection[Node], drained_node_names: Collection[str], other_pods: Iterable[Pod]
) -> list[Placement]:
    """Estimate for each displaced pod whether a remaining node accepts it; return the verdicts sorted by pod.

    In: the displaced pods, all nodes, the names of the nodes to drain, and the pods on the remaining nodes. Pods with
    constraints that the estimator does not check reserve resources, too.
    """
    pods, others = list(displaced), [pod for pod in other_pods if not is_finished(pod)]
    remaining = [node for node in nodes if node["metadata"]["name"] not in drained_node_names]
    visible_resources = {name for node in nodes for name in parse_allocatable(node)}
    anti_affinity = AntiAffinityIndex([*others, *pods])
    estimator = _CapacityEstimator(_build_candidates(remaining, others), anti_affinity, visible_resources)
    pods_with_criteria = [(estimator.compute_sort_criteria(pod), pod) for pod in pods]
    estimates: list[list[Placement]] = []
    for order in _ORDERS:
        estimator.reset()
        estimates.append(
            [estimator.place(pod) for _, pod in sorted(pods_with_criteria, key=lambda item: order(item[0]))]
        )
        if not _count_unplaceable(estimates[-1]):
            break
    return sorted(min(estimates, key=_count_unplaceable), key=lambda placement: format_key(placement.pod))


def _count_unplaceable(placements: Iterable[Placement]) -> int:
    return sum(placement.verdict == NOWHERE for placement in placements)


def _build_candidates(nodes: Iterable[Node], pods: Iterable[Pod]) -> list[_CandidateNode]:
    """Return the nodes in natural order of their names, with the allocatable resources that the pods do not use."""
    ordered = sorted(nodes, key=lambda node: build_natural_sort_key(node["metadata"]["name"]))
    candidates = {node["metadata"]["name"]: _CandidateNode(node, parse_allocatable(node)) for node in ordered}
    for pod in pods:
        if (candidate := candidates.get(get_node_name(pod))) is not None:
            candidate.reserve(compute_pod_requests(pod))
    return list(candidates.values())


class _CapacityEstimator:
    """Places pods on the candidate nodes one after another.

    Pods with equal constraints share one cached list of rejections. If a pod fits on no node, neither does a later pod
    with equal constraints and requests, because the free resources only decrease.
    """

    def __init__(
        self, candidates: Sequence[_CandidateNode], anti_affinity: AntiAffinityIndex, visible_resources: Collection[str]
    ) -> None:
        self._candidates, self._anti_affinity = candidates, anti_affinity
        self._visible_resources = visible_resources
        self._allocatable: Counter[str] = Counter()
        for candidate in candidates:
            self._allocatable.update(parse_allocatable(candidate.node))
        self._initially_free = [dict(candidate.free) for candidate in candidates]
        self._rejections_by_constraints: dict[str, list[str]] = {}
        self._reasons_by_demand: dict[tuple[object, ...], str] = {}

    def compute_sort_criteria(self, pod: Pod) -> _SortCriteria:
        """Return the criteria by which the pods are sorted before their placement."""
        shares = (
            amount / self._allocatable[name]
            for name, amount in compute_pod_requests(pod).items()
            if self._allocatable[name]
        )
        eligible = sum(not rejection for rejection in self._list_rejections(pod))
        return _SortCriteria(eligible, max(shares, default=0.0), format_key(pod))

    def reset(self) -> None:
        """Release the resources that `place` has reserved on all candidate nodes."""
        for candidate, free in zip(self._candidates, self._initially_free, strict=True):
            candidate.free = dict(free)
        self._reasons_by_demand.clear()

    def place(self, pod: Pod) -> Placement:
        """Reserve resources on the first node that accepts the pod, and return the verdict."""
        requests = self._compute_requests(pod)
        demand = (_build_constraints_key(pod), *requests.items())
        if demand in self._reasons_by_demand:
            return Placement(pod, NOWHERE, reason=self._reasons_by_demand[demand])
        reasons: list[str] = []
        for candidate, rejection in zip(self._candidates, self._list_rejections(pod), strict=True):
            insufficient = [] if rejection else candidate.list_insufficient(requests)
            if not rejection and not insufficient:
                candidate.reserve(requests)
                unmodelled = self._list_unchecked_constraints(pod)
                return Placement(pod, UNKNOWN if unmodelled else FITS, candidate.name, ", ".join(unmodelled))
            reasons += [rejection] if rejection else [f"insufficient {name}" for name in insufficient]
        self._reasons_by_demand[demand] = _format_reasons(Counter(reasons))
        return Placement(pod, NOWHERE, reason=self._reasons_by_demand[demand])

    def _list_unchecked_constraints(self, pod: Pod) -> list[str]:
        unmodelled = list_unchecked_constraints(pod, self._visible_resources)
        return unmodelled or ([OTHER_ANTI_AFFINITY] if self._anti_affinity.may_reject(pod) else [])

    def _compute_requests(self, pod: Pod) -> dict[str, int]:
        """Return the pod's requests, without resources that no node reports."""
        requests = compute_pod_requests(pod).items()
        return {name: amount for name, amount in requests if amount and name in self._visible_resources}

    def _list_rejections(self, pod: Pod) -> list[str]:
        """Return, for each candidate node, why it rejects the pod regardless of free resources; "" if it does not."""
        key = _build_constraints_key(pod)
        if key not in self._rejections_by_constraints:
            rejections = [find_rejection(pod, candidate.node) for candidate in self._candidates]
            self._rejections_by_constraints[key] = rejections
        return self._rejections_by_constraints[key]


def _build_constraints_key(pod: Pod) -> str:
    """Return a cache key that is equal for pods which `find_rejection` treats alike."""
    spec = pod["spec"]
    return json.dumps([spec.get(name) for name in ("nodeSelector", "affinity", "tolerations")], sort_keys=True)


def _format_reasons(node_counts: Mapping[str, int]) -> str:
    """Format the nodes' reasons, most common first, such as `insufficient cpu on 3 nodes, taint gpu on 1 node`."""
    ordered = sorted(node_counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} on {format_count(count, 'node')}" for reason, count in ordered) or NO_NODES
