"""Judges whether the remaining nodes have capacity for the pods that a drain displaces. Pure functions.

The judgement is greedy (first fit): each pod takes the first node that accepts it. If a pod then fits nowhere, the
judgement tries other orders of the pods. kube-scheduler is greedy, too, but may choose other nodes. So the judgement is
an estimate: `FITS` means that a placement of these pods exists; `NOWHERE` means that no such order finds one.
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
    list_unmodelled_constraints,
    parse_allocatable,
)
from kube.text_limits import format_count

FITS, UNKNOWN, NOWHERE = "fits", "unknown", "nowhere"
"""Verdicts on a displaced pod.

- `FITS`: A node accepts it, next to the other displaced pods.
- `UNKNOWN`: A node has free resources for it, but the pod has a constraint that is not modelled.
- `NOWHERE`: No node accepts it, alone or next to the other displaced pods.
"""
OTHER_ANTI_AFFINITY = "anti-affinity of another pod"
NO_NODES = "no other node"


class Placement(NamedTuple):
    """The verdict on one displaced pod.

    Attributes:
        node: The node whose free resources the judgement used for the pod; "" for `NOWHERE`.
        reason: The constraints that are not modelled, or the nodes' reasons to reject the pod; "" for `FITS`.
    """

    pod: Pod
    verdict: str
    node: str = ""
    reason: str = ""


class _Measure(NamedTuple):
    """What decides about a pod's position in the order: its eligible nodes, and its share of all resources."""

    eligible: int
    share: float
    key: str


_ORDERS: tuple[Callable[[_Measure], tuple[float, float, str]], ...] = (
    lambda measure: (measure.eligible, -measure.share, measure.key),
    lambda measure: (-measure.share, measure.eligible, measure.key),
    lambda measure: (measure.share, measure.eligible, measure.key),
)
"""The orders to try until all pods have a node: few eligible nodes first, large pods first, and small pods first."""


@dataclass
class _Candidate:
    """A remaining node with its free resources, which decrease with each pod that is placed on it."""

    node: Node
    free: dict[str, int]

    @property
    def name(self) -> str:
        return str(self.node["metadata"]["name"])

    def list_insufficient(self, requests: Resources) -> list[str]:
        """Return the names of the resources of which the node has less than requested."""
        return [name for name, amount in requests.items() if amount > self.free.get(name, 0)]

    def reserve(self, requests: Resources) -> None:
        """Subtract the requests from the free resources."""
        for name, amount in requests.items():
            self.free[name] = self.free.get(name, 0) - amount


def place_pods(
    displaced: Iterable[Pod], nodes: Collection[Node], drained_names: Collection[str], other_pods: Iterable[Pod]
) -> list[Placement]:
    """Judge for each displaced pod whether one of the remaining nodes accepts it; return the verdicts sorted by pod.

    In: the pods that leave and come back elsewhere, all nodes, the names of the nodes that are drained, and the pods on
    the remaining nodes. Pods with constraints that are not modelled reserve resources, too.
    """
    pods, others = list(displaced), [pod for pod in other_pods if not is_finished(pod)]
    remaining = [node for node in nodes if node["metadata"]["name"] not in drained_names]
    visible_resources = {name for node in nodes for name in parse_allocatable(node)}
    anti_affinity = AntiAffinityIndex([*others, *pods])
    judge = _CapacityJudge(_build_candidates(remaining, others), anti_affinity, visible_resources)
    measured = [(judge.measure(pod), pod) for pod in pods]
    judgements: list[list[Placement]] = []
    for order in _ORDERS:
        judge.reset()
        judgements.append([judge.place(pod) for _, pod in sorted(measured, key=lambda item: order(item[0]))])
        if not _count_rejected(judgements[-1]):
            break
    return sorted(min(judgements, key=_count_rejected), key=lambda placement: format_key(placement.pod))


def _count_rejected(placements: Iterable[Placement]) -> int:
    return sum(placement.verdict == NOWHERE for placement in placements)


def _build_candidates(nodes: Iterable[Node], pods: Iterable[Pod]) -> list[_Candidate]:
    """Return the nodes in their natural order, with the allocatable resources that the pods do not use."""
    ordered = sorted(nodes, key=lambda node: build_natural_sort_key(node["metadata"]["name"]))
    candidates = {node["metadata"]["name"]: _Candidate(node, parse_allocatable(node)) for node in ordered}
    for pod in pods:
        if (candidate := candidates.get(get_node_name(pod))) is not None:
            candidate.reserve(compute_pod_requests(pod))
    return list(candidates.values())


class _CapacityJudge:
    """Places pods on candidates one after another.

    Pods with equal constraints share their list of rejections. If a pod fits nowhere, so does each later pod with equal
    constraints and requests, because the free resources only decrease.
    """

    def __init__(
        self, candidates: Sequence[_Candidate], anti_affinity: AntiAffinityIndex, visible_resources: Collection[str]
    ) -> None:
        self._candidates, self._anti_affinity = candidates, anti_affinity
        self._visible_resources = visible_resources
        self._allocatable: Counter[str] = Counter()
        for candidate in candidates:
            self._allocatable.update(parse_allocatable(candidate.node))
        self._initially_free = [dict(candidate.free) for candidate in candidates]
        self._rejections_by_constraints: dict[str, list[str]] = {}
        self._reasons_by_demand: dict[tuple[object, ...], str] = {}

    def measure(self, pod: Pod) -> _Measure:
        """Return what decides about the pod's position in the order."""
        shares = (
            amount / self._allocatable[name]
            for name, amount in compute_pod_requests(pod).items()
            if self._allocatable[name]
        )
        eligible = sum(not rejection for rejection in self._list_rejections(pod))
        return _Measure(eligible, max(shares, default=0.0), format_key(pod))

    def reset(self) -> None:
        """Release the resources that `place` has reserved."""
        for candidate, free in zip(self._candidates, self._initially_free, strict=True):
            candidate.free = dict(free)
        self._reasons_by_demand.clear()

    def place(self, pod: Pod) -> Placement:
        """Reserve the first node that accepts the pod, and return the verdict."""
        requests = self._compute_requests(pod)
        demand = (_build_constraints_key(pod), *requests.items())
        if demand in self._reasons_by_demand:
            return Placement(pod, NOWHERE, reason=self._reasons_by_demand[demand])
        reasons: list[str] = []
        for candidate, rejection in zip(self._candidates, self._list_rejections(pod), strict=True):
            insufficient = [] if rejection else candidate.list_insufficient(requests)
            if not rejection and not insufficient:
                candidate.reserve(requests)
                unmodelled = self._list_unmodelled(pod)
                return Placement(pod, UNKNOWN if unmodelled else FITS, candidate.name, ", ".join(unmodelled))
            reasons += [rejection] if rejection else [f"insufficient {name}" for name in insufficient]
        self._reasons_by_demand[demand] = _format_reasons(Counter(reasons))
        return Placement(pod, NOWHERE, reason=self._reasons_by_demand[demand])

    def _list_unmodelled(self, pod: Pod) -> list[str]:
        unmodelled = list_unmodelled_constraints(pod, self._visible_resources)
        return unmodelled or ([OTHER_ANTI_AFFINITY] if self._anti_affinity.may_reject(pod) else [])

    def _compute_requests(self, pod: Pod) -> dict[str, int]:
        """Return the pod's requests, without resources that no node reports."""
        requests = compute_pod_requests(pod).items()
        return {name: amount for name, amount in requests if amount and name in self._visible_resources}

    def _list_rejections(self, pod: Pod) -> list[str]:
        """Return each candidate's reason to reject the pod whatever its free resources, "" for none."""
        key = _build_constraints_key(pod)
        if key not in self._rejections_by_constraints:
            rejections = [find_rejection(pod, candidate.node) for candidate in self._candidates]
            self._rejections_by_constraints[key] = rejections
        return self._rejections_by_constraints[key]


def _build_constraints_key(pod: Pod) -> str:
    """Return a text that is equal for pods that `find_rejection` treats alike."""
    spec = pod["spec"]
    return json.dumps([spec.get(name) for name in ("nodeSelector", "affinity", "tolerations")], sort_keys=True)


def _format_reasons(node_counts: Mapping[str, int]) -> str:
    """Return the nodes' reasons, the most common first, such as `insufficient cpu on 3 nodes, taint gpu on 1 node`."""
    ordered = sorted(node_counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{reason} on {format_count(count, 'node')}" for reason, count in ordered) or NO_NODES
