"""One Kubernetes cluster of real servers in local processes, with fake nodes."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from functools import cache, partial
from pathlib import Path
from typing import Any

import yaml

from kube.client.api_errors import ApiError
from kube.client.list_watch import Change, follow
from kube.client.sync_client import SyncClient
from kube.maintenance.quorum import CONTROL_PLANE_LABELS
from kube.paths import Object
from localcluster import access
from localcluster.errors import LocalClusterError
from localcluster.nodes import identities
from localcluster.processes import GO_ENV, Server, Startable, kill_all, reserve_port, wait_until_ready
from localcluster.programs import build
from localcluster.readiness import is_node_ready, is_responding, list_unestablished_crds
from localcluster.servers import LOOPBACK, ServerFactory

PORT_NAMES = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE_BATCH_SIZE = 100
"""Maximum number of nodes that are created or deleted concurrently.

With more nodes, a busy API server may exceed the client's timeout of 10 s.
"""
FAKE_NODE_TAINT = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
"""The taint that keeps ordinary pods away from kwok's fake nodes, so that these pods run on the real nodes."""
FAKE_NODE_TOLERATION = {"key": FAKE_NODE_TAINT["key"], "operator": "Exists"}
"""Lets a pod run on a fake node of a cluster with real nodes."""


class LocalCluster(Startable):
    """A cluster in its own directory; several clusters can run concurrently.

    The servers stop on `stop()`, at the end of the `with` block, or when the process that started them exits, even if
    it crashes.

    Args:
        directory: The directory for the cluster's files, which must be empty or not exist yet.
        nodes: The number of fake nodes to start with.
        audit: Whether the API server writes an audit log.
        flags: Additional flags of the API server.
        real_nodes: The number of real nodes that the cluster must support; if it is not 0, the fake nodes are tainted.

    Attributes:
        kubeconfig: The administrator's kubeconfig.
        url: The API server's URL.
        audit_log: The path of the audit log.
        servers: The server processes; each has its own log.
    """

    def __init__(
        self, directory: Path, nodes: int = 3, audit: bool = True, flags: Sequence[str] = (), real_nodes: int = 0
    ) -> None:
        self.directory = directory.resolve()
        self.node_count = 0
        self._initial_nodes = nodes
        self._ports = {name: reserve_port() for name in PORT_NAMES}
        self.url = f"https://{LOOPBACK}:{self._ports['kube-apiserver']}"
        self._programs = build.ensure_programs()
        self._real_nodes = real_nodes
        self._server_factory = ServerFactory(
            self._programs, self.directory, self._ports, audit, flags, bool(real_nodes)
        )
        self.audit_log = self._server_factory.audit_log
        self.servers: list[Server] = []
        self._clients: dict[str, SyncClient] = {}

    def start(self) -> None:
        """Start all servers and the nodes; return when pods can be scheduled and run."""
        if (self.directory / "etcd").exists():  # This check is first, because an error here needs no cleanup.
            raise LocalClusterError(f"directory {self.directory} contains an earlier cluster: use an empty directory")
        super().start()

    def _start_and_wait(self) -> None:
        self._start_control_plane()
        self._start_controllers()
        self.add_nodes(self._initial_nodes)
        self._wait_for_controllers()

    def stop(self) -> None:
        """Stop all servers; the cluster's directory with its logs remains."""
        for client in self._clients.values():
            client.close()
        self._clients.clear()
        # The servers have no data worth flushing, and a graceful shutdown takes seconds.
        kill_all(self.servers)
        self.servers.clear()

    @property
    def port(self) -> int:
        """Return the port on which the API server listens on this host."""
        return self._ports["kube-apiserver"]

    @property
    def pki(self) -> Path:
        """Return the directory with the cluster's keys and certificates."""
        return self._server_factory.certificate_file.parent

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig file."""
        return self.ensure_kubeconfig(access.ADMIN)

    @property
    def certificate(self) -> str:
        """Return the API server's certificate chain, which clients use as the CA bundle."""
        return self._server_factory.certificate_file.read_text()

    def get_token(self, user: str = access.ADMIN) -> str:
        """Return a user's token; `access.list_users()` lists the users."""
        return self._tokens.get_token(user)

    def ensure_kubeconfig(self, user: str) -> Path:
        """Return the path of a user's kubeconfig file; write the file on first use."""
        file = self._server_factory.get_kubeconfig_path(user)
        if not file.exists():
            access.write_kubeconfig(file, self.url, self.certificate, user, self.get_token(user))
        return file

    def get_client(self, user: str = access.ADMIN) -> SyncClient:
        """Return a user's API client, which is closed when the cluster stops."""
        if user not in self._clients:
            self._clients[user] = SyncClient(str(self.ensure_kubeconfig(user)))
        return self._clients[user]

    def is_served(self, path: str) -> bool:
        """Return whether a GET by the administrator succeeds."""
        try:
            self.get_client().get(path)
        except ApiError:
            return False
        return True

    def watch(self, path: str, *, fields: str = "", timeout: float = 60.0) -> Iterator[Change]:
        """Follow a collection synchronously: yield existing objects, then each change (see `kube.client.list_watch`).

        Raises `LocalClusterError` if no object changes for `timeout` seconds.
        """
        client = self.get_client()
        changes = follow(client.api, path, field_selector=fields)
        try:
            while True:
                try:
                    change = client.run(asyncio.wait_for(changes.__anext__(), timeout))
                except asyncio.TimeoutError:
                    raise LocalClusterError(f"watch of {path}: no change within {timeout:.0f} s") from None
                if change.change_type != "SYNCED":
                    yield change
        finally:
            client.run(changes.aclose())

    def kubectl(
        self, *arguments: str | Path, input: str | None = None, check: bool = True, user: str = access.ADMIN
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user, ignoring any kuberc.

        With `check`, a failure raises `LocalClusterError`, which quotes kubectl's output.
        """
        command = [self._programs / "kubectl", f"--kubeconfig={self.ensure_kubeconfig(user)}", *arguments]
        environment = {**os.environ, **GO_ENV, "KUBERC": "off"}
        done = subprocess.run(command, input=input, env=environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            output = done.stderr.strip() or done.stdout.strip()
            raise LocalClusterError(f"kubectl {' '.join(map(str, arguments))}: {output}")
        return done

    def apply(self, items: Sequence[Object], *options: str) -> None:
        """Apply objects server-side, as JSON: serializing them as YAML would take 80 times as long."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self.kubectl("apply", "--server-side", *options, "-f", "-", input=text)

    def wait_for_crds(self, *crds: str) -> None:
        """Wait until these CRDs are Established; without arguments, wait for all CRDs.

        `kubectl wait` cannot be used, because it fails on a new CRD that has no conditions yet.
        """
        list_pending = partial(list_unestablished_crds, self.get_client(), crds)
        try:
            wait_until_ready("CustomResourceDefinitions", lambda: not list_pending(), self.servers)
        except LocalClusterError as error:
            raise LocalClusterError(f"{error}: {'; '.join(list_pending())}") from None

    def add_nodes(self, count: int) -> list[str]:
        """Create `count` more nodes, named node-N with consecutive numbers; return their names when they are Ready."""
        names = [f"node-{number}" for number in range(self.node_count + 1, self.node_count + count + 1)]
        self.create_nodes(*names)
        self.node_count += count
        return names

    def create_nodes(self, *names: str) -> None:
        """Create nodes with these names; return when they are Ready."""
        client = self.get_client()
        for batch in _split_into_batches(names):
            client.gather_all(
                *(client.api.create("/api/v1/nodes", _build_node(name, bool(self._real_nodes))) for name in batch)
            )
        wait_until_ready(f"nodes {', '.join(names)}", lambda: set(names) <= self.list_ready_nodes(), self.servers)

    def delete_nodes(self, *names: str) -> None:
        """Delete the nodes with these names."""
        client = self.get_client()
        for batch in _split_into_batches(names):
            client.gather_all(*(client.api.request("DELETE", f"/api/v1/nodes/{name}") for name in batch))

    def mark_control_plane_nodes(self, count: int) -> None:
        """Turn the first nodes into control-plane nodes, with the label and the taint that kubeadm sets."""
        role = CONTROL_PLANE_LABELS[0]
        taints = [{"key": role, "effect": "NoSchedule"}, *([FAKE_NODE_TAINT] if self._real_nodes else [])]
        change = {"metadata": {"labels": {role: ""}}, "spec": {"taints": taints}}
        for number in range(1, count + 1):
            self.get_client().patch(f"/api/v1/nodes/node-{number}", change)

    def _start_control_plane(self) -> None:
        """Start etcd and the API server together; return when the API server is ready."""
        for folder in (self.directory, self._server_factory.certificate_file.parent, self.directory / "users"):
            folder.mkdir(parents=True, exist_ok=True)
        access.write_service_account_key(self._server_factory.service_account_key_file)
        self._tokens = access.TokenFile(
            self._server_factory.tokens_file, {**access.list_users(), **identities.list_users(self._real_nodes)}
        )
        access.write_serving_certificate(self._server_factory.certificate_file, self._server_factory.key_file)
        if self._real_nodes:
            identities.KubeletClientCertificate(self.pki).write_certificate()
            identities.EtcdCertificate(self.pki).write_certificate(LOOPBACK)
        self._start_servers(self._server_factory.build_etcd(), self._server_factory.build_apiserver())
        wait_until_ready(
            "kube-apiserver",
            partial(is_responding, f"{self.url}/readyz", self._server_factory.certificate_file),
            self.servers,
        )

    def _start_controllers(self) -> None:
        """Start the servers that are clients of the API server."""
        for user in (access.CONTROLLER_MANAGER, access.SCHEDULER, access.KWOK):
            self.ensure_kubeconfig(user)
        self._start_servers(
            self._server_factory.build_controller_manager(),
            self._server_factory.build_scheduler(),
            self._server_factory.build_kwok(),
        )

    def _wait_for_controllers(self) -> None:
        """Wait for the controller manager, the scheduler, and the ServiceAccount `default` in namespace `default`."""
        for name in ("kube-controller-manager", "kube-scheduler"):
            url = f"https://{LOOPBACK}:{self._ports[name]}/healthz"
            wait_until_ready(name, partial(is_responding, url, self._server_factory.certificate_file), self.servers)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        wait_until_ready('ServiceAccount "default/default"', lambda: self.is_served(account), self.servers)

    def _start_servers(self, *servers: Server) -> None:
        for server in servers:
            self.servers.append(server)
            server.start()

    def list_ready_nodes(self) -> set[str]:
        """Return the names of the nodes that are Ready."""
        nodes = self.get_client().list("/api/v1/nodes", resource_version="0")["items"]
        return {node["metadata"]["name"] for node in nodes if is_node_ready(node)}


@cache
def _load_node_template() -> str:
    """Return node.yaml as JSON: it is parsed for each of up to a thousand nodes, and parsing YAML is slow."""
    return json.dumps(yaml.safe_load(Path(__file__).with_name("node.yaml").read_text()))


def _split_into_batches(names: Sequence[str]) -> Iterator[Sequence[str]]:
    """Yield the names in batches of `NODE_BATCH_SIZE`."""
    for first in range(0, len(names), NODE_BATCH_SIZE):
        yield names[first : first + NODE_BATCH_SIZE]


def _build_node(name: str, is_tainted: bool) -> dict[str, Any]:
    """Build a Node as a kubelet would register it; add the taint of fake nodes if `is_tainted`."""
    node: dict[str, Any] = json.loads(_load_node_template())
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    node["metadata"]["name"] = node["metadata"]["labels"]["kubernetes.io/hostname"] = name
    node["status"]["addresses"] = [{"type": "Hostname", "address": name}]
    if is_tainted:
        node["spec"] = {"taints": [FAKE_NODE_TAINT]}
    for condition in node["status"]["conditions"]:
        condition |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return node
