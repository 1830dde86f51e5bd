"""Tests for maintenances during which processes of the product are stopped or killed."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kube.paths import Object
from localcluster.product import Product
from tests.chain.environment import EventChainEnvironment, has_succeeded
from tests.proofs import proves

pytestmark = pytest.mark.slow

RESYNC_SECONDS = 15.0
"""Seconds between two ticks of the PingSource."""
SLACK_SECONDS = 5.0
"""Maximum seconds of a maintenance, without the wait for a tick."""
POD_COUNT = 50
LOST_RESPONSE_STATUS = 504
"""Status code in the audit log if the client was killed before the response; the pod may nevertheless be evicted."""


@pytest.fixture(autouse=True)
def _restart_product(environment: EventChainEnvironment) -> Iterator[None]:
    """Restart the product's stopped processes after each test."""
    yield
    for server, start in (
        (environment.product.functions, environment.product.start_functions),
        (environment.product.delivery, environment.product.start_delivery),
    ):
        if not server.is_alive:
            start()


@proves("X-3")
def test_maintenance_created_while_sources_are_down_succeeds(environment: EventChainEnvironment) -> None:
    """X-3: a maintenance created while delivery and event sources are down succeeds within one resync interval."""
    node = environment.create_node()
    environment.create_pods(node, 3)
    environment.product.kill_delivery()
    path = environment.create_maintenance(node)

    environment.product.start_delivery()
    started = time.monotonic()
    environment.wait_for_state(path, timeout=RESYNC_SECONDS + SLACK_SECONDS)

    assert time.monotonic() - started < RESYNC_SECONDS + SLACK_SECONDS
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


@proves("X-5", "NMO-15")
def test_maintenance_deleted_while_product_is_down_remains_until_restored(environment: EventChainEnvironment) -> None:
    """X-5, NMO-15: a maintenance that is deleted while the product is down remains until its node is restored."""
    node = environment.create_node()
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)
    environment.product.kill_delivery()
    environment.product.kill_functions()

    environment.request_deletion(path)
    assert environment.client.get(path)["metadata"]["deletionTimestamp"]
    assert environment.get_node_spec(node)["unschedulable"] is True

    environment.product.start_functions()
    environment.product.start_delivery()
    environment.wait_with_ticks(lambda: environment.wait_for_deletion(path, timeout=1))
    assert not environment.get_node_spec(node).get("unschedulable")
    assert "taints" not in environment.get_node_spec(node)


@proves("X-2")
@pytest.mark.parametrize(
    ("kill", "start"),
    [
        pytest.param(Product.kill_functions, Product.start_functions, id="functions"),
        pytest.param(Product.kill_delivery, Product.start_delivery, id="delivery"),
    ],
)
def test_no_pod_is_evicted_twice_after_crash_during_drain(
    environment: EventChainEnvironment, kill: Callable[[Product], None], start: Callable[[Product], None]
) -> None:
    """X-2, X-3, design rule 4: after a SIGKILL during a drain, the drain completes, and each pod is evicted once."""
    node = environment.create_node()
    pods = environment.create_pods(node, POD_COUNT, delete="2s")
    path = environment.create_maintenance(node)
    wait_for_terminating_pods(environment, pods, 10)

    kill(environment.product)
    assert environment.client.get(path)["status"]["phase"] == "Running"
    start(environment.product)
    status = environment.wait_for_state(path, has_succeeded, timeout=45)["status"]

    codes = [(_get_evicted_uid(entry), entry["responseStatus"]["code"]) for entry in environment.list_evictions(pods)]
    granted_eviction_counts = Counter(uid for uid, code in codes if code < 300)
    uids_without_response = {uid for uid, code in codes if code == LOST_RESPONSE_STATUS}
    assert set(granted_eviction_counts.values()) == {1}
    assert granted_eviction_counts.keys() | uids_without_response == {pod["metadata"]["uid"] for pod in pods}
    assert environment.list_pods_on(node) == []
    assert (status["drainProgress"], status["evictionPods"]) == (100, POD_COUNT)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def _get_evicted_uid(eviction: Object) -> str:
    """Return the uid of the pod in an audit log entry for an eviction."""
    return str(eviction["requestObject"]["deleteOptions"]["preconditions"]["uid"])


def wait_for_terminating_pods(environment: EventChainEnvironment, pods: list[Object], count: int) -> None:
    """Wait until `count` of the pods are terminating."""
    namespace = pods[0]["metadata"]["namespace"]
    terminating_uids: set[str] = set()
    for change in environment.cluster.watch(f"/api/v1/namespaces/{namespace}/pods", timeout=30):
        if change.object["metadata"].get("deletionTimestamp"):
            terminating_uids.add(change.object["metadata"]["uid"])
        if len(terminating_uids) >= count:
            return
