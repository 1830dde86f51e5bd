"""Tests for two concurrent PodSources, as during a rollout or with two replicas."""

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

from bench.costs import list_process_tree
from eventing import events
from eventing.journal.store import Journal, Query
from localcluster import access
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.readiness import is_responding
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT
from tests.chain.environment import EventChainEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.slow

POD_COUNT, DISRUPTIONS_ALLOWED = 12, 4


@pytest.fixture
def second_podsource(environment: EventChainEnvironment, tmp_path: Path) -> Iterator[Server]:
    """Yield a ready PodSource that runs in addition to the one that the local delivery has started."""
    port = reserve_port()
    identity = environment.cluster.ensure_kubeconfig(access.make_username("podsource"))
    environment_variables = {
        "KUBECONFIG": str(identity),
        "PORT": str(port),
        "SIGNING_KEY": access.ensure_event_signing_key(environment.cluster.directory),
    }
    variables = {**NO_PROXY_LOCAL_ENV, **environment_variables, "K_SINK": environment.product.broker_url}
    server = Server("podsource", [sys.executable, "-m", "eventing.podsource"], tmp_path / "log", variables, ROOT)
    server.start()
    wait_until_ready(server.name, partial(is_responding, f"http://{LOOPBACK}:{port}/readyz"), [server])
    yield server
    server.kill()


@contextmanager
def suspend_podsource(environment: EventChainEnvironment) -> Iterator[None]:
    """Suspend the local delivery's PodSource while the `with` block runs, as if its node were hanging."""
    processes = [
        pid
        for pid in list_process_tree(environment.product.delivery.pid)
        if b"eventing.podsource" in _read_command_line(pid)
    ]
    assert len(processes) == 1
    os.kill(processes[0], signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(processes[0], signal.SIGCONT)


def _read_command_line(pid: int) -> bytes:
    return Path(f"/proc/{pid}/cmdline").read_bytes()


def drain_and_count_events(environment: EventChainEnvironment) -> Counter[str]:
    """Drain a node whose pods have a PodDisruptionBudget; return the number of emitted events per type."""
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, POD_COUNT, ready="200ms")
    environment.allow_deployment_on_node(namespace, other_node)
    environment.create_budget(
        namespace, {"app": "web"}, disruptions_allowed=DISRUPTIONS_ALLOWED, maxUnavailable=DISRUPTIONS_ALLOWED
    )
    pods = [pod for pod in environment.list_pods_on(node) if pod["metadata"]["namespace"] == namespace]
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)
    successful_evictions = [
        entry for entry in environment.list_evictions(pods) if entry["responseStatus"]["code"] < 300
    ]
    assert len(successful_evictions) == POD_COUNT
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    with closing(Journal(environment.journal)) as journal:
        return Counter(entry.event.get_type() for entry in journal.select(Query(node=node)))


@proves("X-2")
def test_no_pod_is_evicted_twice_with_two_podsources(
    environment: EventChainEnvironment, second_podsource: Server
) -> None:
    """X-2: two PodSources evict each pod once, and send at most twice as many hint events as one."""
    max_single_source_events = 10 + 3 * POD_COUNT

    event_counts = drain_and_count_events(environment)

    print(f"two PodSources, {POD_COUNT} pods, {DISRUPTIONS_ALLOWED} disruptions allowed: {dict(event_counts)}")
    assert event_counts[events.PODS_GONE] + event_counts[events.BUDGET_OPENED] <= 2 * max_single_source_events
    assert sum(event_counts.values()) <= 3 * max_single_source_events
    assert second_podsource.is_alive


@proves("X-3")
def test_second_podsource_sends_hints_while_first_podsource_is_suspended(
    environment: EventChainEnvironment, second_podsource: Server
) -> None:
    """X-3: while one PodSource is suspended, the other one sends the hint events that the drain needs."""
    with suspend_podsource(environment):
        event_counts = drain_and_count_events(environment)

    assert event_counts[events.PODS_GONE] >= 1
    assert event_counts[events.BUDGET_OPENED] >= 1
