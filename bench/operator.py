"""An operator that serves the same NodeMaintenance, as one more way, on a cluster of its own with what it expects.

It gets an administrator's kubeconfig, the namespaces and the certificate that such programs look for, and no webhook is
registered. Before the first round it has to drain an empty node, so that it is as warm as all the others.
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
from bench.stopwatch import ROOT, Watching
from bench.ways import Ours, Way
from kube.maintenance import leases
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED, phase
from kube.paths import Object
from localcluster import access, deliveries
from localcluster.cluster import LocalCluster
from localcluster.processes import Server, await_ready
from localcluster.servers import DIRECT
from localcluster.trouble import LocalClusterError
from localcluster.up import folder

LOG = ROOT / "build" / "operator.log"
"""What it said on its latest cluster; it stays when that cluster is gone."""
NAMESPACE = "operator-system"
CERTIFICATES = Path("k8s-webhook-server") / "serving-certs"
"""Where controller-runtime looks for `tls.crt` and `tls.key`, below the directory for temporary files."""
SECONDS = 60.0
"""For the drain of an empty node, its own start included."""
_group, _version = MEDIK8S.api_version.split("/")
KIND = f"nodemaintenances.{_version}.{_group}"


@dataclass(frozen=True)
class Operator:
    """What is to be run: the words of its command line, and the file with its CRD."""

    command: tuple[str, ...]
    crd: Path

    def __str__(self) -> str:
        return f"OPERATOR={shlex.join(self.command)}"


def named(line: str, crd: str) -> Operator | None:
    """What the variables OPERATOR (a program, arguments may follow) and OPERATOR_CRD name; None without both.

    Raises `LocalClusterError` when one is missing, or names what is not there.
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
    """Give the operator as a way, and where it drains, while the block runs; nothing where none is wanted.

    In: the engine in whose rows it is listed, and an absent folder. Raises `LocalClusterError` when the CRD is refused,
    or the operator does not drain an empty node.
    """
    if wanted is None:
        yield []
        return
    with deliveries.named("local").cluster(directory / "servers", nodes) as cluster:
        access.write_secret(directory / folder.KUBECONFIG, cluster.kubeconfig.read_text())
        install(cluster, wanted.crd)
        with serving(cluster, wanted, f"node-{nodes}") as server, Watching(cluster.kubeconfig) as watching:
            rig = Rig(engine, directory, cluster.door(), watching)
            yield [(rig, Served(rig, wanted, server))]


def install(cluster: LocalCluster, crd: Path) -> None:
    """Apply the CRD and wait until its kind is served; make the namespaces. Raises `LocalClusterError`."""
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
    """Give its process, once it has drained that empty node and given it back. Raises `LocalClusterError`."""
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
    """What an operator finds in its environment; its certificate lies below TMPDIR. It collects garbage as it likes."""
    temporary = cluster.directory / "operator"
    certificates = temporary / CERTIFICATES
    certificates.mkdir(parents=True, exist_ok=True)
    for kind in ("crt", "key"):  # any pair will do, since nobody calls
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
    """A NodeMaintenance for each node, as ours; the operator drains."""

    name = "operator"

    def __init__(self, rig: Rig, wanted: Operator, server: Server) -> None:
        super().__init__(rig.cluster, rig.watching)
        self._wanted, self._server = wanted, server

    def drain(self, case: Case, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """See `Way`. Raises `LocalClusterError` when it takes longer than `bench.stopwatch.PATIENCE`."""
        try:
            return super().drain(case, nodes, pods)
        except TimeoutError as error:
            raise _trouble(self._wanted, self._server, f"{case.name}: {error}") from None


def _await(cluster: LocalCluster, wanted: Operator, server: Server, node: str) -> None:
    """Have the operator drain a node and give it back."""
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
