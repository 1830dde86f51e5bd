"""The plan of a run: the actions, their times and the workload, all derived from the seed. Pure functions."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random

from kube.maintenance.groups import KUBEVIRT, MEDIK8S

RESTART = "restart kube-apiserver"
USER = {"start": 9, "stop": 6, "double": 2, "replace": 2, "uncordon": 3}
"""The users' actions, with their relative frequencies."""
CRASHES = {
    **{"kill functions": 2, "kill worker": 2, "kill delivery": 2, "kill source": 1, "kill console": 1},
    **{"kill controller": 1, "kill dispatcher": 2, RESTART: 1},
}
"""SIGKILL of the processes of a kind that the engine has, with relative frequencies."""
NETWORK = {"refuse": 2, "twice": 2, "late": 2, "lose": 2, "unavailable": 1}
"""Failed API responses, and events that are duplicated, delayed, lost or refused, for some seconds each."""
GAP = 1.0
"""Mean time between two actions, in seconds."""
QUIET_START = 2.0
AT_MOST = 0.3
"""Maximum share of the nodes under maintenance at the same time, since pods need capacity elsewhere."""
STEPS = ("begin", "cordon", "taint", "evict", "status", "restore", "guard", "resync")
UPGRADE_STEPS = (
    *("check-rule", "check-target", "check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes"),
    *("edit-pools", "run-job", "release-node", "await-version", "restore-pools", "resync-runs"),
)


@dataclass(frozen=True)
class Action:
    """One action of a user, or one fault.

    Attributes:
        at: Seconds after the start.
        kind: A key of `USER`, `CRASHES` or `NETWORK`.
        subject: The NodeMaintenance, the process or the step concerned; "" if the kind determines it.
        node, group: The node and the API group of a NodeMaintenance.
        seconds: How long the fault lasts, or the process stays down.
    """

    at: float
    kind: str
    subject: str = ""
    node: str = ""
    group: str = ""
    seconds: float = 0.0


@dataclass(frozen=True)
class App:
    """A Deployment.

    Attributes:
        replicas: The number of its pods.
        unavailable: `maxUnavailable` of its budget; None for no budget.
        ending: The seconds that its pods take to terminate.
    """

    name: str
    replicas: int
    unavailable: int | None
    ending: float


def apps(seed: int, pods: int) -> list[App]:
    """Return Deployments that have `pods` pods in total."""
    chance, found = Random(f"apps {seed}"), list[App]()
    while pods:
        replicas = min(pods, chance.randint(5, 30))
        pods -= replicas
        unavailable = chance.choice((None, 1, 2, 3, 5))
        found.append(App(f"app-{len(found)}", replicas, unavailable, round(chance.uniform(0.0, 2.0), 1)))
    return found


@dataclass(frozen=True)
class Rule:
    """A MutexRule: whether it has cleanup Jobs, and how long each Job takes, as a kwok delay annotation."""

    name: str
    has_cleanup: bool
    delay: str


@dataclass(frozen=True)
class Upgrade:
    """The input of an upgrade mutex run: the number of workers in each pool, and the rules in their order."""

    pools: Mapping[str, int]
    rules: tuple[Rule, ...]


def upgrade(seed: int, workers: int) -> Upgrade:
    """Return an upgrade of this many workers."""
    chance, pools, left = Random(f"upgrade {seed}"), dict[str, int](), workers
    while left:
        pools[f"pool-{len(pools)}"] = count = min(left, chance.randint(2, max(2, workers // 2)))
        left -= count
    cleanups = [chance.random() < 0.5 for _ in range(chance.randint(1, 3))]
    rules = (Rule(f"rule-{number}", each, chance.choice(("", "", "300ms"))) for number, each in enumerate(cleanups))
    return Upgrade(pools, tuple(rules))


Processes = Mapping[str, Collection[str]]
"""For each kind of crash, the names of the processes that it may kill."""


def actions(seed: int, seconds: float, nodes: Sequence[str], processes: Processes) -> list[Action]:
    """Return all actions within `seconds` on these nodes and processes, in order."""
    return list(_Planning(Random(f"actions {seed}"), nodes, {**processes, RESTART: ("",)}, STEPS).until(seconds))


def upgrade_actions(seed: int, seconds: float, processes: Processes) -> list[Action]:
    """Return all faults during an upgrade: no user actions, and no API server restarts, since an observer needs it."""
    return list(_Planning(Random(f"upgrade actions {seed}"), (), processes, UPGRADE_STEPS).until(seconds))


class _Planning:
    """Tracks the maintenances that will exist, so that a planned action has an existing target."""

    def __init__(self, chance: Random, nodes: Sequence[str], processes: Processes, steps: Sequence[str]) -> None:
        self._chance, self._nodes, self._processes, self._steps = chance, list(nodes), processes, steps
        self._there: dict[str, tuple[str, str]] = {}
        self._made = 0

    def until(self, seconds: float) -> Iterator[Action]:
        crashes = {kind: often for kind, often in CRASHES.items() if kind in self._processes}
        kinds = {**(USER if self._nodes else {}), **crashes, **NETWORK}
        at = QUIET_START
        while at < seconds:
            (kind,) = self._chance.choices(list(kinds), list(kinds.values()))
            yield self._action(round(at, 2), kind)
            at += self._chance.expovariate(1 / GAP)

    def _action(self, at: float, kind: str) -> Action:
        if kind in NETWORK:
            step = self._chance.choice(self._steps) if kind == "unavailable" else ""
            return Action(at, kind, step, seconds=round(self._chance.uniform(1.0, 5.0), 1))
        if kind in CRASHES:
            name = self._chance.choice(list(self._processes[kind]))
            return Action(at, kind, name, seconds=round(self._chance.uniform(0.0, 3.0), 1))
        return self._of_user(at, kind)

    def _of_user(self, at: float, kind: str) -> Action:
        """Return this action, a start if no maintenance exists to act on, or a stop if enough nodes are maintained."""
        maintained = {node for node, _ in self._there.values()}
        if len(maintained) >= max(1, AT_MOST * len(self._nodes)) and kind == "start":
            kind = "stop"
        if not self._there or kind == "start":
            free = [node for node in self._nodes if node not in maintained]
            return self._made_on(at, "start", self._chance.choice(free))
        name = self._chance.choice(list(self._there))
        node, group = self._there[name]
        if kind == "double":
            return self._made_on(at, kind, node)
        if kind == "stop":
            del self._there[name]
        return Action(at, kind, name, node, group)

    def _made_on(self, at: float, kind: str, node: str) -> Action:
        group = self._chance.choice((MEDIK8S, MEDIK8S, KUBEVIRT)).api_version
        self._made += 1
        name = f"m-{self._made}"
        self._there[name] = (node, group)
        return Action(at, kind, name, node, group)
