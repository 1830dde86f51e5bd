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
from localcluster.programs import build
from localcluster.errors import LocalClusterError
from tests.machine_speed import is_below

ROOT = Path(__file__).parents[2]
START_SECONDS = 10.0
KUBERC = """
apiVersion: kubectl.config.k8s.io/v1beta1
kind: Preference
defaults: [{command: get, options: [{name: output, default: name}]}]
"""
OWNER = """
import signal, sys
from pathlib import Path
from localcluster.cluster import LocalCluster
cluster = LocalCluster(Path(sys.argv[1]), nodes=1)
cluster.start()
print(*(server.pid for server in cluster.servers), flush=True)
signal.pause()
"""


def processes_of(directory: Path) -> list[str]:
    """Return the command lines of all running processes that name this directory."""
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            lines.append(entry.read_bytes().replace(b"\0", b" ").decode(errors="replace"))
        except OSError:
            continue  # the process ended in between
    return [line for line in lines if str(directory) in line and "-c" not in line.split()]


def await_none(directory: Path, seconds: float = 10.0) -> list[str]:
    """Wait for the cluster's processes to end; return the command lines of those that are left."""
    deadline = time.monotonic() + seconds
    while (left := processes_of(directory)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


@pytest.mark.slow
def test_two_clusters_run_side_by_side_and_each_starts_in_time(cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that a second cluster starts within ten seconds, with its own nodes, and leaves no process."""
    build.servers()

    started = time.monotonic()
    with LocalCluster(tmp_path / "second", nodes=2) as second:
        took = time.monotonic() - started
        names = second.kubectl("get", "nodes", "-o", "name").stdout.split()

    assert is_below(took, START_SECONDS)
    assert names == ["node/node-1", "node/node-2"]
    assert await_none(tmp_path) == []
    assert len(cluster.door().get("/api/v1/nodes")["items"]) >= 3


@pytest.mark.slow
def test_nothing_outlives_a_killed_owner(tmp_path: Path) -> None:
    """Check that all servers end when the process that owns the cluster is killed with SIGKILL."""
    build.servers()
    command = [sys.executable, "-c", OWNER, str(tmp_path / "cluster")]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout is not None
        pids = owner.stdout.readline().split()
        before = processes_of(tmp_path)
        owner.send_signal(signal.SIGKILL)

    assert len(pids) == len(before) == 5
    assert await_none(tmp_path) == []


def test_a_failed_start_leaves_nothing_and_says_where_to_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a server that exits during the start is named with the end of its log; the others are stopped."""
    monkeypatch.setattr("localcluster.servers.SERVICE_CIDR", "not-a-range")

    with pytest.raises(
        LocalClusterError, match=r"kube-apiserver ended while starting.*(\n.*)*not a valid cidr"
    ) as raised:
        LocalCluster(tmp_path / "cluster").start()

    assert "kube-apiserver.log" in str(raised.value)
    assert await_none(tmp_path) == []


def test_a_used_folder_is_refused(cluster: LocalCluster) -> None:
    """Check that a directory with an earlier cluster's files is rejected."""
    with pytest.raises(LocalClusterError, match="give an empty folder"):
        LocalCluster(cluster.directory).start()


def test_the_certificate_passes_the_strict_check(cluster: LocalCluster) -> None:
    """Check that the API server's certificate passes strict X.509 verification, newer Pythons' default."""
    context = ssl.create_default_context(cadata=cluster.certificate)
    context.verify_flags |= ssl.VERIFY_X509_STRICT  # the default of newer Pythons, set for older ones, too
    where = urlsplit(cluster.url)

    assert context.verify_mode == ssl.CERT_REQUIRED
    with closing(HTTPSConnection(str(where.hostname), where.port, context=context, timeout=5)) as connection:
        connection.request("GET", "/readyz")
        assert connection.getresponse().status == HTTPStatus.OK


@pytest.mark.parametrize("name", access.SERVICE_ACCOUNTS)
def test_each_function_has_an_identity_of_its_own(cluster: LocalCluster, name: str) -> None:
    """Check that the API server authenticates a function's token as its ServiceAccount with its groups."""
    user = access.service_account(name)
    review = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {"token": cluster.token(user)}}

    status = cluster.door().create("/apis/authentication.k8s.io/v1/tokenreviews", review)["status"]

    assert status["user"]["username"] == user
    assert f"system:serviceaccounts:{access.NAMESPACE}" in status["user"]["groups"]


def test_an_unprivileged_user_may_not_read_nodes(cluster: LocalCluster) -> None:
    """Check that RBAC is enabled: a user without a role gets Forbidden."""
    done = cluster.kubectl("get", "nodes", check=False, user=access.UNPRIVILEGED)

    assert done.returncode == 1
    assert "Forbidden" in done.stderr


def test_a_user_s_own_settings_of_kubectl_change_nothing(
    cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the user's kuberc does not affect kubectl calls, whose output is parsed."""
    (tmp_path / ".kube").mkdir()
    (tmp_path / ".kube" / "kuberc").write_text(KUBERC)
    monkeypatch.setenv("HOME", str(tmp_path))

    assert cluster.kubectl("get", "node", "node-1").stdout.startswith("NAME ")


def etcd_answers(scheme: str, port: int, **tls: Any) -> bool:
    """Return whether etcd responds to a read request."""
    try:
        return requests.post(f"{scheme}://127.0.0.1:{port}/v3/kv/range", data='{"key": "AA=="}', timeout=5, **tls).ok
    except requests.RequestException:
        return False


@pytest.mark.slow
def test_beside_real_nodes_etcd_answers_its_api_server_alone(tmp_path: Path) -> None:
    """Check that etcd of a cluster with real nodes requires the API server's client certificate.

    Any local user can reach the port, and writing to etcd would control the kubelets, which run as root.
    """
    with LocalCluster(tmp_path / "cluster", nodes=1, real=1) as cluster:
        listens = next(word for word in cluster.servers[0].command if word.startswith("--listen-client-urls="))
        port, trusted = int(listens.rpartition(":")[2]), str(cluster.pki / "etcd-ca.crt")
        known = (str(cluster.pki / "etcd.crt"), str(cluster.pki / "etcd.key"))

        assert etcd_answers("https", port, verify=trusted, cert=known)
        assert not etcd_answers("https", port, verify=trusted)
        assert not etcd_answers("http", port)
        assert (cluster.pki / "etcd.key").stat().st_mode & 0o077 == 0


def test_only_its_owner_may_read_a_kubeconfig(cluster: LocalCluster) -> None:
    """Check that only the owner can read files that contain a token."""
    assert os.stat(cluster.kubeconfig).st_mode & 0o077 == 0


def test_writes_are_in_the_audit_log_when_they_are_answered(cluster: LocalCluster) -> None:
    """Check that a write is in the audit log, with body and user, as soon as it was answered."""
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "audited"}, "data": {"proof": "a-rare-word"}}

    cluster.door().create("/api/v1/namespaces/default/configmaps", body)

    line = next(line for line in cluster.audit_log.read_text().splitlines() if "a-rare-word" in line)
    assert '"username":"admin"' in line


@pytest.mark.slow
def test_a_nodes_annotations_say_how_often_its_heartbeat_is_written(cluster: LocalCluster) -> None:
    """Check that a node's annotations set its heartbeat interval.

    It is more than a second, because timestamps have a resolution of a second, and an unchanged heartbeat is not
    written.
    """
    cluster.add_named("beating")
    stage = "node-heartbeat.stage.kwok.x-k8s.io"
    annotations = {f"{stage}/delay": "1100ms", f"{stage}/jitter-delay": "1200ms"}
    cluster.door().patch("/api/v1/nodes/beating", {"metadata": {"annotations": annotations}})

    seen = set()
    for change in cluster.watch("/api/v1/nodes", fields="metadata.name=beating"):
        seen |= {condition["lastHeartbeatTime"] for condition in change.object["status"]["conditions"]}
        if len(seen) == 3:
            break
    assert len(seen) == 3
    cluster.door().run(cluster.door().api.request("DELETE", "/api/v1/nodes/beating"))
