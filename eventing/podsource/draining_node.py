"""A node whose drain is running, as reported by the watches, and which of its pods a budget admits for eviction."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from eventing.events import Reference
from eventing.podsource.hint_scheduler import Room
from kube.budgets import Budget, admitted, covers, goes_beside, plan
from kube.maintenance import drain_flags
from kube.maintenance import objects as m
from kube.paths import Object
from kube.pods import DrainOptions, Pod, Sorted, is_terminating, uid
from kube.selectors import matches


class DrainingNode:
    """A node under maintenance: its NodeMaintenance objects and its pods.

    `synced` is true once all existing pods are known. `version` is the newest resourceVersion of the pod watch.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.maintenances: dict[str, Object] = {}
        self.synced = False
        self.version = ""
        self.task: asyncio.Task[None] | None = None
        self._pods: dict[str, Pod] = {}
        self._waiting: dict[str, list[Pod]] | None = None

    def maintain(self, item: Object) -> bool:
        """Add or update a maintenance; return whether this changes the drain options of the node."""
        before = self._options
        self.maintenances[item["metadata"]["uid"]] = item
        self._waiting = None
        return self._options != before

    @property
    def _options(self) -> DrainOptions:
        """Return the drain options of the node's maintenance; of several, those of the one that has begun."""
        return drain_flags.options_of(max(self.maintenances.values(), key=m.has_begun, default={}))

    def references(self) -> list[Reference]:
        """Return the references for the node's events: to all its maintenances.

        The watch may not have reported yet which of them has begun.
        """
        return [Reference.of(item) for item in self.maintenances.values()]

    def has_begun(self) -> bool:
        """Return whether one of its maintenances has begun and may have evicted pods already."""
        return any(m.has_begun(item) for item in self.maintenances.values())

    @property
    def is_ours(self) -> bool:
        """Return whether the node's pods are known and may be evicted."""
        return self.synced and self.has_begun()

    def put(self, pod: Pod) -> Pod | None:
        """Add or update a pod; return its previous state, or None if it is new."""
        before = self._pods.get(uid(pod))
        self._pods[uid(pod)] = pod
        self._waiting = None
        return before

    def drop(self, pod: Pod) -> Pod | None:
        """Remove a pod that no longer exists; return its last state, or None if it was unknown."""
        self._waiting = None
        return self._pods.pop(uid(pod), None)

    def told_apart(self, pods: Iterable[Pod] | None = None) -> Sorted:
        """Classify these pods, or all pods of the node, by `spec.drain` (DRN-1a)."""
        listed = self._pods.values() if pods is None else pods
        return drain_flags.sorted_for(listed, self._options, datetime.now(timezone.utc))

    def leaving(self) -> list[Pod]:
        """Return the pods that must still leave the node; DaemonSet pods only if `spec.drain` does not ignore them."""
        return self.told_apart().leaving

    def going(self, found: Sorted) -> list[Pod]:
        """Return the pods that must still leave and that `spec.drain` does not refuse."""
        return drain_flags.going(found, self._options)

    def waiting(self, namespace: str) -> list[Pod]:
        """Return the pods of a namespace that must leave and are not terminating yet.

        They include DaemonSet pods if no other pod is left, since those whose DaemonSet is deleted leave then (NMO-7).
        They exclude pods that `spec.drain` refuses, because no budget change lets those go.
        """
        if self._waiting is None:
            found, self._waiting = self.told_apart(), defaultdict(list)
            for pod in self.going(found) if found.leaving else found.daemons:
                if not is_terminating(pod):
                    self._waiting[pod["metadata"]["namespace"]].append(pod)
        return self._waiting.get(namespace, [])

    def namespaces(self) -> Iterable[str]:
        """Return the namespaces of all its pods."""
        return {pod["metadata"]["namespace"] for pod in self._pods.values()}


def room(budget: Budget, waiting: Sequence[Pod], neighbours: Iterable[Budget]) -> Room | None:
    """Return what the budget admits of the waiting pods in its namespace, or None if it covers none of them.

    `neighbours` are all budgets of the namespace. A pod that two budgets cover cannot be evicted, whatever they admit.
    """
    covered = [pod for pod in waiting if covers(budget, pod)]
    if not covered:
        return None
    others = [other for other in neighbours if other is not budget]
    going, _ = admitted(budget, [pod for pod in covered if not any(covers(other, pod) for other in others)])
    beside = [goes_beside(budget, pod) for pod in going]
    return Room(counted=not all(beside), beside=any(beside))


def lets_go(versions: Iterable[Budget], waiting: Sequence[Pod], neighbours: Iterable[Budget]) -> bool:
    """Return whether the current budgets admit a pod that one of these versions of a budget covers."""
    touched = [pod for pod in waiting if any(covers(version, pod) for version in versions)]
    found = plan(touched, neighbours)
    return bool(found.free or found.queues)


def selects(budget: Budget, pod: Pod) -> bool:
    """Return whether the budget's selector matches the pod, whatever the pod's phase.

    `covers` ignores pods in phases that do not count, such as pods that have ended.
    """
    labels: Mapping[str, Any] = pod["metadata"].get("labels") or {}
    return budget["metadata"]["namespace"] == pod["metadata"]["namespace"] and matches(
        budget["spec"].get("selector"), labels
    )
