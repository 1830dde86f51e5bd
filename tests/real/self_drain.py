"""Drains the node on which the product runs, and observes evictions, journal entries and the console's availability."""

from __future__ import annotations

import itertools
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import psycopg

from eventing import events
from kube.maintenance import objects as m
from kube.paths import Object
from localcluster.access import NAMESPACE
from localcluster.processes import Server
from tests.real import maintenances
from tests.real.environment import Real
from tests.workload import Audit, audit

ASKING = """
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
class Round:
    """The result of draining and restoring a node.

    Attributes:
        seconds: The seconds from the maintenance's creation to Succeeded.
        evicted: The names of the evicted pods, one entry for each granted eviction.
        still: The pods to evict of which containerd still ran a container.
        silent: The longest time in seconds without a response of the console.
    """

    seconds: float
    evicted: Sequence[str]
    still: set[str]
    silent: float


def drain(real: Real, name: str, node: str, limit: float, meanwhile: Callable[[], None] = lambda: None) -> Round:
    """Drain and restore a node; call `meanwhile` once the drain is in progress."""
    leaving = _evictable(real, node)
    asked = _asking(real, "console", node)
    seen = audit(real.cluster)
    began, wall = time.monotonic(), time.time()
    try:
        maintenances.begin(real, name, node)
        maintenances.until_maintenance(real, name, under_way, limit)
        meanwhile()
        maintenances.until_succeeded(real, name, limit)
        seconds = time.monotonic() - began
        still = maintenances.running(real, node, *leaving)
        _until_answered_after(asked, time.time())
    finally:
        asked.kill()
    maintenances.end(real, name, node)
    return Round(seconds, _evicted(seen), still, _longest_silence(asked.log, wall))


def under_way(maintenance: Object) -> bool:
    """Return whether the first evictions were sent."""
    return bool(maintenance.get("status", {}).get("pendingPods")) or m.phase(maintenance) == "Succeeded"


def journalled(url: str) -> set[str]:
    """Return the names of the pods whose eviction is in the journal, in an event or in a function's reply.

    `node.drained` has the last evictions: those that the API server granted after their pass had ended.
    """
    with psycopg.connect(url) as database:
        bodies = [body for (body,) in database.execute("SELECT event FROM bodies")]
        replies = [reply for (text,) in database.execute("SELECT replies FROM attempts") for reply in json.loads(text)]
    found = [*map(json.loads, bodies), *replies]
    told = (item["data"] for item in found if item["type"] in (events.PODS_EVICTED, events.NODE_DRAINED))
    batches = [data.get("evicted", []) for data in told]
    return {pod["name"] for batch in batches for pod in batch}


def types(url: str, name: str) -> set[str]:
    """Return the types of the recorded events about maintenances with this name."""
    with psycopg.connect(url) as database:
        return {kind for (kind,) in database.execute("SELECT type FROM events WHERE name = %s", (name,))}


def node_of_most(real: Real) -> str:
    """Return the name of the node with the most pods of the product."""
    pods = real.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    ((name, _),) = Counter(pod["spec"]["nodeName"] for pod in pods).most_common(1)
    return str(name)


def _evictable(real: Real, node: str) -> list[Object]:
    pods = real.door.list("/api/v1/pods", fields=f"spec.nodeName={node}")["items"]
    kinds = {"DaemonSet", "Node"}
    return [pod for pod in pods if not kinds & {owner["kind"] for owner in pod["metadata"].get("ownerReferences", [])}]


def _evicted(seen: Audit) -> list[str]:
    return [item["objectRef"]["name"] for item in seen.evictions() if item["responseStatus"]["code"] == 201]


def _asking(real: Real, service: str, drained: str) -> Server:
    """Poll a Service's readiness endpoint from the other node through kube-proxy; log a line per response."""
    path = f"/api/v1/namespaces/{NAMESPACE}/services/{service}"
    address = real.door.get(path)["spec"]["clusterIP"]
    other = next(node for node in real.nodes.nodes if node.name != drained)
    url = f"http://{address}/health/readiness"
    server = other.room.server(f"asking-{time.time()}", sys.executable, "-c", ASKING, url)
    server.start()
    return server


def _answers(log: Path) -> list[float]:
    return [float(line) for line in log.read_text().splitlines() if line.replace(".", "", 1).isdigit()]


def _until_answered_after(asked: Server, moment: float) -> None:
    limit = time.monotonic() + 60
    while not any(answer > moment for answer in _answers(asked.log)):
        assert time.monotonic() < limit, "nobody answers for the console"
        time.sleep(0.2)  # a growing file has no notification


def _longest_silence(log: Path, began: float) -> float:
    answers = [began, *(answer for answer in _answers(log) if answer > began)]
    return max(after - before for before, after in itertools.pairwise(answers))
