"""Tests with processes of the product that are stopped or killed during maintenances."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from kube.paths import Object
from localcluster.product import Product
from tests.chain.environment import Scene, finished
from tests.proofs import proves

pytestmark = pytest.mark.slow

RESYNC = 15.0
"""Seconds between two ticks of the PingSource."""
SLACK = 5.0
"""Maximum seconds for the maintenance itself."""
MANY = 50
UNHEARD = 504
"""Status code in the audit log if the client was killed before the response; the pod may have been evicted."""


@pytest.fixture(autouse=True)
def _whole_again(scene: Scene) -> Iterator[None]:
    """Start the stopped processes of the product after each test."""
    yield
    for server, start in (
        (scene.product.functions, scene.product.start_functions),
        (scene.product.delivery, scene.product.start_delivery),
    ):
        if not server.alive:
            start()


@proves("X-3")
def test_a_maintenance_created_while_all_sources_are_down_is_found(scene: Scene) -> None:
    """X-3: a maintenance that was created while delivery and sources were down succeeds within one resync period."""
    node = scene.node()
    scene.pods(node, 3)
    scene.product.kill_delivery()
    path = scene.maintain(node)

    scene.product.start_delivery()
    started = time.monotonic()
    scene.reaches(path, seconds=RESYNC + SLACK)

    assert time.monotonic() - started < RESYNC + SLACK
    scene.delete(path)
    scene.gone(path)


@proves("X-5", "NMO-15")
def test_a_maintenance_deleted_while_all_is_down_waits_for_us(scene: Scene) -> None:
    """X-5, NMO-15: a maintenance that was deleted while the product was down remains until its node is restored."""
    node = scene.node()
    path = scene.maintain(node)
    scene.reaches(path)
    scene.product.kill_delivery()
    scene.product.kill_functions()

    scene.delete(path)
    assert scene.admin.get(path)["metadata"]["deletionTimestamp"]
    assert scene.spec(node)["unschedulable"] is True

    scene.product.start_functions()
    scene.product.start_delivery()
    scene.by_ticks(lambda: scene.gone(path, seconds=1))
    assert not scene.spec(node).get("unschedulable")
    assert "taints" not in scene.spec(node)


@proves("X-2")
@pytest.mark.parametrize(
    ("kill", "start"),
    [
        pytest.param(Product.kill_functions, Product.start_functions, id="functions"),
        pytest.param(Product.kill_delivery, Product.start_delivery, id="delivery"),
    ],
)
def test_a_kill_in_the_middle_of_a_drain_costs_time_only(
    scene: Scene, kill: Callable[[Product], None], start: Callable[[Product], None]
) -> None:
    """X-2, X-3, design rule 4: after a SIGKILL during a drain, the drain completes and evicts each pod once."""
    node = scene.node()
    pods = scene.pods(node, MANY, delete="2s")
    path = scene.maintain(node)
    wait_for_terminating(scene, pods, 10)

    kill(scene.product)
    assert scene.admin.get(path)["status"]["phase"] == "Running"
    start(scene.product)
    status = scene.reaches(path, finished, seconds=45)["status"]

    answers = [(_uid(entry), entry["responseStatus"]["code"]) for entry in scene.evictions(pods)]
    granted = Counter(uid for uid, code in answers if code < 300)
    unheard = {uid for uid, code in answers if code == UNHEARD}
    assert set(granted.values()) == {1}
    assert granted.keys() | unheard == {pod["metadata"]["uid"] for pod in pods}
    assert scene.pods_on(node) == []
    assert (status["drainProgress"], status["evictionPods"]) == (100, MANY)
    scene.delete(path)
    scene.gone(path)


def _uid(eviction: Object) -> str:
    """Return the uid of the pod that the eviction in the audit log names."""
    return str(eviction["requestObject"]["deleteOptions"]["preconditions"]["uid"])


def wait_for_terminating(scene: Scene, pods: list[Object], count: int) -> None:
    """Wait until `count` of the pods are terminating."""
    namespace = pods[0]["metadata"]["namespace"]
    going: set[str] = set()
    for change in scene.cluster.watch(f"/api/v1/namespaces/{namespace}/pods", seconds=30):
        if change.object["metadata"].get("deletionTimestamp"):
            going.add(change.object["metadata"]["uid"])
        if len(going) >= count:
            return
