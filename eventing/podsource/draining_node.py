"""A node whose drain is running, as the watches last showed it, and which of its pods a budget lets go."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from eventing.events import Reference
from eventing.podsource.turns import Room
from kube.budgets import Budget, admitted, covers, goes_beside, plan
from kube.maintenance import drain_flags
from kube.maintenance import objects as m
from kube.paths import Object
from kube.pods import DrainOptions, Pod, Sorted, is_terminating, uid
from kube.selectors import matches


class DrainingNode:
    """Its maintenances and its pods. `synced`: all pods that were there have come; `version` is their newest state."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.maintenances: dict[str, Object] = {}
        self.synced = False
        self.version = ""
        self.task: asyncio.Task[None] | None = None
        self._pods: dict[str, Pod] = {}
        self._waiting: dict[str, list[Pod]] | None = None

    def maintain(self, item: Object) -> bool:
        """Take in a maintenance as it is now; returns whether other pods may have to leave by it than before."""
        before = self._options
        self.maintenances[item["metadata"]["uid"]] = item
        self._waiting = None
        return self._options != before

    @property
    def _options(self) -> DrainOptions:
        """How the one drains that has begun; of several on a node only one does."""
        return drain_flags.options_of(max(self.maintenances.values(), key=m.has_begun, default={}))

    def references(self) -> list[Reference]:
        """What its events are about: all its maintenances, as the watch that shows which has begun may lag behind."""
        return [Reference.of(item) for item in self.maintenances.values()]

    def has_begun(self) -> bool:
        """Whether one of its maintenances may have evicted pods already."""
        return any(m.has_begun(item) for item in self.maintenances.values())

    @property
    def is_ours(self) -> bool:
        """Its pods are known, and may be evicted."""
        return self.synced and self.has_begun()

    def put(self, pod: Pod) -> Pod | None:
        """Take in a pod as it is now; returns it as it was, None when it is new."""
        before = self._pods.get(uid(pod))
        self._pods[uid(pod)] = pod
        self._waiting = None
        return before

    def drop(self, pod: Pod) -> Pod | None:
        """The pod is gone; returns it as it was, None when it was not known."""
        self._waiting = None
        return self._pods.pop(uid(pod), None)

    def told_apart(self, pods: Iterable[Pod] | None = None) -> Sorted:
        """These pods, or all of the node, told apart by `spec.drain` (DRN-1a)."""
        listed = self._pods.values() if pods is None else pods
        return drain_flags.sorted_for(listed, self._options, datetime.now(timezone.utc))

    def leaving(self) -> list[Pod]:
        """The pods that are still to leave the node, DaemonSet pods aside."""
        return self.told_apart().leaving

    def going(self, found: Sorted) -> list[Pod]:
        """Those of the pods still to leave that `spec.drain` does not refuse."""
        return drain_flags.going(found, self._options)

    def waiting(self, namespace: str) -> list[Pod]:
        """The pods of a namespace that are not on their way yet.

        DaemonSet pods are among them when no other pod is left: those whose DaemonSet is gone leave then (NMO-7).
        Pods that `spec.drain` refuses are not: for them no budget opens.
        """
        if self._waiting is None:
            found, self._waiting = self.told_apart(), defaultdict(list)
            for pod in self.going(found) if found.leaving else found.daemons:
                if not is_terminating(pod):
                    self._waiting[pod["metadata"]["namespace"]].append(pod)
        return self._waiting.get(namespace, [])

    def namespaces(self) -> Iterable[str]:
        """Of all its pods."""
        return {pod["metadata"]["namespace"] for pod in self._pods.values()}


def room(budget: Budget, waiting: Sequence[Pod], neighbours: Iterable[Budget]) -> Room | None:
    """What the budget has for the waiting pods of its namespace; None when it covers none of them.

    `neighbours` are all budgets of the namespace: a pod behind two of them may not go, whatever either allows.
    """
    covered = [pod for pod in waiting if covers(budget, pod)]
    if not covered:
        return None
    others = [other for other in neighbours if other is not budget]
    going, _ = admitted(budget, [pod for pod in covered if not any(covers(other, pod) for other in others)])
    beside = [goes_beside(budget, pod) for pod in going]
    return Room(counted=not all(beside), beside=any(beside))


def lets_go(versions: Iterable[Budget], waiting: Sequence[Pod], neighbours: Iterable[Budget]) -> bool:
    """Whether a pod that one of the versions of a budget covers may go under the budgets that are there now."""
    touched = [pod for pod in waiting if any(covers(version, pod) for version in versions)]
    found = plan(touched, neighbours)
    return bool(found.free or found.queues)


def selects(budget: Budget, pod: Pod) -> bool:
    """Whether the budget is about the pod, however far that is: at its end a pod is in no phase that counts."""
    labels: Mapping[str, Any] = pod["metadata"].get("labels") or {}
    return budget["metadata"]["namespace"] == pod["metadata"]["namespace"] and matches(
        budget["spec"].get("selector"), labels
    )
