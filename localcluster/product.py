"""The product on a local cluster: applies its manifests; runs its functions and the local delivery as two processes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.function_server import Wiring, function_server
from localcluster.processes import Server, Startable, await_ready, free_port
from localcluster.readiness import is_ready
from localcluster.servers import DIRECT, LOOPBACK, ROOT
from localcluster.components import selection

INSTALLED = ROOT / "manifests" / "local"
V1ALPHA1 = ROOT / "manifests" / "v1alpha1" / "crd.yaml"
FLOW = (ROOT / "manifests" / "base", ROOT / "manifests" / "v1alpha1")
COMPONENTS = ROOT / "manifests" / "components"
MUTEX_KINDS = ("mutexrules", "mutextargets", "mutexrunconfigs")


def flow(wings: selection.Wings) -> tuple[Path, ...]:
    """Return the manifests of the Triggers and sources for these components."""
    beside = [wing for wing in (selection.CERTIFICATES, *selection.FOREIGN) if wing in wings]
    return (*FLOW, *(COMPONENTS / wing / "eventing.yaml" for wing in beside))


def install(cluster: LocalCluster, *, v1alpha1: bool = False, opted: selection.Wings = ()) -> None:
    """Apply the CRDs, namespaces and RBAC; return when the kinds are served.

    For components in `opted` that are not installed by default, also apply their CRDs, if any, and the RBAC of their
    sources.

    Args:
        v1alpha1: Whether to also apply the CRD of the oldest API version.
        opted: The installed components.
    """
    cluster.kubectl("apply", "--server-side", "-k", INSTALLED)
    if v1alpha1:
        cluster.kubectl("apply", "--server-side", "-f", V1ALPHA1)
    for wing in selection.FOREIGN:
        if wing in opted:
            cluster.kubectl("apply", "--server-side", "-k", COMPONENTS / wing / "local")
    cluster.await_kinds()
    for group in ("medik8s", "kubevirt"):  # an Established kind is served a little later; kubectl retries
        cluster.kubectl("get", f"nodemaintenances.nodemaintenance.{group}.io")
    for kind in MUTEX_KINDS if selection.MUTEX in opted else ():
        cluster.kubectl("get", kind, "-A")


class Product(Startable):
    """The functions and the local delivery, which replaces Knative; each can be stopped, killed and restarted.

    Both processes keep their ports across restarts.

    Args:
        cluster: A cluster with the manifests installed.
        directory: The directory for logs and databases.
        called_at: The URL at which the delivery calls the functions; by default their own.
        asking: The URL that replaces the API server's for the functions, for example a proxy's.
        flow: The manifests of the Triggers and sources.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        *,
        called_at: str = "",
        asking: str = "",
        flow: Sequence[Path] = FLOW,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        functions_port, delivery_port = free_port(), free_port()
        self.functions_url = f"http://{LOOPBACK}:{functions_port}"
        self.broker_url = f"http://{LOOPBACK}:{delivery_port}"
        self.journal = directory / "journal.db"
        self.database = directory / "delivery.db"
        self.functions_log = directory / "functions.log"
        self.delivery_log = directory / "delivery.log"
        self._called_at = called_at or self.functions_url
        identity = cluster.kubeconfig_for(access.service_account("functions"))
        if asking:
            identity = access.through(asking, identity, cluster.url, directory / "functions.kubeconfig")
        key = access.signing_key(cluster.directory)
        wiring = Wiring(self.broker_url, str(self.journal), self.function_url("record"), key)
        self.functions = function_server("functions", functions_port, self.functions_log, identity, wiring)
        self.delivery = self._delivery(cluster, delivery_port, flow)

    def _delivery(self, cluster: LocalCluster, port: int, flow: Sequence[Path]) -> Server:
        manifests = [word for path in flow for word in ("--manifests", path)]
        where = ("--functions", self._called_at, "--database", self.database, "--listen", f"{LOOPBACK}:{port}")
        environment = {
            **DIRECT,
            "KUBECONFIG": str(cluster.kubeconfig_for(access.service_account("sources"))),
            "SIGNING_KEY": access.signing_key(cluster.directory),
            "PODSOURCE_KUBECONFIG": str(cluster.kubeconfig_for(access.service_account("podsource"))),
            "CERTIFICATE_SOURCES_KUBECONFIG": str(
                cluster.kubeconfig_for(access.service_account("certificate-sources"))
            ),
        }
        command = [sys.executable, "-m", "eventing.local.broker", *manifests, *where]
        return Server("delivery", command, self.delivery_log, environment, ROOT)

    def function_url(self, name: str) -> str:
        """Return the address of one function."""
        return f"{self.functions_url}/{name}"

    @property
    def servers(self) -> list[Server]:
        """Return both processes."""
        return [self.functions, self.delivery]

    def _bring_up(self) -> None:
        """Start both processes concurrently; return when both are ready."""
        self.functions.start()
        self.delivery.start()
        self._await(self.functions, self.functions_url)
        self._await(self.delivery, self.broker_url)

    def stop(self) -> None:
        """Stop both processes gracefully, the delivery first."""
        self.delivery.stop()
        self.functions.stop()

    def start_functions(self) -> None:
        """Start the functions' server; return when it is ready."""
        self.functions.start()
        self._await(self.functions, self.functions_url)

    def start_delivery(self) -> None:
        """Start the delivery; return when it is ready."""
        self.delivery.start()
        self._await(self.delivery, self.broker_url)

    def kill(self) -> None:
        """Kill both processes at once; a graceful stop takes seconds."""
        self.kill_delivery()
        self.kill_functions()

    def kill_functions(self) -> None:
        """Kill the functions' server and its workers to simulate a crash."""
        self.functions.kill()

    def kill_delivery(self) -> None:
        """Kill the delivery to simulate a crash."""
        self.delivery.kill()

    def _await(self, server: Server, url: str) -> None:
        await_ready(server.name, lambda: is_ready(url), [server], seconds=30)


def start(cluster: LocalCluster, directory: Path) -> Product:
    """Start the functions and the delivery for a cluster; return when both are ready."""
    product = Product(cluster, directory)
    product.start()
    return product
