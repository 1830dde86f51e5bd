"""Tests for the entry point for func, served by func's own scaffolding and middleware."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from functools import partial
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.bindings.http import HTTPMessage

from eventing import events
from eventing.http_binding import decode_event, encode_binary, encode_structured
from eventing.journal.entries import parse_attempts
from eventing.logs import parse_log_line
from function import WORKERS
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import Receiver
from localcluster.processes import Server, is_listening, reserve_port, wait_until_ready
from localcluster.programs import func_module
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV
from tests.functions.event_builders import build_added_event
from tests.relay import Relay

Mode = Callable[[BaseCloudEvent], HTTPMessage]
ROOT = Path(__file__).parents[2]
MAX_SHUTDOWN_SECONDS = 20
"""Maximum seconds of a shutdown; the middleware itself waits 3 s for requests in flight."""
BOTH_CONTENT_MODES = pytest.mark.parametrize("mode", [encode_binary, encode_structured], ids=["binary", "structured"])
"""The two content modes of a CloudEvent over HTTP."""


def build_server(cluster: LocalCluster, log: Path, port: int, **extra_environment: str) -> Server:
    """Build the process that runs func's generated `main.py`, which imports `function` from this work tree."""
    environment = {
        **NO_PROXY_LOCAL_ENV,
        "KUBECONFIG": str(cluster.ensure_kubeconfig(access.make_username("functions"))),
        "LISTEN_ADDRESS": f"{LOOPBACK}:{port}",
        "PYTHONPATH": str(ROOT),
        **extra_environment,
    }
    return Server("func", [sys.executable, func_module.fetch_scaffolding() / "service" / "main.py"], log, environment)


@pytest.fixture(scope="module")
def func_url(installed_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a server that serves all functions through func's middleware."""
    with run_server(installed_cluster, tmp_path_factory.mktemp("func")) as (_, url):
        yield url


@pytest.fixture(scope="module")
def cordon_url(installed_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the URL of a server that serves only the function `cordon` through func's middleware."""
    with run_server(installed_cluster, tmp_path_factory.mktemp("func"), FUNCTION="cordon") as (_, url):
        yield url


@contextmanager
def run_server(cluster: LocalCluster, directory: Path, **extra_environment: str) -> Iterator[tuple[Server, str]]:
    """Yield a ready server and its URL."""
    port = reserve_port()
    server, url = build_server(cluster, directory / "func.log", port, **extra_environment), f"http://{LOOPBACK}:{port}"
    server.start()
    try:
        wait_until_ready("func's middleware", partial(is_ready, url), [server], timeout=30)
        yield server, url
    finally:
        server.stop()


@pytest.fixture
def unknown_node_maintenance(installed_cluster: LocalCluster) -> Iterator[dict[str, Any]]:
    """Yield a NodeMaintenance for an unknown node, which a complete function call handles without changing a node."""
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
    """X-1: the middleware accepts both content modes, responds in binary mode, and accepts a body of 300 KB."""
    message = mode(build_added_event(unknown_node_maintenance))

    response = requests.post(f"{func_url}/begin", message.body, headers=message.headers, timeout=30)

    event = decode_event(response.headers, response.content)
    assert response.status_code == 200
    assert event.get_type() == events.MAINTENANCE_STEP_FAILED
    assert event.get_data()["error"] == 'nodes "no-such-node" not found'  # type: ignore[call-overload,index]


@BOTH_CONTENT_MODES
def test_single_function_responds_at_root_path(cordon_url: str, mode: Mode) -> None:
    """Check that a single function also responds at the root path, to which func's Triggers deliver."""
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
    """X-6: the middleware returns the function's error response unchanged, which is a single line."""
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


def test_readiness_fails_while_api_server_is_unreachable(installed_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that readiness fails while the API server is unreachable, and that liveness does not fail."""
    relay, user = Relay(urlsplit(installed_cluster.url).port or 0), access.make_username("functions")
    kubeconfig, token = tmp_path / "kubeconfig", installed_cluster.get_token(user)
    api_url = f"https://{LOOPBACK}:{relay.port}"
    access.write_kubeconfig(kubeconfig, api_url, installed_cluster.certificate, user, token)
    with (
        closing(relay),
        run_server(installed_cluster, tmp_path, KUBECONFIG=str(kubeconfig)) as (server, url),
    ):
        relay.cut()
        wait_until_ready("a failed probe", lambda: not is_ready(url), [server], timeout=30)
        readiness, liveness = (requests.get(f"{url}/health/{probe}", timeout=30) for probe in ("readiness", "liveness"))
        assert (readiness.status_code, liveness.status_code) == (500, 200)
        assert readiness.text.startswith("the API server does not respond: ")

        relay.restore()
        wait_until_ready("the server", partial(is_ready, url), [server], timeout=30)


def test_log_lines_are_json_with_fields(installed_cluster: LocalCluster, tmp_path: Path) -> None:
    """KNM-5: log lines are JSON as with gunicorn, although func's scaffolding configures plain text."""
    with run_server(installed_cluster, tmp_path) as (server, url):
        requests.post(f"{url}/begin", "{}", headers={"content-type": "text/plain"}, timeout=30)

        lines = [parse_log_line(line) for line in server.log.read_text().splitlines()]
    (rejection,) = [line for line in lines if line and line["logger"] == "functions"]
    assert (rejection["level"], rejection["function"]) == ("warning", "begin")


def test_sigterm_lets_request_in_flight_complete(
    installed_cluster: LocalCluster, unknown_node_maintenance: dict[str, Any], receiver: Receiver, tmp_path: Path
) -> None:
    """Check that after SIGTERM, a server completes its request, publishes its last attempts, and exits with 0."""
    message = encode_binary(build_added_event(unknown_node_maintenance))
    with run_server(installed_cluster, tmp_path, RECORD=f"{receiver.url}/record") as (server, url):
        address = urlsplit(url).hostname or "", urlsplit(url).port or 0
        with closing(HTTPConnection(*address, timeout=30)) as connection:
            connection.putrequest("POST", "/begin")
            headers = {**message.headers, "content-length": str(len(message.body)), "expect": "100-continue"}
            for name, value in headers.items():
                connection.putheader(name, value)
            connection.endheaders()
            # After this response, the server waits for the request's body.
            assert connection.sock.recv(1000).startswith(b"HTTP/1.1 100 ")
            os.kill(server.pid, signal.SIGTERM)
            wait_until_ready("the shutdown", lambda: not is_listening(address[1]), [server], timeout=30)
            connection.send(message.body)

            response = connection.getresponse()
            event = decode_event(dict(response.getheaders()), response.read())
        assert server.process
        assert server.process.wait(MAX_SHUTDOWN_SECONDS) == 0

    (request,) = receiver.list_requests("/record")
    (attempt,) = parse_attempts(decode_event(request.headers, request.body))
    assert event.get_type() == events.MAINTENANCE_STEP_FAILED
    assert (attempt.function, attempt.status) == ("begin", 200)
