"""A local cluster's requests to itself never use a proxy from the environment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client.api_errors import ApiError
from localcluster.cluster import LocalCluster
from localcluster.nodes.sandbox import Room
from localcluster.processes import await_ready

VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
WEBHOOKS = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
MAPS = "/api/v1/namespaces/default/configmaps"
RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
SERVICE = {"namespace": "default", "name": "nobody"}


@pytest.fixture
def proxy(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Yield the listening socket of a proxy for all protocols; it answers nothing, but shows who connects."""
    with socket.create_server(("127.0.0.1", 0)) as door:
        for name in VARIABLES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{door.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield door


def knocked(door: socket.socket) -> bool:
    """Return whether a client has connected."""
    door.setblocking(False)
    try:
        door.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def refuse_maps(cluster: LocalCluster) -> None:
    """Register a webhook for ConfigMaps whose Service has no endpoints."""
    spec = {"ports": [{"port": 443}]}
    cluster.door().create("/api/v1/namespaces/default/services", {"metadata": {"name": "nobody"}, "spec": spec})
    webhook = {
        "name": "nobody.example.com",
        "clientConfig": {"service": SERVICE},
        "rules": [RULE],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    cluster.door().create(WEBHOOKS, {"metadata": {"name": "nobody"}, "webhooks": [webhook]})


def refusal(cluster: LocalCluster) -> str:
    """Return why the creation of a ConfigMap fails, "" if it succeeds because the webhook is not in force yet."""
    try:
        cluster.door().create(MAPS, {"metadata": {"generateName": "map-"}})
    except ApiError as error:
        return error.message
    return ""


@pytest.mark.slow
def test_a_cluster_asks_no_proxy_for_itself(proxy: socket.socket, tmp_path: Path) -> None:
    """Check that neither the tests' client nor the API server's webhook calls use the proxy."""
    with LocalCluster(tmp_path / "cluster", nodes=1) as cluster:
        refuse_maps(cluster)
        await_ready("the webhook", lambda: "nobody" in refusal(cluster), cluster.servers)

    assert not knocked(proxy)


@pytest.mark.usefixtures("proxy")
def test_what_runs_on_a_real_node_is_told_of_no_proxy(tmp_path: Path) -> None:
    """Check that a real node's programs use no proxy, because they could not reach it.

    The API server's address is not 127.0.0.1, so `NO_PROXY` must exclude it, too.
    """
    server = Room("node", tmp_path / "node", "", "").server("kubelet", "kubelet")

    assert (server.env["NO_PROXY"], server.env["no_proxy"]) == ("*", "*")
