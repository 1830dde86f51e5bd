"""Tests of two concurrent PodSources, as during a rollout or with two replicas: neither disturbs the other."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path

import pytest

from bench.costs import tree
from eventing import events
from eventing.journal.store import Journal, Query
from localcluster import access
from localcluster.processes import Server, await_ready, free_port
from localcluster.readiness import answers
from localcluster.servers import DIRECT, LOOPBACK, ROOT
from tests.chain.environment import Scene
from tests.proofs import proves

pytestmark = pytest.mark.slow

PODS, ALLOWED = 12, 4


@pytest.fixture
def second(scene: Scene, tmp_path: Path) -> Iterator[Server]:
    """Yield a ready PodSource that runs next to the delivery's own."""
    port = free_port()
    identity = scene.cluster.kubeconfig_for(access.service_account("podsource"))
    own = {"KUBECONFIG": str(identity), "PORT": str(port), "SIGNING_KEY": access.signing_key(scene.cluster.directory)}
    environment = {**DIRECT, **own, "K_SINK": scene.product.broker_url}
    server = Server("podsource", [sys.executable, "-m", "eventing.podsource"], tmp_path / "log", environment, ROOT)
    server.start()
    await_ready(server.name, partial(answers, f"http://{LOOPBACK}:{port}/readyz"), [server])
    yield server
    server.kill()


@contextmanager
def silent(scene: Scene) -> Iterator[None]:
    """Suspend the delivery's own PodSource while the block runs, as on a node that hangs."""
    found = [pid for pid in tree(scene.product.delivery.pid) if b"eventing.podsource" in _words(pid)]
    assert len(found) == 1
    os.kill(found[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(found[0], signal.SIGCONT)


def _words(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def drained(scene: Scene) -> Counter[str]:
    """Drain pods behind a budget; return the number of events of each type."""
    node, other, namespace = scene.node(), scene.node(), scene.namespace()
    scene.deployment(namespace, node, PODS, ready="200ms")
    scene.allow(namespace, other)
    scene.budget(namespace, {"app": "web"}, allowed=ALLOWED, maxUnavailable=ALLOWED)
    left = [pod for pod in scene.pods_on(node) if pod["metadata"]["namespace"] == namespace]
    path = scene.maintain(node)
    scene.reaches(path)
    granted = [entry for entry in scene.evictions(left) if entry["responseStatus"]["code"] < 300]
    assert len(granted) == PODS
    scene.delete(path)
    scene.gone(path)
    with closing(Journal(scene.journal)) as book:
        return Counter(entry.event.get_type() for entry in book.select(Query(node=node)))


@proves("X-2")
def test_two_tell_the_same_and_nothing_is_done_twice(scene: Scene, second: Server) -> None:
    """X-2: with two PodSources each pod is evicted once, and at most twice as many hints are sent as with one."""
    one = 10 + 3 * PODS

    told = drained(scene)

    print(f"two PodSources, {PODS} pods behind a budget of {ALLOWED}: {dict(told)}")
    assert told[events.PODS_GONE] + told[events.BUDGET_OPENED] <= 2 * one
    assert sum(told.values()) <= 3 * one
    assert second.alive


@proves("X-3")
def test_one_takes_over(scene: Scene, second: Server) -> None:
    """X-3: while one PodSource is suspended, the other sends the hints that the drain needs before a tick."""
    with silent(scene):
        told = drained(scene)

    assert told[events.PODS_GONE] >= 1
    assert told[events.BUDGET_OPENED] >= 1
