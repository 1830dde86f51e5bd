"""Runs another operator that serves the resource NodeMaintenance as a drainer, on its own cluster.

The operator gets an administrator's kubeconfig, and the namespaces and the certificate that such operators require. Its
webhooks are not registered. Before the first round, the operator must drain an empty node, so that its startup is
complete, like that of the other drainers.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases import DrainCase
from bench.drainers import Drainer, ProductDrainer
from bench.observer_process import ROOT, ObserverProcess
from bench.rig import Rig
from kube.maintenance import leases
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED, get_phase
from kube.paths import Object
from localcluster import access, delivery_engines
from localcluster.cluster import LocalCluster
from localcluster.errors import LocalClusterError
from localcluster.processes import Server, wait_until_ready
from localcluster.servers import NO_PROXY_LOCAL_ENV
from localcluster.up import state_directory

LOG_FILE = ROOT / "build" / "operator.log"
"""The log of the operator's latest run; the file remains after the cluster has been stopped."""
NAMESPACE = "operator-system"
CERTIFICATES_DIR = Path("k8s-webhook-server") / "serving-certs"
"""The directory below the temporary directory in which controller-runtime expects `tls.crt` and `tls.key`."""
TIMEOUT_SECONDS = 60.0
"""Timeout for draining an empty node, which includes the operator's startup."""
_group, _version = MEDIK8S.api_version.split("/")
RESOURCE = f"nodemaintenances.{_version}.{_group}"


@dataclass(frozen=True)
class Operator:
    """The operator to run: its command line, and the path of its CRD."""

    command: tuple[str, ...]
    crd: Path

    def __str__(self) -> str:
        return f"OPERATOR={shlex.join(self.command)}"


def parse_operator(command: str, crd: str) -> Operator | None:
    """Parse OPERATOR, a program with its arguments, and OPERATOR_CRD, a path; return None if both are unset.

    Raises `LocalClusterError` if only one of them is set, or if a file does not exist.
    """
    if not command and not crd:
        return None
    if not command or not crd:
        raise LocalClusterError(
            "only one of OPERATOR and OPERATOR_CRD is set: set both, such as "
            "OPERATOR=/path/to/program OPERATOR_CRD=/path/to/crd.yaml"
        )
    try:
        program, *arguments = shlex.split(command)
    except ValueError as error:
        raise LocalClusterError(f"OPERATOR={command}: {error}: quote it as for a shell") from None
    program_path = shutil.which(program)
    if program_path is None:
        raise LocalClusterError(
            f"OPERATOR={command}: program not found or not executable: set the path of a built operator"
        )
    if not Path(crd).is_file():
        raise LocalClusterError(
            f"OPERATOR_CRD={crd}: file not found: set the file with the operator's CustomResourceDefinition"
        )
    return Operator((str(Path(program_path).absolute()), *arguments), Path(crd))


@contextmanager
def start_operator(
    operator: Operator | None, engine: str, nodes: int, directory: Path
) -> Iterator[list[tuple[Rig, Drainer]]]:
    """Yield the operator as a drainer, with its own cluster, during the `with` block; yield [] if `operator` is None.

    Raises `LocalClusterError` if the CRD is rejected, or if the operator does not drain an empty node.

    Args:
        operator: The operator to run.
        engine: The engine in whose table rows the operator is shown.
        nodes: The number of nodes.
        directory: A directory that does not exist yet.
    """
    if operator is None:
        yield []
        return
    with delivery_engines.get_engine("local").create_cluster(directory / "servers", nodes) as cluster:
        access.write_secret(directory / state_directory.KUBECONFIG_FILE, cluster.kubeconfig.read_text())
        install_crd(cluster, operator.crd)
        with (
            run_operator(cluster, operator, f"node-{nodes}") as server,
            ObserverProcess(cluster.kubeconfig) as observer,
        ):
            rig = Rig(engine, directory, cluster.get_client(), observer)
            yield [(rig, OperatorDrainer(rig, operator, server))]


def install_crd(cluster: LocalCluster, crd: Path) -> None:
    """Apply the CRD, wait until the API server serves its kind, and create the operator's namespaces.

    Raises `LocalClusterError` if the API server rejects the CRD or does not serve its kind.
    """
    established = ("wait", "--for=condition=Established", "--timeout=10s", f"crd/nodemaintenances.{_group}")
    for arguments in (("apply", "--server-side", "-f", crd), established, ("get", RESOURCE)):
        completed = cluster.kubectl(*arguments, check=False)
        if completed.returncode:
            reason = " ".join(completed.stderr.split())
            raise LocalClusterError(
                f"OPERATOR_CRD={crd}: {reason}: set the file with the CustomResourceDefinition of {RESOURCE}"
            )
    for name in (NAMESPACE, leases.NAMESPACE):
        cluster.get_client().create("/api/v1/namespaces", {"metadata": {"name": name}})


@contextmanager
def run_operator(cluster: LocalCluster, operator: Operator, node: str) -> Iterator[Server]:
    """Yield the operator's process after the operator has drained and restored an empty node, whose name is `node`.

    Raises `LocalClusterError` if the operator does not do this within `TIMEOUT_SECONDS`.
    """
    LOG_FILE.parent.mkdir(exist_ok=True)
    LOG_FILE.write_text("")
    server = Server("operator", operator.command, LOG_FILE, build_environment(cluster))
    server.start()
    try:
        _run_first_drain(cluster, operator, server, node)
        yield server
    finally:
        server.stop()


def build_environment(cluster: LocalCluster) -> dict[str, str]:
    """Return the operator's environment variables; put its certificate below TMPDIR, and use Go's default GOGC."""
    temp_dir = cluster.directory / "operator"
    certificates_dir = temp_dir / CERTIFICATES_DIR
    certificates_dir.mkdir(parents=True, exist_ok=True)
    for kind in ("crt", "key"):  # Any key pair is sufficient, because the API server does not call the webhooks.
        shutil.copy(cluster.directory / "pki" / f"apiserver.{kind}", certificates_dir / f"tls.{kind}")
    return {
        **NO_PROXY_LOCAL_ENV,
        "GOGC": os.environ.get("GOGC", "100"),
        "TMPDIR": str(temp_dir),
        "KUBECONFIG": str(cluster.kubeconfig),
        "OPERATOR_NAMESPACE": NAMESPACE,
        "POD_NAMESPACE": NAMESPACE,
        "POD_NAME": "operator-0",
        "WATCH_NAMESPACE": "",
        "ENABLE_WEBHOOKS": "false",
    }


class OperatorDrainer(ProductDrainer):
    """Creates a NodeMaintenance for each node, as `ProductDrainer` does, and the other operator drains the nodes."""

    name = "operator"

    def __init__(self, rig: Rig, operator: Operator, server: Server) -> None:
        super().__init__(rig.client, rig.observer)
        self._operator, self._server = operator, server

    def drain(self, case: DrainCase, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Drainer`). Raises `LocalClusterError` instead of `TimeoutError`."""
        try:
            return super().drain(case, nodes, pods)
        except TimeoutError as error:
            raise _build_error(self._operator, self._server, f"{case.name}: {error}") from None


def _run_first_drain(cluster: LocalCluster, operator: Operator, server: Server, node: str) -> None:
    """Make the operator drain and restore an empty node. Raises `LocalClusterError` if the operator fails."""
    client, path = cluster.get_client(), f"{MEDIK8S.path}/first"
    body = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "first"}}
    client.create(MEDIK8S.path, {**body, "spec": {"nodeName": node, "reason": "benchmark"}})
    try:
        wait_until_ready("the operator", lambda: get_phase(client.get(path)) == SUCCEEDED, [server], TIMEOUT_SECONDS)
        client.run(client.api.request("DELETE", path))
        wait_until_ready("the operator", lambda: not cluster.is_served(path), [server], TIMEOUT_SECONDS)
    except LocalClusterError:
        reason = f"the operator did not drain an empty node within {TIMEOUT_SECONDS:.0f} s"
        raise _build_error(operator, server, reason) from None


def _build_error(operator: Operator, server: Server, reason: str) -> LocalClusterError:
    problem = reason if server.is_alive else "the operator exited"
    remedy = f"set a program that serves {RESOURCE}, with the arguments that it needs"
    return LocalClusterError(f"{operator}: {problem}: {remedy}; {server.describe_log_tail()}")
