"""The func entry point, served by func's own middleware from PyPI as its scaffolding starts it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage

from eventing import events
from eventing.http_binding import binary, received, structured
from function import WORKERS
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, await_ready, free_port
from localcluster.servers import DIRECT, LOOPBACK
from tests.functions.event_builders import added

Mode = Callable[[BaseCloudEvent], HTTPMessage]
ROOT = Path(__file__).parents[2]
SCAFFOLDING = "from func_python.http import serve\nfrom function import new as handler\nserve(handler)\n"
"""The code that func generates around a function before it builds the image."""
BOTH = pytest.mark.parametrize("mode", [binary, structured], ids=["binary", "structured"])
"""The two content modes of a CloudEvent over HTTP."""


def scaffolded(cluster: LocalCluster, log: Path, port: int, **more: str) -> Server:
    environment = {
        **DIRECT,
        "KUBECONFIG": str(cluster.kubeconfig_for(access.service_account("functions"))),
        "LISTEN_ADDRESS": f"{LOOPBACK}:{port}",
        **more,
    }
    return Server("func", [sys.executable, "-c", SCAFFOLDING], log, environment, ROOT)


@pytest.fixture(scope="module")
def door(installed: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of all functions, served by func's middleware."""
    yield from serving(installed, tmp_path_factory.mktemp("func"))


@pytest.fixture(scope="module")
def cordon(installed: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a single function, deployed as a separate func."""
    yield from serving(installed, tmp_path_factory.mktemp("func"), FUNCTION="cordon")


def serving(cluster: LocalCluster, folder: Path, **more: str) -> Iterator[str]:
    port = free_port()
    server = scaffolded(cluster, folder / "func.log", port, **more)
    server.start()
    try:
        url = f"http://{LOOPBACK}:{port}"
        await_ready("func's middleware", lambda: answers(url), [server], seconds=30)
        yield url
    finally:
        server.stop()


def answers(url: str) -> bool:
    try:
        return requests.get(f"{url}/health/readiness", timeout=5).ok
    except requests.ConnectionError:
        return False


@pytest.fixture
def unknown(installed: LocalCluster) -> Iterator[dict[str, Any]]:
    """Yield a NodeMaintenance of an unknown node, which exercises a complete function and changes no node."""
    body = {
        "apiVersion": MEDIK8S.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": "behind-func"},
        "spec": {"nodeName": "no-such-node", "reason": "x" * 300_000},
    }
    yield installed.door().create(MEDIK8S.path, body)
    installed.kubectl("delete", f"nodemaintenances.{MEDIK8S.api_version.partition('/')[0]}", "behind-func")


@BOTH
def test_an_event_goes_through_the_middleware_and_its_answer_comes_back(
    door: str, unknown: dict[str, Any], mode: Mode
) -> None:
    """X-1: the middleware accepts both content modes, responds in binary mode, and passes a body of 300 KB."""
    message = mode(added(unknown))

    answer = requests.post(f"{door}/begin", message.body, headers=message.headers, timeout=30)

    event = received(answer.headers, answer.content)
    assert answer.status_code == 200
    assert event.get_type() == events.MAINTENANCE_FAILED
    assert event.get_data()["error"] == 'nodes "no-such-node" not found'  # type: ignore[call-overload,index]


@BOTH
def test_one_function_alone_answers_at_the_root(cordon: str, mode: Mode) -> None:
    """Check that a single function also responds at the root path, which the Triggers of func use."""
    reference = events.Reference(MEDIK8S.api_version, "no-such-maintenance", "0")
    message = mode(events.event(events.MAINTENANCE_BEGUN, "begin", reference, "no-such-node"))

    answers = [
        requests.post(f"{cordon}{path}", message.body, headers=message.headers, timeout=30).status_code
        for path in ("/", "/cordon", "/begin")
    ]

    assert answers == [204, 204, 404]


@pytest.mark.parametrize("path", ["/health/liveness", "/health/readiness", "/metrics"])
def test_the_pages_beside_the_functions_are_there(door: str, path: str) -> None:
    """Check that the health endpoints, which func's probes call, and the metrics endpoint exist."""
    assert requests.get(f"{door}{path}", timeout=30).status_code == 200


def test_what_is_no_event_is_refused_in_one_line(door: str) -> None:
    """X-6: the middleware passes on the function's error response, which is one line."""
    answer = requests.post(f"{door}/begin", "{}", headers={"content-type": "text/plain"}, timeout=30)

    assert answer.status_code == 415
    assert len(answer.text.splitlines()) == 1


def test_twice_as_many_requests_as_threads_are_all_answered(door: str, unknown: dict[str, Any]) -> None:
    """Check that twice as many requests as threads are queued and answered, as a broker may send them."""
    message = binary(added(unknown))

    def ask(_number: int) -> int:
        return requests.post(f"{door}/begin", message.body, headers=message.headers, timeout=30).status_code

    with ThreadPoolExecutor(WORKERS) as pool:
        assert set(pool.map(ask, range(2 * WORKERS))) == {200}
