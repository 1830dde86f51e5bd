"""A local cluster starts quickly, shares the machine, and leaves no processes."""

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
    """Return the command lines of all running processes that name this directory."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # the process ended in between
    return [line for line in lines if str(directory) in line and "-c" not in line.split()]


def await_no_processes(directory: Path, seconds: float = 10.0) -> list[str]:
    """Wait for the cluster's processes to end; return the command lines of those that are left."""
    deadline = time.monotonic() + seconds
    while (processes := list_processes(directory)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return processes


@pytest.mark.slow
def test_second_cluster_starts_in_time_and_stops_completely(cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that a second cluster starts within ten seconds, with its own nodes, and leaves no process."""
    build.ensure_programs()

    started = time.monotonic()
    with LocalCluster(tmp_path / "second", nodes=2) as second:
        seconds = time.monotonic() - started
        names = second.kubectl("get", "nodes", "-o", "name").stdout.split()

    assert is_below_scaled_limit(seconds, MAX_START_SECONDS)
    assert names == ["node/node-1", "node/node-2"]
    assert await_no_processes(tmp_path) == []
    assert len(cluster.get_client().get("/api/v1/nodes")["items"]) >= 3


@pytest.mark.slow
def test_servers_end_with_killed_owner(tmp_path: Path) -> None:
    """Check that all servers end when the process that owns the cluster is killed with SIGKILL."""
    build.ensure_programs()
    command = [sys.executable, "-c", OWNER_SCRIPT, str(tmp_path / "cluster")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = owner.stdout.readline().split()
        before = list_processes(tmp_path)
        owner.send_signal(signal.SIGKILL)

    assert len(pids) == len(before) == 5
    assert await_no_processes(tmp_path) == []


def test_failed_start_stops_servers_and_names_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a server that exits during the start is named with the end of its log; the others are stopped."""
    monkeypatch.setattr("localcluster.servers.SERVICE_CIDR", "not-a-range")

    with pytest.raises(
        LocalClusterError, match=r"kube-apiserver exited while starting.*(\n.*)*not a valid cidr"
    ) as error:
        LocalCluster(tmp_path / "cluster").start()

    assert "kube-apiserver.log" in str(error.value)
    assert await_no_processes(tmp_path) == []


def test_used_directory_is_rejected(cluster: LocalCluster) -> None:
    """Check that a directory with an earlier cluster's files is rejected."""
    with pytest.raises(LocalClusterError, match="use an empty directory"):
        LocalCluster(cluster.directory).start()


def test_certificate_passes_strict_x509_verification(cluster: LocalCluster) -> None:
    """Check that the API server's certificate passes strict X.509 verification, newer Pythons' default."""
    context = ssl.create_default_context(cadata=cluster.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of newer Pythons, set for older ones, too
    address = urlsplit(cluster.url)

    assert context.verify_mode == ssl.CERT_REQUIRED
    with closing(HTTPSConnection(str(address.hostname), address.port, context=context, timeout=5)) as connection:
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == HTTPStatus.OK


@pytest.mark.parametrize("name", access.SERVICE_ACCOUNTS)
def test_each_function_authenticates_as_its_service_account(cluster: LocalCluster, name: str) -> None:
    """Check that the API server authenticates a function's token as its ServiceAccount with its groups."""
    user = access.make_username(name)
    review = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenReview",
        "spec": {"token": cluster.get_token(user)},
    }

    status = cluster.get_client().create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]

    assert status["user"]["username"] == user
    assert f"system:serviceaccounts:{access.NAMESPACE}" in status["user"]["groups"]


def test_an_unprivileged_user_may_not_read_nodes(cluster: LocalCluster) -> None:
    """Check that RBAC is enabled: a user without a role gets Forbidden."""
    result = cluster.kubectl("get", "nodes", check=False, user=access.UNPRIVILEGED)

    assert result.returncode == 1
    assert "Forbidden" in result.stderr


def test_kuberc_of_user_is_ignored(cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the user's kuberc does not affect kubectl calls, whose output is parsed."""
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
    """Check that etcd of a cluster with real nodes requires the API server's client certificate.

    Any local user can reach the port, and writing to etcd would control the kubelets, which run as root.
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


def test_only_its_owner_may_read_a_kubeconfig(cluster: LocalCluster) -> None:
    """Check that only the owner can read files that contain a token."""
    assert os.stat(cluster.kubeconfig).st_mode & 0o077 == 0


def test_answered_writes_are_in_the_audit_log(cluster: LocalCluster) -> None:
    """Check that a write is in the audit log, with body and user, as soon as it was answered."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}, "data": {"proof": "a-rare-word"}}

    cluster.get_client().create("/api/v1/namespaces/default/configmaps", body)

    line = next(line for line in cluster.audit_log.read_text().splitlines() if "a-rare-word" in line)
    assert '"username":"admin"' in line


@pytest.mark.slow
def test_node_annotations_set_heartbeat_interval(cluster: LocalCluster) -> None:
    """Check that a node's annotations set its heartbeat interval.

    It is more than a second, because timestamps have a resolution of a second, and an unchanged heartbeat is not
    written.
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
