"""Drains a node that runs the product, and observes evictions, journal entries and the console's availability."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import psycopg

from eventing import events
from kube.maintenance import objects as m
from kube.paths import Object
from kube.times import parse_time
from localcluster.access import NAMESPACE
from localcluster.audit_log import AuditLog
from localcluster.processes import Server
from tests.real import maintenances
from tests.real.environment import RealNodesEnvironment

POLLING_SCRIPT = """
import sys, time, urllib.request
while True:
    try:
        urllib.request.urlopen(sys.argv[1], timeout=1).read()
        print(time.time(), flush=True)
    except OSError:
        pass
    time.sleep(0.2)
"""


@dataclass(frozen=True)
class DrainResult:
    """The result of draining and restoring a node.

    Attributes:
        seconds: The seconds from the maintenance's creation to Succeeded.
        evicted: The names of the evicted pods; a pod is listed once per granted eviction.
        still_running: The names of the evictable pods for which containerd still ran a container.
        max_silent_seconds: The longest time in seconds without a response from the console.
        evict_evicted_at: The time of the last eviction of an `evict` pod, or None if no such pod was evicted.
    """

    seconds: float
    evicted: Sequence[str]
    still_running: set[str]
    max_silent_seconds: float
    evict_evicted_at: datetime | None


def drain_and_observe(
    environment: RealNodesEnvironment,
    name: str,
    node: str,
    timeout: float,
    on_progress: Callable[[], None] = lambda: None,
) -> DrainResult:
    """Drain and restore a node; call `on_progress` while the drain is in progress."""
    evictable = _list_evictable_pods(environment, node)
    poller = _start_readiness_poller(environment, "console", node)
    audit = AuditLog(environment.cluster.audit_log)
    started, started_at = time.monotonic(), time.time()
    try:
        maintenances.create_maintenance(environment, name, node)
        maintenances.wait_for_maintenance(environment, name, is_in_progress, timeout)
        on_progress()
        maintenances.wait_until_succeeded(environment, name, timeout)
        seconds = time.monotonic() - started
        still_running = maintenances.list_running_pods(environment, node, *evictable)
        _wait_for_response_after(poller, time.time())
    finally:
        poller.kill()
    maintenances.end_maintenance(environment, name, node)
    evictions = [entry for entry in audit.list_evictions() if entry["responseStatus"]["code"] == 201]
    own_evictions = [entry for entry in evictions if entry["objectRef"]["name"].startswith("evict-")]
    return DrainResult(
        seconds,
        [entry["objectRef"]["name"] for entry in evictions],
        still_running,
        _measure_longest_console_outage(poller.log, started_at),
        parse_time(own_evictions[-1]["stageTimestamp"]) if own_evictions else None,
    )


def is_in_progress(maintenance: Object) -> bool:
    """Return whether the drain has requested its first evictions."""
    return bool(maintenance.get("status", {}).get("pendingPods")) or m.get_phase(maintenance) == "Succeeded"


def read_evicted_pods_from_journal(journal_url: str) -> set[str]:
    """Return the names of the pods whose evictions are recorded in the journal, in an event or a function's reply.

    `node.drained` contains the last evictions, which the API server granted after their pass had ended.
    """
    with psycopg.connect(journal_url) as database:
        event_texts = [body for (body,) in database.execute("SELECT event FROM bodies")]
        replies = [reply for (text,) in database.execute("SELECT replies FROM attempts") for reply in json.loads(text)]
    recorded_events = [*map(json.loads, event_texts), *replies]
    evicting_events = [
        event for event in recorded_events if event["type"] in (events.PODS_EVICTED, events.NODE_DRAINED)
    ]
    incomplete_events = [event for event in evicting_events if not isinstance(event["data"], dict)]
    assert incomplete_events == []
    batches = [event["data"].get("evicted", []) for event in evicting_events]
    return {pod["name"] for batch in batches for pod in batch}


def read_event_types(journal_url: str, name: str) -> set[str]:
    """Return the types of the recorded events about maintenances with this name."""
    with psycopg.connect(journal_url) as database:
        return {event_type for (event_type,) in database.execute("SELECT type FROM events WHERE name = %s", (name,))}


def find_node_with_most_pods(environment: RealNodesEnvironment) -> str:
    """Return the name of the node with the most pods of the product."""
    pods = environment.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    ((name, _),) = Counter(pod["spec"]["nodeName"] for pod in pods).most_common(1)
    return str(name)


def _list_evictable_pods(environment: RealNodesEnvironment, node: str) -> list[Object]:
    pods = environment.client.list("/api/v1/pods", field_selector=f"spec.nodeName={node}")["items"]
    kinds = {"DaemonSet", "Node"}
    return [pod for pod in pods if not kinds & {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}]


def _start_readiness_poller(environment: RealNodesEnvironment, service: str, drained_node: str) -> Server:
    """Start a poller on another node that requests a Service's readiness endpoint and logs one line per response."""
    path = f"/api/v1/namespaces/{NAMESPACE}/services/{service}"
    address = environment.client.get(path)["spec"]["clusterIP"]
    other_node = next(node for node in environment.nodes.nodes if node.name != drained_node)
    url = f"http://{address}/health/readiness"
    server = other_node.sandbox.build_server(f"polling-{time.time()}", sys.executable, "-c", POLLING_SCRIPT, url)
    server.start()
    return server


def _read_response_times(log: Path) -> list[float]:
    return [float(line) for line in log.read_text().splitlines() if line.replace(".", "", 1).isdigit()]


def _wait_for_response_after(poller: Server, since: float) -> None:
    deadline = time.monotonic() + 60
    while not any(response_time > since for response_time in _read_response_times(poller.log)):
        assert time.monotonic() < deadline, "the console does not respond"
        time.sleep(0.2)  # No notification reports that the log file has grown.


def _measure_longest_console_outage(log: Path, start: float) -> float:
    response_times = [start, *(response_time for response_time in _read_response_times(log) if response_time > start)]
    return max(after - before for before, after in itertools.pairwise(response_times))
