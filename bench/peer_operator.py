"""Another operator that serves NodeMaintenance, as a drainer of its own, on a cluster that meets its requirements.

The operator gets an administrator's kubeconfig, and the namespaces and the certificate that such operators expect. Its
webhooks are not registered. Before the first round it must drain an empty node, so that it is as warm as the other
drainers.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases import Case
from bench.rig import Rig
from bench.observer_process import ROOT, Watching
from bench.drainers import Ours, Way
from kube.maintenance import leases
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED, phase
from kube.paths import Object
from localcluster import access, delivery_engines
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, await_ready
from localcluster.servers import DIRECT
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory

LOG = ROOT / "build" / "operator.log"
"""The operator's output on its latest cluster; the file is kept when that cluster is stopped."""
NAMESPACE = "operator-system"
CERTIFICATES = Path("k8s-webhook-server") / "serving-certs"
"""The directory in which controller-runtime expects `tls.crt` and `tls.key`, below the temporary directory."""
SECONDS = 60.0
"""Timeout for draining an empty node, including the operator's startup."""
_group, _version = MEDIK8S.api_version.split("/")
KIND = f"nodemaintenances.{_version}.{_group}"


@dataclass(frozen=True)
class Operator:
    """The operator to run: its command line, and the file with its CRD."""

    command: tuple[str, ...]
    crd: Path

    def __str__(self) -> str:
        return f"OPERATOR={shlex.join(self.command)}"


def named(line: str, crd: str) -> Operator | None:
    """Return the operator of the variables OPERATOR (a program and its arguments) and OPERATOR_CRD; None without both.

    Raises `LocalClusterError` if only one is set, or if a file does not exist.
    """
    if not line and not crd:
        return None
    if not line or not crd:
        raise LocalClusterError(
            "OPERATOR=/path/to/program and OPERATOR_CRD=/path/to/crd.yaml belong together; give both"
        )
    try:
        program, *arguments = shlex.split(line)
    except ValueError as error:
        raise LocalClusterError(f"OPERATOR={line}: {error}; quote it as for a shell") from None
    found = shutil.which(program)
    if found is None:
        raise LocalClusterError(f"OPERATOR={line} is no program that can be run: give the path of a built operator")
    if not Path(crd).is_file():
        raise LocalClusterError(f"OPERATOR_CRD={crd} is no file: give the CustomResourceDefinition of the operator")
    return Operator((str(Path(found).absolute()), *arguments), Path(crd))


@contextmanager
def up(wanted: Operator | None, engine: str, nodes: int, directory: Path) -> Iterator[list[tuple[Rig, Way]]]:
    """Yield the operator as a drainer with its cluster while the block runs; yield nothing if `wanted` is None.

    Raises `LocalClusterError` if the CRD is rejected, or if the operator does not drain an empty node.

    Args:
        wanted: The operator.
        engine: The engine whose rows list the operator.
        nodes: The number of nodes.
        directory: A directory that does not exist yet.
    """
    if wanted is None:
        yield []
        return
    with delivery_engines.named("local").cluster(directory / "servers", nodes) as cluster:
        access.write_secret(directory / state_directory.KUBECONFIG, cluster.kubeconfig.read_text())
        install(cluster, wanted.crd)
        with serving(cluster, wanted, f"node-{nodes}") as server, Watching(cluster.kubeconfig) as watching:
            rig = Rig(engine, directory, cluster.door(), watching)
            yield [(rig, Served(rig, wanted, server))]


def install(cluster: LocalCluster, crd: Path) -> None:
    """Apply the CRD, wait until its kind is served, and create the namespaces. Raises `LocalClusterError`."""
    established = ("wait", "--for=condition=Established", "--timeout=10s", f"crd/nodemaintenances.{_group}")
    for words in (("apply", "--server-side", "-f", crd), established, ("get", KIND)):
        done = cluster.kubectl(*words, check=False)
        if done.returncode:
            said = " ".join(done.stderr.split())
            raise LocalClusterError(f"OPERATOR_CRD={crd}: {said}; give the CustomResourceDefinition of {KIND}")
    for name in (NAMESPACE, leases.NAMESPACE):
        cluster.door().create("/api/v1/namespaces", {"metadata": {"name": name}})


@contextmanager
def serving(cluster: LocalCluster, wanted: Operator, node: str) -> Iterator[Server]:
    """Yield the operator's process once it has drained this empty node and restored it. Raises `LocalClusterError`."""
    LOG.parent.mkdir(exist_ok=True)
    LOG.write_text("")
    server = Server("operator", wanted.command, LOG, environment(cluster))
    server.start()
    try:
        _await(cluster, wanted, server, node)
        yield server
    finally:
        server.stop()


def environment(cluster: LocalCluster) -> dict[str, str]:
    """Return an operator's environment: its certificate is below TMPDIR, and Go's garbage collection is not tuned."""
    temporary = cluster.directory / "operator"
    certificates = temporary / CERTIFICATES
    certificates.mkdir(parents=True, exist_ok=True)
    for kind in ("crt", "key"):  # any key pair works, since the webhooks are not called
        shutil.copy(cluster.directory / "pki" / f"apiserver.{kind}", certificates / f"tls.{kind}")
    return {
        **DIRECT,
        "GOGC": os.environ.get("GOGC", "100"),
        "TMPDIR": str(temporary),
        "KUBECONFIG": str(cluster.kubeconfig),
        "OPERATOR_NAMESPACE": NAMESPACE,
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": "operator-0",
        "WATCH_NAMESPACE": "",
        "ENABLE_WEBHOOKS": "false",
    }


class Served(Ours):
    """Creates a NodeMaintenance for each node, as for the product; the operator drains the nodes."""

    name = "operator"

    def __init__(self, rig: Rig, wanted: Operator, server: Server) -> None:
        super().__init__(rig.cluster, rig.watching)
        self._wanted, self._server = wanted, server

    def drain(self, case: Case, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Way`). Raises `LocalClusterError` after `bench.observer_process.PATIENCE`."""
        try:
            return super().drain(case, nodes, pods)
        except TimeoutError as error:
            raise _trouble(self._wanted, self._server, f"{case.name}: {error}") from None


def _await(cluster: LocalCluster, wanted: Operator, server: Server, node: str) -> None:
    """Make the operator drain a node and restore it."""
    door, path = cluster.door(), f"{MEDIK8S.path}/first"
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "first"}}
    door.create(MEDIK8S.path, {**body, "spec": {"nodeName": node, "reason": "trial"}})
    try:
        await_ready("the operator", lambda: phase(door.get(path)) == SUCCEEDED, [server], SECONDS)
        door.run(door.api.request("DELETE", path))
        await_ready("the operator", lambda: not cluster.serves(path), [server], SECONDS)
    except LocalClusterError:
        raise _trouble(wanted, server, f"an empty node was not drained within {SECONDS:.0f} s") from None


def _trouble(wanted: Operator, server: Server, what: str) -> LocalClusterError:
    why = what if server.alive else "it ended"
    remedy = f"give a program that serves {KIND}, with the arguments it needs"
    return LocalClusterError(f"{wanted}: {why}; {remedy}; {server.tail()}")
