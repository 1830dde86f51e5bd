"""Plans a run: the actions, their times, and the workload, all derived from a seed. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from kube.maintenance.escalation import DELETE, DELETE_NOW, DELETE_UNREADY
from kube.maintenance.groups import KUBEVIRT, MEDIK8S

Escalation = tuple[tuple[str, str], ...]
"""The steps of an escalation, each as its delay (`after`) and its action."""

RESTART_API_SERVER = "restart kube-apiserver"
USER_WEIGHTS = {"start": 9, "stop": 6, "double": 2, "replace": 2, "uncordon": 3, "unready": 3}
"""Relative frequencies of users' actions, and of pods that become unready for a while."""
ESCALATIONS: tuple[Escalation, ...] = (
    (),
    (),
    (("1s", DELETE_UNREADY),),
    (("1s", DELETE),),
    (("1s", DELETE_UNREADY), ("2s", DELETE), ("3s", DELETE_NOW)),
)
"""The escalations from which each planned maintenance gets one; () means no escalation."""
CRASH_WEIGHTS = {
    **{"kill functions": 2, "kill worker": 2, "kill delivery": 2, "kill source": 1, "kill console": 1},
    **{"kill controller": 1, "kill dispatcher": 2, RESTART_API_SERVER: 1},
}
"""Relative frequencies of crashes (a process is killed) by kind; an engine may not have all kinds."""
NETWORK_WEIGHTS = {"refuse": 2, "twice": 2, "late": 2, "lose": 2, "unavailable": 1}
"""Relative frequencies of network faults: failed API responses; duplicated, delayed, lost or rejected events."""
MEAN_INTERVAL_SECONDS = 1.0
"""Mean time between the starts of two actions."""
QUIET_START_SECONDS = 2.0
MAX_MAINTAINED_SHARE = 0.3
"""Maximum share of the nodes under maintenance at the same time, because evicted pods need capacity on other nodes."""
STEPS = ("begin", "cordon", "taint", "evict", "status", "restore", "guard", "resync")
UPGRADE_STEPS = (
    *("check-rule", "check-target", "check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes"),
    *("edit-pools", "run-job", "release-node", "await-version", "restore-pools", "resync-runs"),
)


@dataclass(frozen=True)
class Action:
    """A planned action of a user, or a planned fault.

    Attributes:
        start_seconds: The start of the action, in seconds after the start of the run.
        kind: A key of `USER_WEIGHTS`, `CRASH_WEIGHTS` or `NETWORK_WEIGHTS`.
        target: The name of the NodeMaintenance, of the process or of the function; "" if the kind needs no target.
        node, api_version: The node and the API version of the NodeMaintenance.
        duration_seconds: How long the fault lasts, the process stays down, or the pod stays unready.
        escalation: The escalation of a NodeMaintenance that the action creates.
    """

    start_seconds: float
    kind: str
    target: str = ""
    node: str = ""
    api_version: str = ""
    duration_seconds: float = 0.0
    escalation: Escalation = ()


@dataclass(frozen=True)
class App:
    """A Deployment of the workload.

    Attributes:
        name: The Deployment's name.
        replicas: The number of its pods.
        max_unavailable: `maxUnavailable` of its PDB; None for no PDB.
        termination_seconds: The time that each pod takes to terminate.
    """

    name: str
    replicas: int
    max_unavailable: int | None
    termination_seconds: float


def plan_apps(seed: int, pods: int) -> list[App]:
    """Plan Deployments that have `pods` pods in total."""
    rng, apps = Random(f"apps {seed}"), list[App]()
    while pods:
        replicas = min(pods, rng.randint(5, 30))
        pods -= replicas
        max_unavailable = rng.choice((None, 1, 2, 3, 5))
        apps.append(App(f"app-{len(apps)}", replicas, max_unavailable, round(rng.uniform(0.0, 2.0), 1)))
    return apps


@dataclass(frozen=True)
class Rule:
    """A MutexRule: whether it has cleanup Jobs, and how long each of its Jobs takes, in the format of kwok's delay."""

    name: str
    has_cleanup: bool
    job_delay: str


@dataclass(frozen=True)
class Upgrade:
    """An upgrade to perform: the number of workers in each pool, and the MutexRules in their order."""

    pools: Mapping[str, int]
    rules: tuple[Rule, ...]


def plan_upgrade(seed: int, workers: int) -> Upgrade:
    """Plan an upgrade of this number of workers."""
    rng, pools, remaining = Random(f"upgrade {seed}"), dict[str, int](), workers
    while remaining:
        pools[f"pool-{len(pools)}"] = count = min(remaining, rng.randint(2, max(2, workers // 2)))
        remaining -= count
    cleanups = [rng.random() < 0.5 for _ in range(rng.randint(1, 3))]
    rules = (
        Rule(f"rule-{number}", has_cleanup, rng.choice(("", "", "300ms")))
        for number, has_cleanup in enumerate(cleanups)
    )
    return Upgrade(pools, tuple(rules))


ProcessNames = Mapping[str, Collection[str]]
"""The names of the processes that each kind of crash may kill."""


def plan_actions(seed: int, duration_seconds: float, nodes: Sequence[str], processes: ProcessNames) -> list[Action]:
    """Plan all actions of a run of `duration_seconds` on these nodes and processes, in the order of their times."""
    return list(
        _Planner(Random(f"actions {seed}"), nodes, {**processes, RESTART_API_SERVER: ("",)}, STEPS).plan_until(
            duration_seconds
        )
    )


def plan_upgrade_actions(seed: int, duration_seconds: float, processes: ProcessNames) -> list[Action]:
    """Plan the faults of an upgrade, without restarts of the API server, because an observer needs the API server."""
    return list(_Planner(Random(f"upgrade actions {seed}"), (), processes, UPGRADE_STEPS).plan_until(duration_seconds))


class _Planner:
    """Plans actions, and tracks the maintenances that will then exist, so that each action has an existing target."""

    def __init__(self, rng: Random, nodes: Sequence[str], processes: ProcessNames, steps: Sequence[str]) -> None:
        self._rng, self._nodes, self._processes, self._steps = rng, list(nodes), processes, steps
        self._maintenances: dict[str, tuple[str, str]] = {}
        self._created_count = 0

    def plan_until(self, end_seconds: float) -> Iterator[Action]:
        crashes = {kind: weight for kind, weight in CRASH_WEIGHTS.items() if kind in self._processes}
        kinds = {**(USER_WEIGHTS if self._nodes else {}), **crashes, **NETWORK_WEIGHTS}
        start_seconds = QUIET_START_SECONDS
        while start_seconds < end_seconds:
            (kind,) = self._rng.choices(list(kinds), list(kinds.values()))
            yield self._plan_action(round(start_seconds, 2), kind)
            start_seconds += self._rng.expovariate(1 / MEAN_INTERVAL_SECONDS)

    def _plan_action(self, start_seconds: float, kind: str) -> Action:
        if kind in NETWORK_WEIGHTS:
            step = self._rng.choice(self._steps) if kind == "unavailable" else ""
            return Action(start_seconds, kind, step, duration_seconds=round(self._rng.uniform(1.0, 5.0), 1))
        if kind in CRASH_WEIGHTS:
            name = self._rng.choice(list(self._processes[kind]))
            return Action(start_seconds, kind, name, duration_seconds=round(self._rng.uniform(0.0, 3.0), 1))
        return self._plan_user_action(start_seconds, kind)

    def _plan_user_action(self, start_seconds: float, kind: str) -> Action:
        """Plan an action of this kind; plan a start instead if no maintenance exists, or a stop if too many exist."""
        nodes_in_maintenance = {node for node, _ in self._maintenances.values()}
        if len(nodes_in_maintenance) >= max(1, MAX_MAINTAINED_SHARE * len(self._nodes)) and kind == "start":
            kind = "stop"
        if not self._maintenances or kind == "start":
            free_nodes = [node for node in self._nodes if node not in nodes_in_maintenance]
            return self._plan_creation(start_seconds, "start", self._rng.choice(free_nodes))
        name = self._rng.choice(list(self._maintenances))
        node, group = self._maintenances[name]
        if kind == "double":
            return self._plan_creation(start_seconds, kind, node)
        if kind == "stop":
            del self._maintenances[name]
        if kind == "unready":
            return Action(start_seconds, kind, name, node, group, round(self._rng.uniform(1.0, 5.0), 1))
        return Action(start_seconds, kind, name, node, group)

    def _plan_creation(self, start_seconds: float, kind: str, node: str) -> Action:
        group = self._rng.choice((MEDIK8S, MEDIK8S, KUBEVIRT)).api_version
        self._created_count += 1
        name = f"m-{self._created_count}"
        self._maintenances[name] = (node, group)
        return Action(start_seconds, kind, name, node, group, escalation=self._rng.choice(ESCALATIONS))
