"""Tests that requests within a local cluster never use an HTTP proxy from the environment."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kube.client.api_errors import ApiError
from localcluster.cluster import LocalCluster
from localcluster.nodes.sandbox import Sandbox
from localcluster.processes import wait_until_ready

PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy")
WEBHOOKS_PATH = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations"
CONFIGMAPS_PATH = "/api/v1/namespaces/default/configmaps"
WEBHOOK_RULE = {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"], "operations": ["CREATE"]}
WEBHOOK_SERVICE = {"namespace": "default", "name": "absent"}


@pytest.fixture
def proxy_listener(monkeypatch: pytest.MonkeyPatch) -> Iterator[socket.socket]:
    """Set an HTTP proxy in the environment, and yield its listening socket, which accepts but never responds."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        for name in PROXY_VARIABLES:
            monkeypatch.setenv(name, f"http://127.0.0.1:{listener.getsockname()[1]}")
        for name in ("NO_PROXY", "no_proxy"):
            monkeypatch.delenv(name, raising=False)
        yield listener


def has_connection(listener: socket.socket) -> bool:
    """Return whether a client has connected to the listening socket."""
    listener.setblocking(False)
    try:
        listener.accept()[0].close()
    except BlockingIOError:
        return False
    return True


def create_unreachable_webhook(cluster: LocalCluster) -> None:
    """Register an admission webhook for ConfigMaps whose Service has no endpoints."""
    spec = {"ports": [{"port": 443}]}
    cluster.get_client().create("/api/v1/namespaces/default/services", {"metadata": {"name": "absent"}, "spec": spec})
    webhook = {
        "name": "absent.example.com",
        "clientConfig": {"service": WEBHOOK_SERVICE},
        "rules": [WEBHOOK_RULE],
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 1,
    }
    cluster.get_client().create(WEBHOOKS_PATH, {"metadata": {"name": "absent"}, "webhooks": [webhook]})


def try_creating_configmap(cluster: LocalCluster) -> str:
    """Try to create a ConfigMap; return the error, or "" if the webhook is not in effect yet."""
    try:
        cluster.get_client().create(CONFIGMAPS_PATH, {"metadata": {"generateName": "map-"}})
    except ApiError as error:
        return error.message
    return ""


@pytest.mark.slow
def test_requests_within_local_cluster_use_no_proxy(proxy_listener: socket.socket, tmp_path: Path) -> None:
    """Check that neither the tests' API client nor the API server, which calls webhooks, uses the proxy."""
    with LocalCluster(tmp_path / "cluster", nodes=1) as cluster:
        create_unreachable_webhook(cluster)
        wait_until_ready("the webhook", lambda: "absent" in try_creating_configmap(cluster), cluster.servers)

    assert not has_connection(proxy_listener)


@pytest.mark.usefixtures("proxy_listener")
def test_programs_of_real_node_use_no_proxy(tmp_path: Path) -> None:
    """Check that the programs of real nodes use no proxy, because these nodes cannot reach the proxy.

    The API server's address is not 127.0.0.1, so `NO_PROXY` must contain more than this address.
    """
    server = Sandbox("node", tmp_path / "node", "", "").build_server("kubelet", "kubelet")

    assert (server.env["NO_PROXY"], server.env["no_proxy"]) == ("*", "*")
