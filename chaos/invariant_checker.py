"""Checks invariants of the observations in resourceVersion order: forbidden evictions and premature successes.

The module does no I/O. The observations arrive out of order, so each check waits until everything that it needs has
arrived.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from chaos.observations import MAINTENANCES, NODES, PODS, Blind, Eviction, Observation, Sighting
from kube.maintenance.groups import DRAIN_TAINTS
from kube.maintenance.objects import SUCCEEDED, is_deleting, node_name, phase
from kube.nodes import is_closed
from kube.pods import is_terminating, key, stays
from kube.times import moment

GRACE = 2.0
"""Grace period in seconds.

A request that was decided earlier may still arrive this long after its maintenance was deleted, its node was
uncordoned, or its pod was terminating.
"""
TWICE = 0.01
"""Maximum share of the evicted pods whose eviction may be granted twice within `GRACE`."""


class Moment(NamedTuple):
    """A resourceVersion and the time at which it was observed."""

    version: int
    at: float


@dataclass
class Pod:
    """The history of a pod."""

    name: str
    leaves: bool = True
    node: str = ""
    bound: Moment | None = None
    terminating: Moment | None = None
    gone: int | None = None


@dataclass
class Maintenance:
    """The history of a NodeMaintenance; `ending` is the time at which its deletion was first observed."""

    name: str
    node: str
    created: float
    phase: str = ""
    ending: float | None = None


@dataclass
class Tally:
    """The numbers of checks that were made, and of checks that were impossible because of a gap in a watch."""

    judged: Counter[str] = field(default_factory=Counter)
    blind: Counter[str] = field(default_factory=Counter)
    granted: Counter[str] = field(default_factory=Counter)


class Watcher:
    """Takes observations; `settle` returns the violations."""

    def __init__(self) -> None:
        self.tally = Tally()
        self._pods: dict[str, Pod] = {}
        self._nodes: dict[str, list[tuple[Moment, bool]]] = defaultdict(list)
        self._maintenances: dict[str, Maintenance] = {}
        self._blind: list[Blind] = []
        self._pending: list[tuple[float, Callable[[], Iterator[str]]]] = []

    def take(self, seen: Observation) -> None:
        """Record an observation."""
        if isinstance(seen, Blind):
            self._blind.append(seen)
        elif isinstance(seen, Eviction):
            self._pending.append((seen.at, lambda: self._judge_eviction(seen)))
        else:
            {NODES: self._take_node, PODS: self._take_pod, MAINTENANCES: self._take_maintenance}[seen.room](seen)

    def settle(self, until: float) -> list[str]:
        """Return the violations among what happened before `until` and was not checked yet."""
        due = [judge for at, judge in self._pending if at < until]
        self._pending = [(at, judge) for at, judge in self._pending if at >= until]
        return [violation for judge in due for violation in judge()]

    def end(self) -> list[str]:
        """Return the violations that only the whole run shows; call it after the last `settle`."""
        twice, pods = sum(count > 1 for count in self.tally.granted.values()), len(self.tally.granted)
        if twice > TWICE * pods:
            return [f"{twice} of {pods} evicted pods were granted twice: more than {TWICE:.0%}"]
        return []

    def _take_node(self, seen: Sighting) -> None:
        history = self._nodes[seen.item["metadata"]["name"]]
        closed = not seen.gone and any(is_closed(seen.item, taint) for taint in DRAIN_TAINTS)
        if closed != (history[-1][1] if history else False):
            history.append((Moment(seen.version, seen.at), closed))

    def _take_pod(self, seen: Sighting) -> None:
        pod = self._pods.setdefault(seen.item["metadata"]["uid"], Pod(key(seen.item)))
        now = Moment(seen.version, seen.at)
        pod.leaves = not stays(seen.item)
        pod.node = seen.item["spec"].get("nodeName") or pod.node
        pod.bound = pod.bound or (now if pod.node else None)
        pod.terminating = pod.terminating or (now if is_terminating(seen.item) else None)
        pod.gone = pod.gone or (seen.version if seen.gone else None)

    def _take_maintenance(self, seen: Sighting) -> None:
        item = seen.item
        created = moment(item["metadata"]["creationTimestamp"]).timestamp()
        fresh = Maintenance(item["metadata"]["name"], node_name(item), created)
        known = self._maintenances.setdefault(item["metadata"]["uid"], fresh)
        if known.ending is None and (seen.gone or is_deleting(item)):
            known.ending = seen.at
        if not seen.gone and phase(item) == SUCCEEDED != known.phase:
            now = Moment(seen.version, seen.at)
            self._pending.append((seen.at, lambda: self._judge_success(known, now)))
        known.phase = phase(item)

    def _judge_eviction(self, asked: Eviction) -> Iterator[str]:
        pod = self._pods.get(asked.uid)
        if pod is None or pod.terminating is None:
            self.tally.blind["evictions"] += asked.granted
            return
        if asked.at > pod.terminating.at + GRACE:
            late = asked.at - pod.terminating.at
            yield f"{pod.name} was evicted again {late:.1f} s after it was seen terminating"
        elif asked.granted:
            self.tally.granted[asked.uid] += 1
            if self.tally.granted[asked.uid] == 1:
                yield from self._judge_grant(asked, pod, pod.terminating)

    def _judge_grant(self, asked: Eviction, pod: Pod, done: Moment) -> Iterator[str]:
        if not any(self._lives(maintenance, pod.node, asked.at) for maintenance in self._maintenances.values()):
            if self._may_have_missed(MAINTENANCES, asked.at):
                self.tally.blind["evictions"] += 1
                return
            yield f"{pod.name} was evicted from {pod.node} {GRACE:.0f} s after its maintenance was gone, or without one"
        if self._is_blind(done.version, NODES, PODS):
            self.tally.blind["evictions"] += 1
            return
        self.tally.judged["evictions"] += 1
        before = [(when, closed) for when, closed in self._nodes[pod.node] if when.version < done.version]
        if not before:
            yield f"{pod.name} was evicted from {pod.node} before it was cordoned and tainted"
        elif not before[-1][1] and asked.at > before[-1][0].at + GRACE:
            late = asked.at - before[-1][0].at
            yield f"{pod.name} was evicted {late:.1f} s after {pod.node} was opened"

    @staticmethod
    def _lives(maintenance: Maintenance, node: str, at: float) -> bool:
        ended = maintenance.ending is not None and at > maintenance.ending + GRACE
        return maintenance.node == node and maintenance.created <= at and not ended

    def _judge_success(self, maintenance: Maintenance, said: Moment) -> Iterator[str]:
        if self._is_blind(said.version, PODS, MAINTENANCES):
            self.tally.blind["successes"] += 1
            return
        self.tally.judged["successes"] += 1
        for pod in self._pods.values():
            if pod.node == maintenance.node and pod.leaves and self._is_left(pod, said):
                yield f"{maintenance.name} is Succeeded with {pod.name} left on {maintenance.node}"

    @staticmethod
    def _is_left(pod: Pod, said: Moment) -> bool:
        """Return whether the pod was bound more than `GRACE` before the success, and still existed at the success."""
        there = pod.bound is not None and pod.bound.version < said.version and pod.bound.at < said.at - GRACE
        return there and (pod.gone is None or pod.gone > said.version)

    def _is_blind(self, version: int, *rooms: str) -> bool:
        return any(blind.room in rooms and blind.after < version <= blind.until for blind in self._blind)

    def _may_have_missed(self, room: str, at: float) -> bool:
        """Return whether an object that existed at this time, or shortly before, may have been missed in a gap."""
        return any(blind.room == room and blind.since <= at <= blind.till + GRACE for blind in self._blind)
