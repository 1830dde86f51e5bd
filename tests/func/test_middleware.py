"""Tests for the func entry point, served by func's middleware from PyPI, as func's scaffolding starts it."""

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
from eventing.http_binding import decode_event, encode_binary, encode_structured
from function import WORKERS
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, reserve_port, wait_until_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV
from tests.functions.event_builders import build_added_event

Mode = Callable[[BaseCloudEvent], HTTPMessage]
ROOT = Path(__file__).parents[2]
SCAFFOLDING_SOURCE = "from func_python.http import serve\nfrom function import new as handler\nserve(handler)\n"
"""The code that func generates around a function before it builds the image."""
BOTH_CONTENT_MODES = pytest.mark.parametrize("mode", [encode_binary, encode_structured], ids=["binary", "structured"])
"""The two content modes of a CloudEvent over HTTP."""


def build_server(cluster: LocalCluster, log: Path, port: int, **extra_environment: str) -> Server:
    environment = {
        **NO_PROXY_LOCAL_ENV,
        "KUBECONFIG": str(cluster.ensure_kubeconfig(access.make_username("functions"))),
        "LISTEN_ADDRESS": f"{LOOPBACK}:{port}",
        **extra_environment,
    }
    return Server("func", [sys.executable, "-c", SCAFFOLDING_SOURCE], log, environment, ROOT)


@pytest.fixture(scope="module")
def func_url(installed_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a server with all functions, served by func's middleware."""
    yield from serve_functions(installed_cluster, tmp_path_factory.mktemp("func"))


@pytest.fixture(scope="module")
def cordon_url(installed_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a server with only the function `cordon`, served by func's middleware."""
    yield from serve_functions(installed_cluster, tmp_path_factory.mktemp("func"), FUNCTION="cordon")


def serve_functions(cluster: LocalCluster, directory: Path, **extra_environment: str) -> Iterator[str]:
    port = reserve_port()
    server = build_server(cluster, directory / "func.log", port, **extra_environment)
    server.start()
    try:
        url = f"http://{LOOPBACK}:{port}"
        wait_until_ready("func's middleware", lambda: is_ready(url), [server], timeout=30)
        yield url
    finally:
        server.stop()


def is_ready(url: str) -> bool:
    try:
        return requests.get(f"{url}/health/readiness", timeout=5).ok
    except requests.ConnectionError:
        return False


@pytest.fixture
def unknown_node_maintenance(installed_cluster: LocalCluster) -> Iterator[dict[str, Any]]:
    """Yield a NodeMaintenance of an unknown node, which exercises a complete function and changes no node."""
    body = {
        "apiVersion": MEDIK8S.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": "behind-func"},
        "spec": {"nodeName": "no-such-node", "reason": "x" * 300_000},
    }
    yield installed_cluster.get_client().create(MEDIK8S.path, body)
    installed_cluster.kubectl("delete", f"nodemaintenances.{MEDIK8S.api_version.partition('/')[0]}", "behind-func")


@BOTH_CONTENT_MODES
def test_middleware_passes_on_event_and_reply(
    func_url: str, unknown_node_maintenance: dict[str, Any], mode: Mode
) -> None:
    """X-1: the middleware accepts both content modes, responds in binary mode, and passes a body of 300 KB."""
    message = mode(build_added_event(unknown_node_maintenance))

    response = requests.post(f"{func_url}/begin", message.body, headers=message.headers, timeout=30)

    event = decode_event(response.headers, response.content)
    assert response.status_code == 200
    assert event.get_type() == events.MAINTENANCE_STEP_FAILED
    assert event.get_data()["error"] == 'nodes "no-such-node" not found'  # type: ignore[call-overload,index]


@BOTH_CONTENT_MODES
def test_single_function_responds_at_root_path(cordon_url: str, mode: Mode) -> None:
    """Check that a single function also responds at the root path, which the Triggers of func use."""
    reference = events.ObjectReference(MEDIK8S.api_version, "no-such-maintenance", "0")
    message = mode(events.build_event(events.MAINTENANCE_BEGUN, "begin", reference, "no-such-node"))

    responses = [
        requests.post(f"{cordon_url}{path}", message.body, headers=message.headers, timeout=30).status_code
        for path in ("/", "/cordon", "/begin")
    ]

    assert responses == [204, 204, 404]


@pytest.mark.parametrize("path", ["/health/liveness", "/health/readiness", "/metrics"])
def test_health_and_metrics_endpoints_exist(func_url: str, path: str) -> None:
    """Check that the health endpoints, which func's probes call, and the metrics endpoint exist."""
    assert requests.get(f"{func_url}{path}", timeout=30).status_code == 200


def test_invalid_event_is_rejected_in_one_line(func_url: str) -> None:
    """X-6: the middleware passes on the function's error response, which is a single line."""
    response = requests.post(f"{func_url}/begin", "{}", headers={"content-type": "text/plain"}, timeout=30)

    assert response.status_code == 415
    assert len(response.text.splitlines()) == 1


def test_server_responds_to_more_requests_than_it_has_threads(
    func_url: str, unknown_node_maintenance: dict[str, Any]
) -> None:
    """Check that the server answers twice as many concurrent requests as it has threads, as a broker may send them."""
    message = encode_binary(build_added_event(unknown_node_maintenance))

    def post_event(_number: int) -> int:
        return requests.post(f"{func_url}/begin", message.body, headers=message.headers, timeout=30).status_code

    with ThreadPoolExecutor(WORKERS) as pool:
        assert set(pool.map(post_event, range(2 * WORKERS))) == {200}
