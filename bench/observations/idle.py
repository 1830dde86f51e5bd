"""Observes the product: idle, with many drained maintenances, with recreated pods, and under admission load."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from bench import costs
from bench.admission import latency
from bench.api_requests import AuditLog, Request
from bench.background_writer import HEARTBEATS, run_background_writer
from bench.cases import (
    ADMISSION_LOAD,
    CONSOLE_VIEWERS,
    IDLE,
    IDLE_MAINTENANCES,
    LARGE_ADMISSION_LOAD,
    LARGE_UPGRADE,
    RECREATED_PODS,
    UPGRADE,
    DrainCase,
    Observation,
)
from bench.drainers import build_maintenances
from bench.findings import Figure, Finding, IdlePeriod, Tick
from bench.observations import console_viewers, upgrade_requests
from bench.rig import Rig
from bench.workload import Workload, run_concurrently
from eventing import events
from functions.app import FUNCTIONS
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED
from kube.nodes import build_node_path

MINUTE_SECONDS = 60.0
TICK_SECONDS = 15.0
SETTLE_SECONDS = 3 * TICK_SECONDS
"""Seconds to wait until the activity from before the observation has ended."""
MAINTENANCE_COUNT, BATCH_SIZE, IDLE_MINUTES = 500, 25, 2
TOLERANT_DEPLOYMENT, TOLERANT_POD_COUNT, OTHER_POD_COUNT, MAINTENANCE_NAME = "tolerant", 5, 10, "recreated-pods"
STATUS_READS, STATUS_READ_SECONDS = 5, 0.5
MAX_EVICTIONS, MAX_CORES = (20, 10, 10), 0.05
"""Limits: evictions in each of the first three minutes, and CPU cores in use in comparison with the idle product."""
HEARTBEAT_SECONDS = 10
HEARTBEAT_STAGE_PREFIX = "node-heartbeat.stage.kwok.x-k8s.io"
STATUS_DELAY_ANNOTATIONS = {f"{HEARTBEAT_STAGE_PREFIX}/delay": "10s", f"{HEARTBEAT_STAGE_PREFIX}/jitter-delay": "590s"}
"""Annotations that make kwok write an unchanged node's status about every five minutes, as a kubelet does."""
TICKS_QUERY = """
    SELECT min(attempts.at), max(attempts.at + attempts.seconds) - min(attempts.at) FROM attempts
    JOIN events ON events.id = attempts.event AND events.source = attempts.source
    WHERE events.type = ? AND attempts.at >= ? AND attempts.at < ? GROUP BY attempts.event ORDER BY 1
"""
EVENTS_QUERY = """
    SELECT coalesce(sum(type NOT LIKE 'dev.knative.%'), 0), coalesce(sum(type LIKE 'dev.knative.%'), 0)
    FROM events WHERE type != ? AND arrived >= ? AND arrived < ?
"""
"""Counts the events that the product emitted, and the events of its sources about objects."""
ATTEMPTS_QUERY = """
    SELECT count(*) FROM attempts LEFT JOIN events ON events.id = attempts.event AND events.source = attempts.source
    WHERE coalesce(events.type, '') NOT LIKE 'dev.knative.%' AND attempts.at >= ? AND attempts.at < ?
"""


def observe(rig: Rig, case: Observation) -> list[Finding]:
    """Run an observation and return its figures. Raises `TimeoutError` and the API client's errors."""
    return [Finding(rig.engine, case.name, *figure) for figure in MEASUREMENTS[case](rig)]


def _measure_idle(rig: Rig) -> list[Figure]:
    """Observe the idle product for a minute, after its startup."""
    time.sleep(TICK_SECONDS)
    return _observe_idle(rig, MINUTE_SECONDS)


def _observe_idle(rig: Rig, duration_seconds: float) -> list[Figure]:
    """Observe the product, which must be idle, for `duration_seconds`; return the figures."""
    log, cpu_before, started_at = AuditLog(costs.get_audit_log(rig)), costs.measure_cpu(rig), time.time()
    time.sleep(duration_seconds)
    cores, ended_at = _measure_cores(rig, cpu_before, time.time() - started_at), time.time()
    time.sleep(costs.JOURNAL_DELAY_SECONDS)
    requests = [request for request in log.read() if started_at <= request.received_at < ended_at]
    return [*read_idle_period(rig.journal, requests, started_at, ended_at).build_figures(), *cores]


def read_idle_period(journal: Path, requests: Sequence[Request], started_at: float, ended_at: float) -> IdlePeriod:
    """Count the events and attempts in the journal during an idle period; return them with the API requests."""
    query_arguments = (events.TICK, started_at, ended_at)
    with closing(costs.open_journal(journal)) as database:
        ticks = [Tick(*row) for row in database.execute(TICKS_QUERY, query_arguments)]
        own_events, foreign_updates = database.execute(EVENTS_QUERY, query_arguments).fetchone()
        [attempts] = database.execute(ATTEMPTS_QUERY, query_arguments[1:]).fetchone()
    return IdlePeriod(ticks, requests, own_events, own_events + attempts, foreign_updates)


def _measure_cores(rig: Rig, cpu_before: dict[str, float], duration_seconds: float) -> list[Figure]:
    cpu_now = costs.measure_cpu(rig)
    cpu = {name: cpu_now[name] - cpu_before.get(name, 0) for name in cpu_now}
    return [
        ("cores of the API server", round(cpu["kube-apiserver"] / duration_seconds, 3), None),
        ("cores of the functions", round(sum(_iter_function_cpu_seconds(cpu)) / duration_seconds, 3), None),
    ]


def _iter_function_cpu_seconds(cpu: dict[str, float]) -> Iterable[float]:
    return (seconds for name, seconds in cpu.items() if name in (*FUNCTIONS, "functions"))


def _measure_idle_maintenances(rig: Rig) -> list[Figure]:
    """Observe the product with drained maintenances, while all nodes have heartbeats as from kubelets."""
    nodes, started_at = _list_node_names(rig), time.monotonic()
    with _create_drained_maintenances(rig, nodes[:MAINTENANCE_COUNT]):
        duration = time.monotonic() - started_at
        figures = _observe_with_heartbeats(rig, nodes)
    return [
        (f"seconds until {MAINTENANCE_COUNT} are Succeeded, {BATCH_SIZE} at a time", round(duration, 1), None),
        *figures,
    ]


def _observe_with_heartbeats(rig: Rig, nodes: Sequence[str]) -> list[Figure]:
    client = rig.client
    run_concurrently(
        client,
        (
            client.api.patch(build_node_path(name), {"metadata": {"annotations": STATUS_DELAY_ANNOTATIONS}})
            for name in nodes
        ),
    )
    with run_background_writer(rig.kubeconfig, len(nodes) // HEARTBEAT_SECONDS, HEARTBEATS):
        time.sleep(SETTLE_SECONDS)
        return _observe_idle(rig, IDLE_MINUTES * MINUTE_SECONDS)


def _list_node_names(rig: Rig) -> list[str]:
    return [node["metadata"]["name"] for node in rig.client.list("/api/v1/nodes")["items"]]


@contextmanager
def _create_drained_maintenances(rig: Rig, nodes: Sequence[str]) -> Iterator[None]:
    """Create and drain maintenances for these nodes, which have no pods; delete the maintenances after the block."""
    client = rig.client
    bodies = build_maintenances([f"drained-{number}" for number in range(len(nodes))], nodes, "benchmark")
    for start in range(0, len(nodes), BATCH_SIZE):
        batch = bodies[start : start + BATCH_SIZE]
        run_concurrently(client, (client.api.create(MEDIK8S.path, body) for body in batch))
        rig.observer.wait_for_changes("phase", [body["metadata"]["name"] for body in batch], SUCCEEDED)
    yield
    for start in range(0, len(nodes), BATCH_SIZE):
        names = [body["metadata"]["name"] for body in bodies[start : start + BATCH_SIZE]]
        run_concurrently(client, (client.api.request("DELETE", f"{MEDIK8S.path}/{name}") for name in names))
        rig.observer.wait_for_changes("maintenance gone", names)


def _measure_large_admission(rig: Rig) -> list[Figure]:
    """Measure the webhook's latency for nodes with and without a maintenance, while 500 maintenances exist."""
    nodes = _list_node_names(rig)
    with _create_drained_maintenances(rig, nodes[:MAINTENANCE_COUNT]):
        return latency.measure_latency(
            rig, LARGE_ADMISSION_LOAD.name, nodes[MAINTENANCE_COUNT:], nodes[:MAINTENANCE_COUNT]
        )


class _RecreatedPods:
    """Measures a drain with five pods that a Deployment recreates on the node, because they tolerate every taint.

    The node has ten other pods. At the end, the tolerations are removed.
    """

    def __init__(self, rig: Rig) -> None:
        self._rig, self._client, self._observer = rig, rig.client, rig.observer
        self._workload = Workload(
            rig.client, DrainCase(RECREATED_PODS.name, pods=OTHER_POD_COUNT), ["node-1"], "node-2"
        )

    def measure(self) -> list[Figure]:
        """Return the figures of all phases: an idle minute, three minutes of the drain, and the drain's end."""
        self._observer.reset()
        other_pods = {pod["metadata"]["name"] for pod in self._workload.deploy()}
        self._workload.deploy_tolerant_pods(TOLERANT_DEPLOYMENT, "node-1", TOLERANT_POD_COUNT)
        time.sleep(costs.JOURNAL_DELAY_SECONDS)
        _, idle_cores = self._observe_until(time.monotonic() + MINUTE_SECONDS)
        [body] = build_maintenances([MAINTENANCE_NAME], ["node-1"], "benchmark")
        started_at = time.monotonic()
        self._client.create(MEDIK8S.path, body)
        minutes = [self._observe_until(started_at + number * MINUTE_SECONDS) for number in (1, 2, 3)]
        gone_after = self._observer.wait_until_pods_gone(other_pods) - started_at
        figures: list[Figure] = [
            (f"seconds until the {OTHER_POD_COUNT} other pods are gone", round(gone_after, 2), None)
        ]
        for number, ((evictions, _), limit) in enumerate(zip(minutes, MAX_EVICTIONS, strict=True), 1):
            figures.append((f"evictions of recreated pods, minute {number}", evictions, limit))
        figures.append(
            ("cores of API server and functions above idle, minute 3", round(minutes[2][1] - idle_cores, 3), MAX_CORES)
        )
        return [
            *figures,
            ("recreated pods without a reason in the status", self._count_unreported_pods(), 0),
            self._finish_drain(),
        ]

    def _observe_until(self, ended_at: float) -> tuple[int, float]:
        """Sleep until `ended_at`; return the number of evictions of tolerant pods, and the CPU cores in use."""
        log = AuditLog(costs.get_audit_log(self._rig))
        cpu_before, started_at = costs.measure_cpu(self._rig), time.monotonic()
        time.sleep(max(0.0, ended_at - started_at))
        cores = sum(value for _, value, _ in _measure_cores(self._rig, cpu_before, time.monotonic() - started_at))
        evictions = [request for request in log.read() if request.operation == "create pods/eviction"]
        return sum(request.name.startswith(TOLERANT_DEPLOYMENT) for request in evictions), cores

    def _count_unreported_pods(self) -> int:
        """Return the number of tolerant pods that the status does not report as blocked: the minimum of several reads.

        A pod is not blocked just after its eviction, while it is recreated, so a single read may return more pods.
        """
        lowest = TOLERANT_POD_COUNT
        for _ in range(STATUS_READS):
            status = self._client.get(f"{MEDIK8S.path}/{MAINTENANCE_NAME}")["status"]
            reported = [entry for entry in status.get("blockedPods") or [] if entry["reason"] == "Returns"]
            lowest = min(lowest, TOLERANT_POD_COUNT - len(reported))
            time.sleep(STATUS_READ_SECONDS)
        return lowest

    def _finish_drain(self) -> Figure:
        """Remove the tolerations, and restore the node; return the time from the removal to the end of the drain."""
        started_at = time.monotonic()
        self._workload.remove_tolerations(TOLERANT_DEPLOYMENT, "node-2")
        duration = self._observer.wait_for_change("phase", MAINTENANCE_NAME, SUCCEEDED) - started_at
        self._client.run(self._client.api.request("DELETE", f"{MEDIK8S.path}/{MAINTENANCE_NAME}"))
        self._observer.wait_for_change("maintenance gone", MAINTENANCE_NAME, "")
        self._workload.delete()
        return ("seconds from the removal of the tolerations to Succeeded", round(duration, 1), None)


MEASUREMENTS: dict[Observation, Callable[[Rig], list[Figure]]] = {
    IDLE: _measure_idle,
    IDLE_MAINTENANCES: _measure_idle_maintenances,
    ADMISSION_LOAD: lambda rig: latency.measure_latency(rig, ADMISSION_LOAD.name, _list_node_names(rig), ()),
    LARGE_ADMISSION_LOAD: _measure_large_admission,
    CONSOLE_VIEWERS: lambda rig: console_viewers.measure_viewer_load(rig, _list_node_names(rig)),
    RECREATED_PODS: lambda rig: _RecreatedPods(rig).measure(),
    UPGRADE: lambda rig: upgrade_requests.measure_upgrade(rig, _list_node_names(rig)),
    LARGE_UPGRADE: lambda rig: upgrade_requests.measure_upgrade(rig, _list_node_names(rig)),
}
