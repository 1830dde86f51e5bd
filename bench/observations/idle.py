"""Observations of the product: idle, with many finished maintenances, with recreated pods, and under admission load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench import costs
from bench.admission import latency
from bench.api_requests import AuditLog, Request
from bench.cases import (
    ASKED,
    ASKED_AMONG_MANY,
    LARGE_UPGRADE,
    REST,
    RESTING,
    RETURNING,
    UPGRADE,
    Case,
    Observation,
)
from bench.findings import Finding, Quiet, Tick
from bench.background_writer import HEARTBEATS, writing
from bench.workload import Load, side_by_side
from bench.observations import upgrade_requests
from bench.rig import Rig
from bench.drainers import maintenances
from eventing import events
from functions.app import FUNCTIONS
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED
from kube.nodes import node_path

Figure = tuple[str, float, float | None]
"""A label, a value, and its limit if there is one."""
MINUTE = 60.0
TICK_SECONDS = 15.0
SETTLING = 3 * TICK_SECONDS
"""Seconds in which earlier activity ends."""
RESTS, TOGETHER, RESTING_MINUTES = 500, 25, 2
TOLERANT, RETURN, OTHERS, RETURNS = "tolerant", 5, 10, "returning"
LOOKS, LOOK_SECONDS = 5, 0.5
EVICTIONS, CORES = (20, 10, 10), 0.05
"""Limits of the evictions in each minute, and of the CPU cores that API server and functions use beyond idle."""
HEARTBEAT_SECONDS = 10
KWOK = "node-heartbeat.stage.kwok.x-k8s.io"
STATUS = {f"{KWOK}/delay": "10s", f"{KWOK}/jitter-delay": "590s"}
"""Makes kwok write node status as a kubelet does, besides the lease: about every five minutes if nothing changed."""
TICKS = """
    SELECT min(attempts.at), max(attempts.at + attempts.seconds) - min(attempts.at) FROM attempts
    JOIN events ON events.id = attempts.event AND events.source = attempts.source
    WHERE events.type = ? AND attempts.at >= ? AND attempts.at < ? GROUP BY attempts.event ORDER BY 1
"""
EVENTS = """
    SELECT coalesce(sum(type NOT LIKE 'dev.knative.%'), 0), coalesce(sum(type LIKE 'dev.knative.%'), 0)
    FROM events WHERE type != ? AND arrived >= ? AND arrived < ?
"""
"""The number of the product's own events, and of the sources' events about objects."""
ATTEMPTS = """
    SELECT count(*) FROM attempts LEFT JOIN events ON events.id = attempts.event AND events.source = attempts.source
    WHERE coalesce(events.type, '') NOT LIKE 'dev.knative.%' AND attempts.at >= ? AND attempts.at < ?
"""


def observe(rig: Rig, case: Observation) -> list[Finding]:
    """Run the observation and return its figures. Raises `TimeoutError` and the errors of the API client."""
    return [Finding(rig.engine, case.name, *figure) for figure in MEASURES[case](rig)]


def _rest(rig: Rig) -> list[Figure]:
    """Observe an idle product for a minute, after its startup has finished."""
    time.sleep(TICK_SECONDS)
    return _quiet(rig, MINUTE)


def _quiet(rig: Rig, seconds: float) -> list[Figure]:
    """Return the figures of an idle product over `seconds`."""
    log, before, since = AuditLog(costs.audit_log(rig)), costs.cpu(rig), time.time()
    time.sleep(seconds)
    spent, till = _cores(rig, before, time.time() - since), time.time()
    time.sleep(costs.LATE)
    asked = [request for request in log.read() if since <= request.at < till]
    return [*seen(rig.journal, asked, since, till).figures(), *spent]


def seen(journal: Path, asked: Sequence[Request], since: float, till: float) -> Quiet:
    """Return the period's entries in the journal, together with its requests."""
    window = (events.TICK, since, till)
    with closing(costs.opened(journal)) as database:
        ticks = [Tick(*row) for row in database.execute(TICKS, window)]
        ours, updates = database.execute(EVENTS, window).fetchone()
        [attempts] = database.execute(ATTEMPTS, window[1:]).fetchone()
    return Quiet(ticks, asked, ours, ours + attempts, updates)


def _cores(rig: Rig, before: dict[str, float], seconds: float) -> list[Figure]:
    now = costs.cpu(rig)
    spent = {name: now[name] - before.get(name, 0) for name in now}
    return [
        ("cores of the API server", round(spent["kube-apiserver"] / seconds, 3), None),
        ("cores of the functions", round(sum(_of_functions(spent)) / seconds, 3), None),
    ]


def _of_functions(cpu: dict[str, float]) -> Iterable[float]:
    return (spent for name, spent in cpu.items() if name in (*FUNCTIONS, "functions"))


def _resting(rig: Rig) -> list[Figure]:
    """Observe finished maintenances while the kubelets of all nodes send heartbeats."""
    nodes, started = _names(rig), time.monotonic()
    with _at_rest(rig, nodes[:RESTS]):
        took = time.monotonic() - started
        figures = _amid_heartbeats(rig, nodes)
    return [(f"seconds until {RESTS} have Succeeded, {TOGETHER} at a time", round(took, 1), None), *figures]


def _amid_heartbeats(rig: Rig, nodes: Sequence[str]) -> list[Figure]:
    door = rig.cluster
    side_by_side(door, (door.api.patch(node_path(name), {"metadata": {"annotations": STATUS}}) for name in nodes))
    with writing(rig.kubeconfig, len(nodes) // HEARTBEAT_SECONDS, HEARTBEATS):
        time.sleep(SETTLING)
        return _quiet(rig, RESTING_MINUTES * MINUTE)


def _names(rig: Rig) -> list[str]:
    return [node["metadata"]["name"] for node in rig.cluster.list("/api/v1/nodes")["items"]]


@contextmanager
def _at_rest(rig: Rig, nodes: Sequence[str]) -> Iterator[None]:
    """Hold maintenances that have drained these nodes, which have no pods, while the block runs."""
    door, bodies = rig.cluster, maintenances([f"resting-{number}" for number in range(len(nodes))], nodes, "rests")
    for first in range(0, len(nodes), TOGETHER):
        some = bodies[first : first + TOGETHER]
        side_by_side(door, (door.api.create(MEDIK8S.path, body) for body in some))
        rig.watching.last("phase", [body["metadata"]["name"] for body in some], SUCCEEDED)
    yield
    for first in range(0, len(nodes), TOGETHER):
        names = [body["metadata"]["name"] for body in bodies[first : first + TOGETHER]]
        side_by_side(door, (door.api.request("DELETE", f"{MEDIK8S.path}/{name}") for name in names))
        rig.watching.last("maintenance gone", names)


def _asked_among_many(rig: Rig) -> list[Figure]:
    """Measure the latency for nodes with and without a maintenance, while 500 maintenances exist."""
    nodes = _names(rig)
    with _at_rest(rig, nodes[:RESTS]):
        return latency.measure(rig, ASKED_AMONG_MANY.name, nodes[RESTS:], nodes[:RESTS])


class _Returning:
    """Five pods that tolerate every taint and ten that do not, on one node; at the end the tolerations are removed."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._door, self._watching = rig, rig.cluster, rig.watching
        self._load = Load(rig.cluster, Case(RETURNING.name, pods=OTHERS), ["node-1"], "node-2")

    def measure(self) -> list[Figure]:
        """Return the figures of all phases: an idle minute, three minutes of the drain, and its end."""
        self._watching.forget()
        others = {pod["metadata"]["name"] for pod in self._load.fill()}
        self._load.deploy_tolerant(TOLERANT, "node-1", RETURN)
        time.sleep(costs.LATE)
        _, rest = self._minute(time.monotonic() + MINUTE)
        [body] = maintenances([RETURNS], ["node-1"], "some pods return")
        started = time.monotonic()
        self._door.create(MEDIK8S.path, body)
        minutes = [self._minute(started + number * MINUTE) for number in (1, 2, 3)]
        left = self._watching.last_gone(others) - started
        figures: list[Figure] = [(f"seconds until the {OTHERS} others have left", round(left, 2), None)]
        for number, ((evictions, _), limit) in enumerate(zip(minutes, EVICTIONS, strict=True), 1):
            figures.append((f"evictions of those that return, minute {number}", evictions, limit))
        figures.append(
            ("cores of API server and functions above rest, minute 3", round(minutes[2][1] - rest, 3), CORES)
        )
        return [*figures, ("pods of which the status does not say why", self._unexplained(), 0), self._end()]

    def _minute(self, till: float) -> tuple[int, float]:
        """Return the number of evictions of tolerant pods and the cores of API server and functions until `till`."""
        log, before, since = AuditLog(costs.audit_log(self._rig)), costs.cpu(self._rig), time.monotonic()
        time.sleep(max(0.0, till - since))
        cores = sum(value for _, value, _ in _cores(self._rig, before, time.monotonic() - since))
        evictions = [request for request in log.read() if request.what == "create pods/eviction"]
        return sum(request.name.startswith(TOLERANT) for request in evictions), cores

    def _unexplained(self) -> int:
        """Return the number of tolerant pods that the status does not report as blocked, the lowest of several reads.

        Just after its eviction a pod is being recreated and is not blocked, so a single read may be too high.
        """
        found = RETURN
        for _ in range(LOOKS):
            status = self._door.get(f"{MEDIK8S.path}/{RETURNS}")["status"]
            said = [entry for entry in status.get("blockedPods") or [] if entry["reason"] == "Returns"]
            found = min(found, RETURN - len(said))
            time.sleep(LOOK_SECONDS)
        return found

    def _end(self) -> Figure:
        """Remove the tolerations and return how long the drain then takes to end; restore the node."""
        started = time.monotonic()
        self._load.heed_taints(TOLERANT, "node-2")
        ended = self._watching.first("phase", RETURNS, SUCCEEDED) - started
        self._door.run(self._door.api.request("DELETE", f"{MEDIK8S.path}/{RETURNS}"))
        self._watching.first("maintenance gone", RETURNS, "")
        self._load.clear()
        return ("seconds from the end of the tolerations to Succeeded", round(ended, 1), None)


MEASURES: dict[Observation, Callable[[Rig], list[Figure]]] = {
    REST: _rest,
    RESTING: _resting,
    ASKED: lambda rig: latency.measure(rig, ASKED.name, _names(rig), ()),
    ASKED_AMONG_MANY: _asked_among_many,
    RETURNING: lambda rig: _Returning(rig).measure(),
    UPGRADE: lambda rig: upgrade_requests.measure(rig, _names(rig)),
    LARGE_UPGRADE: lambda rig: upgrade_requests.measure(rig, _names(rig)),
}
