"""Tests that a local cluster starts quickly, runs next to other clusters, and leaves no processes."""

from __future__ import annotations

import os
import signal
import ssl
import subprocess
import sys
import time
from contextlib import closing
from http import HTTPStatus
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.programs import build
from tests.machine_speed import is_below_scaled_limit

ROOT = Path(__file__).parents[2]
MAX_START_SECONDS = 10.0
REVIEWS_PATH = "/apis/authentication.k8s.io/v1/tokenreviews"
KUBERC_TEXT = """
apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
defaults: [{command: get, options: [{name: output, default: name}]}]
"""
OWNER_SCRIPT = """
import signal, sys
from pathlib import Path
from localcluster.cluster import LocalCluster
cluster = LocalCluster(Path(sys.argv[1]), nodes=1)
cluster.start()
print(*(server.pid for server in cluster.servers), flush=True)
signal.pause()
"""


def list_processes(directory: Path) -> list[str]:
    """Return the command lines of all running processes that contain this directory's path."""
    lines = []
    for cmdline_file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(cmdline_file.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # The process has exited since it was listed.
    return [line for line in lines if str(directory) in line and "-c" not in line.split()]


def wait_until_no_processes(directory: Path, seconds: float = 10.0) -> list[str]:
    """Wait until the cluster's processes have exited; return the command lines of those that still run."""
    deadline = time.monotonic() + seconds
    while (processes := list_processes(directory)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes


@pytest.mark.slow
def test_second_cluster_starts_in_time_and_stops_completely(cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that a second cluster starts within ten seconds with its own nodes, and leaves no processes."""
    build.ensure_programs()

    started = time.monotonic()
    with LocalCluster(tmp_path / "second", nodes=2) as second:
        seconds = time.monotonic() - started
        names = second.kubectl("get", "nodes", "-o", "name").stdout.split()

    assert is_below_scaled_limit(seconds, MAX_START_SECONDS)
    assert names == ["node/node-1", "node/node-2"]
    assert wait_until_no_processes(tmp_path) == []
    assert len(cluster.get_client().get("/api/v1/nodes")["items"]) >= 3


@pytest.mark.slow
def test_servers_exit_if_owner_is_killed(tmp_path: Path) -> None:
    """Check that all servers exit if the process that started the cluster is killed with SIGKILL."""
    build.ensure_programs()
    command = [sys.executable, "-c", OWNER_SCRIPT, str(tmp_path / "cluster")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = owner.stdout.readline().split()
        processes_before_kill = list_processes(tmp_path)
        owner.send_signal(signal.SIGKILL)

    assert len(pids) == len(processes_before_kill) == 5
    assert wait_until_no_processes(tmp_path) == []


def test_failed_start_stops_servers_and_names_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the error names the server that failed to start and its log file, and that all servers are stopped."""
    monkeypatch.setattr("localcluster.servers.SERVICE_CIDR", "not-a-range")

    with pytest.raises(
        LocalClusterError, match=r"kube-apiserver exited while starting.*(\n.*)*not a valid cidr"
    ) as error:
        LocalCluster(tmp_path / "cluster").start()

    assert "kube-apiserver.log" in str(error.value)
    assert wait_until_no_processes(tmp_path) == []


def test_directory_of_earlier_cluster_is_rejected(cluster: LocalCluster) -> None:
    """Check that a directory that contains an earlier cluster's files is rejected."""
    with pytest.raises(LocalClusterError, match="use an empty directory"):
        LocalCluster(cluster.directory).start()


def test_certificate_passes_strict_x509_verification(cluster: LocalCluster) -> None:
    """Check that the API server's certificate passes strict X.509 verification, a default in newer Python versions."""
    context = ssl.create_default_context(cadata=cluster.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # Only newer Python versions set this flag by default.
    address = urlsplit(cluster.url)

    assert context.verify_mode == ssl.CERT_REQUIRED
    with closing(HTTPSConnection(str(address.hostname), address.port, context=context, timeout=5)) as connection:
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == HTTPStatus.OK


def test_each_function_authenticates_as_its_service_account(cluster: LocalCluster) -> None:
    """Check that the API server accepts each function's token as that of its ServiceAccount, with the right groups."""
    client = cluster.get_client()
    users = [access.make_username(name) for name in access.list_service_accounts()]
    reviews = [
        {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": cluster.get_token(user)}}
        for user in users
    ]

    results = client.gather_all(*(client.api.create(REVIEWS_PATH, review) for review in reviews))

    authenticated = [result["status"]["user"] for result in results]
    assert [user["username"] for user in authenticated] == users
    assert all(f"system:serviceaccounts:{access.NAMESPACE}" in user["groups"] for user in authenticated)


def test_unprivileged_user_may_not_read_nodes(cluster: LocalCluster) -> None:
    """Check that RBAC is enabled, so that a user without a role may not read nodes."""
    result = cluster.kubectl("get", "nodes", check=False, user=access.UNPRIVILEGED)

    assert result.returncode == 1
    assert "Forbidden" in result.stderr


def test_kuberc_of_user_is_ignored(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the user's kuberc does not affect kubectl calls, because the product parses their output."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "kuberc").write_text(KUBERC_TEXT)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cluster.kubectl("get", "node", "node-1").stdout.startswith("NAME ")


def is_etcd_responding(scheme: str, port: int, **tls: Any) -> bool:
    """Return whether etcd responds to a read request."""
    try:
        return requests.post(f"{scheme}://127.0.0.1:{port}/v3/kv/range", data='{"key": "AA=="}', timeout=5, **tls).ok
    except requests.RequestException:
        return False


@pytest.mark.slow
def test_etcd_with_real_nodes_requires_client_certificate(tmp_path: Path) -> None:
    """Check that the etcd of a cluster with real nodes requires the API server's client certificate.

    Any local user can connect to etcd. By writing to etcd, such a user could control the kubelets, which run as root.
    """
    with LocalCluster(tmp_path / "cluster", nodes=1, real_nodes=1) as cluster:
        listen_option = next(
            argument for argument in cluster.servers[0].command if argument.startswith("--listen-client-urls=")
        )
        port, trusted = int(listen_option.rpartition(":")[2]), str(cluster.pki / "etcd-ca.crt")
        certificate_pair = (str(cluster.pki / "etcd.crt"), str(cluster.pki / "etcd.key"))

        assert is_etcd_responding("https", port, verify=trusted, cert=certificate_pair)
        assert not is_etcd_responding("https", port, verify=trusted)
        assert not is_etcd_responding("http", port)
        assert (cluster.pki / "etcd.key").stat().st_mode & 0o077 == 0


def test_only_owner_may_read_kubeconfig(cluster: LocalCluster) -> None:
    """Check that only the owner can read a kubeconfig file, because it contains a token."""
    assert os.stat(cluster.kubeconfig).st_mode & 0o077 == 0


def test_audit_log_contains_writes_with_user_and_body(cluster: LocalCluster) -> None:
    """Check that the audit log contains a write, with user and body, as soon as the API server has responded."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}, "data": {"proof": "a-rare-word"}}

    cluster.get_client().create("/api/v1/namespaces/default/configmaps", body)

    line = next(line for line in cluster.audit_log.read_text().splitlines() if "a-rare-word" in line)
    assert '"username":"admin"' in line


@pytest.mark.slow
def test_annotations_of_node_set_its_heartbeat_interval(cluster: LocalCluster) -> None:
    """Check that a node's annotations set its heartbeat interval.

    The test's interval is longer than a second, because timestamps have a resolution of one second, and kwok writes no
    heartbeat with an unchanged timestamp.
    """
    cluster.create_nodes("beating")
    annotation_prefix = "node-heartbeat.stage.kwok.x-k8s.io"
    annotations = {f"{annotation_prefix}/delay": "1100ms", f"{annotation_prefix}/jitter-delay": "1200ms"}
    cluster.get_client().patch("/api/v1/nodes/beating", {"metadata": {"annotations": annotations}})

    heartbeat_times = set()
    for change in cluster.watch("/api/v1/nodes", fields="metadata.name=beating"):
        heartbeat_times |= {condition["lastHeartbeatTime"] for condition in change.object["status"]["conditions"]}
        if len(heartbeat_times) == 3:
            break
    assert len(heartbeat_times) == 3
    cluster.get_client().run(cluster.get_client().api.request("DELETE", "/api/v1/nodes/beating"))
