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
from kube.client.sync_client import Cluster
from kube.maintenance.quorum import CONTROL_PLANE
from kube.paths import Object
from localcluster import access, certificates
from localcluster.nodes import identities
from localcluster.processes import THRIFT, Server, Startable, await_ready, free_port, kill_all
from localcluster.programs import build
from localcluster.readiness import answers, is_ready_node, unestablished
from localcluster.servers import LOOPBACK, CommandLines
from localcluster.errors import LocalClusterError

PORTS = ("etcd", "etcd-peer", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
AT_ONCE = 100
"""Nodes created concurrently: the API client times out after ten seconds, and a busy server answers slowly."""
FAKE = {"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}
"""The taint on kwok's nodes that leaves ordinary pods to the real nodes."""


class LocalCluster(Startable):
    """A cluster in a directory of its own; several can run concurrently.

    The servers end with `stop()`, with the `with` block, or when the process that started them exits, even if it
    crashes.

    Args:
        directory: An empty or absent directory.
        nodes: The number of fake nodes to start with.
        audit: Whether the API server writes an audit log.
        flags: Additional flags of the API server.
        real: The number of real nodes that the cluster must support; if there are any, the fake nodes are tainted.

    Attributes:
        kubeconfig: The administrator's kubeconfig.
        url: The API server's URL.
        audit_log: The path of the audit log.
        servers: The server processes; each has a log of its own.
    """

    def __init__(
        self, directory: Path, nodes: int = 3, audit: bool = True, flags: Sequence[str] = (), real: int = 0
    ) -> None:
        self.directory = directory.resolve()
        self.nodes = 0
        self._first_nodes = nodes
        self._ports = {name: free_port() for name in PORTS}
        self.url = f"https://{LOOPBACK}:{self._ports['kube-apiserver']}"
        self._programs = build.servers()
        self._real = real
        self._lines = CommandLines(self._programs, self.directory, self._ports, audit, flags, bool(real))
        self.audit_log = self._lines.audit_log
        self.servers: list[Server] = []
        self._doors: dict[str, Cluster] = {}

    def start(self) -> None:
        """Start all servers and the nodes; return when pods can be scheduled and run."""
        if (self.directory / "etcd").exists():  # fails before there are processes that `start` would have to stop
            raise LocalClusterError(f"{self.directory} holds an earlier cluster; give an empty folder")
        super().start()

    def _bring_up(self) -> None:
        self._start_control_plane()
        self._start_clients()
        self.add_nodes(self._first_nodes)
        self._await_clients()

    def stop(self) -> None:
        """Stop all servers; the directory and its logs stay."""
        for door in self._doors.values():
            door.close()
        self._doors.clear()
        # The servers have no data worth flushing, and a graceful shutdown takes seconds.
        kill_all(self.servers)
        self.servers.clear()

    @property
    def port(self) -> int:
        """Return the port on which the API server listens on this host."""
        return self._ports["kube-apiserver"]

    @property
    def pki(self) -> Path:
        """Return the directory of keys and certificates."""
        return self._lines.certificate.parent

    @property
    def kubeconfig(self) -> Path:
        """Return the administrator's kubeconfig file."""
        return self.kubeconfig_for(access.ADMIN)

    @property
    def certificate(self) -> str:
        """Return the API server's certificate chain, which is also the bundle to trust."""
        return self._lines.certificate.read_text()

    def token(self, user: str = access.ADMIN) -> str:
        """Return a user's token; `access.users()` lists the users."""
        return self._tokens.of(user)

    def kubeconfig_for(self, user: str) -> Path:
        """Return the path of a user's kubeconfig file; write the file on first use."""
        file = self._lines.kubeconfig(user)
        if not file.exists():
            access.write_kubeconfig(file, self.url, self.certificate, user, self.token(user))
        return file

    def door(self, user: str = access.ADMIN) -> Cluster:
        """Return a user's API client, which is closed when the cluster stops."""
        if user not in self._doors:
            self._doors[user] = Cluster(str(self.kubeconfig_for(user)))
        return self._doors[user]

    def serves(self, path: str) -> bool:
        """Return whether a GET by the administrator succeeds."""
        try:
            self.door().get(path)
        except ApiError:
            return False
        return True

    def watch(self, path: str, *, fields: str = "", seconds: float = 60.0) -> Iterator[Change]:
        """Follow a collection synchronously: yield the existing objects, then each change (see `kube.client.list_watch`).

        Raises `LocalClusterError` if nothing changes for `seconds`.
        """
        door = self.door()
        changes = follow(door.api, path, fields=fields)
        try:
            while True:
                try:
                    change = door.run(asyncio.wait_for(changes.__anext__(), seconds))
                except asyncio.TimeoutError:
                    raise LocalClusterError(f"{path} has not changed for {seconds:.0f} s") from None
                if change.kind != "SYNCED":
                    yield change
        finally:
            door.run(changes.aclose())

    def kubectl(
        self, *arguments: str | Path, input: str | None = None, check: bool = True, user: str = access.ADMIN
    ) -> subprocess.CompletedProcess[str]:
        """Run kubectl as a user, ignoring any kuberc.

        With `check`, a failure raises `LocalClusterError`, which quotes kubectl's output.
        """
        command = [self._programs / "kubectl", f"--kubeconfig={self.kubeconfig_for(user)}", *arguments]
        environment = {**os.environ, **THRIFT, "KUBERC": "off"}
        done = subprocess.run(command, input=input, env=environment, capture_output=True, text=True, check=False)
        if check and done.returncode:
            said = done.stderr.strip() or done.stdout.strip()
            raise LocalClusterError(f"kubectl {' '.join(map(str, arguments))}: {said}")
        return done

    def apply(self, items: Sequence[Object], *options: str) -> None:
        """Apply objects server-side, as JSON, which takes an eightieth of the time to serialize that YAML takes."""
        text = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
        self.kubectl("apply", "--server-side", *options, "-f", "-", input=text)

    def await_kinds(self, *crds: str) -> None:
        """Return when these CustomResourceDefinitions are Established; without arguments, when all of them are.

        `kubectl wait` does the same, but fails on a CustomResourceDefinition so new that it has no conditions.
        """
        left = partial(unestablished, self.door(), crds)
        try:
            await_ready("CustomResourceDefinitions", lambda: not left(), self.servers)
        except LocalClusterError as error:
            raise LocalClusterError(f"{error}: {'; '.join(left())}") from None

    def add_nodes(self, count: int) -> list[str]:
        """Create `count` more nodes, named node-N with consecutive numbers; return their names when they are Ready."""
        names = [f"node-{number}" for number in range(self.nodes + 1, self.nodes + count + 1)]
        self.add_named(*names)
        self.nodes += count
        return names

    def add_named(self, *names: str) -> None:
        """Create nodes with these names; return when they are Ready."""
        door = self.door()
        for first in range(0, len(names), AT_ONCE):
            some = names[first : first + AT_ONCE]
            door.together(*(door.api.create("/api/v1/nodes", _node(name, bool(self._real))) for name in some))
        await_ready(f"the nodes {', '.join(names)}", lambda: set(names) <= self.ready_nodes(), self.servers)

    def make_control_plane(self, count: int) -> None:
        """Turn the first nodes into control-plane nodes, with the label and the taint that kubeadm sets."""
        role = CONTROL_PLANE[0]
        taints = [{"key": role, "effect": "NoSchedule"}, *([FAKE] if self._real else [])]
        change = {"metadata": {"labels": {role: ""}}, "spec": {"taints": taints}}
        for number in range(1, count + 1):
            self.door().patch(f"/api/v1/nodes/node-{number}", change)

    def _start_control_plane(self) -> None:
        """Start etcd and the API server together; return when the API server is ready."""
        for folder in (self.directory, self._lines.certificate.parent, self.directory / "users"):
            folder.mkdir(parents=True, exist_ok=True)
        access.write_signing_key(self._lines.signing_key)
        self._tokens = access.Tokens(self._lines.tokens, {**access.users(), **identities.users(self._real)})
        certificates.write_serving(self._lines.certificate, self._lines.certificate_key)
        if self._real:
            identities.Caller(self.pki).write()
            identities.Etcd(self.pki).write(LOOPBACK)
        self._start(self._lines.etcd(), self._lines.apiserver())
        await_ready("the API server", partial(answers, f"{self.url}/readyz", self._lines.certificate), self.servers)

    def _start_clients(self) -> None:
        """Start the servers that are clients of the API server."""
        for user in (access.CONTROLLER_MANAGER, access.SCHEDULER, access.KWOK):
            self.kubeconfig_for(user)
        self._start(self._lines.controller_manager(), self._lines.scheduler(), self._lines.kwok())

    def _await_clients(self) -> None:
        """Wait for the two servers with a health endpoint, and for the ServiceAccount that pods in `default` need."""
        for name in ("kube-controller-manager", "kube-scheduler"):
            page = f"https://{LOOPBACK}:{self._ports[name]}/healthz"
            await_ready(name, partial(answers, page, self._lines.certificate), self.servers)
        account = "/api/v1/namespaces/default/serviceaccounts/default"
        await_ready("the default ServiceAccount", lambda: self.serves(account), self.servers)

    def _start(self, *servers: Server) -> None:
        for server in servers:
            self.servers.append(server)
            server.start()

    def ready_nodes(self) -> set[str]:
        """Return the names of the nodes that are Ready."""
        nodes = self.door().list("/api/v1/nodes", version="0")["items"]
        return {node["metadata"]["name"] for node in nodes if is_ready_node(node)}


@cache
def _template() -> str:
    """Return node.yaml as JSON: it is parsed a thousand times, and parsing YAML is slow."""
    return json.dumps(yaml.safe_load(Path(__file__).with_name("node.yaml").read_text()))


def _node(name: str, tainted: bool) -> dict[str, Any]:
    """Build a Node as a kubelet would register it; if `tainted`, with the taint of fake nodes."""
    node: dict[str, Any] = json.loads(_template())
    now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
    node["metadata"]["name"] = node["metadata"]["labels"]["kubernetes.io/hostname"] = name
    node["status"]["addresses"] = [{"type": "Hostname", "address": name}]
    if tainted:
        node["spec"] = {"taints": [FAKE]}
    for condition in node["status"]["conditions"]:
        condition |= {"lastHeartbeatTime": now, "lastTransitionTime": now}
    return node
