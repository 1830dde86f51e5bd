"""The product on a local cluster: applies its manifests, and runs the functions and the local delivery as processes."""

from __future__ import annotations

import sqlite3
import sys
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

from localcluster import access
from localcluster.cluster import LocalCluster
from localcluster.components import selection
from localcluster.function_server import FunctionConfig, build_function_server
from localcluster.processes import Server, Startable, reserve_port, wait_until_ready
from localcluster.readiness import is_ready
from localcluster.servers import LOOPBACK, NO_PROXY_LOCAL_ENV, ROOT

INSTALL_DIR = ROOT / "manifests" / "local"
V1ALPHA1_CRD = ROOT / "manifests" / "v1alpha1" / "crd.yaml"
EVENTING_MANIFESTS = (ROOT / "manifests" / "base", ROOT / "manifests" / "v1alpha1")
COMPONENTS_DIR = ROOT / "manifests" / "components"
MUTEX_RESOURCES = ("mutexrules", "mutextargets", "mutexrunconfigs")


def list_trigger_and_source_manifests(components: selection.Components) -> tuple[Path, ...]:
    """Return the manifests that contain the Triggers and sources of these components."""
    names = [name for name in (selection.CERTIFICATES, *selection.OPT_IN_COMPONENTS) if name in components]
    return (*EVENTING_MANIFESTS, *(COMPONENTS_DIR / name / "eventing.yaml" for name in names))


def install_manifests(
    cluster: LocalCluster, *, with_v1alpha1: bool = False, components: selection.Components = ()
) -> None:
    """Apply the CRDs, namespaces and RBAC objects; return when the API server serves the CRDs' kinds.

    For each optional component in `components`, also apply its CRDs, and the RBAC objects of its sources, if any.

    Args:
        with_v1alpha1: Whether to also apply the CRD of the oldest API version, v1alpha1.
        components: The installed components.
    """
    cluster.kubectl("apply", "--server-side", "-k", INSTALL_DIR)
    if with_v1alpha1:
        cluster.kubectl("apply", "--server-side", "-f", V1ALPHA1_CRD)
    for component in selection.CRD_PROJECTS:
        if component in components:
            cluster.kubectl("apply", "--server-side", "-k", COMPONENTS_DIR / component / "local")
    cluster.wait_for_crds()
    for group in ("medik8s", "kubevirt"):  # The API server serves an Established kind with a delay; kubectl retries.
        cluster.kubectl("get", f"nodemaintenances.nodemaintenance.{group}.io")
    for kind in MUTEX_RESOURCES if selection.MUTEX in components else ():
        cluster.kubectl("get", kind, "-A")


class Product(Startable):
    """The functions and the local delivery as two processes; each can be stopped, killed and restarted.

    Both processes keep their ports across restarts.

    Args:
        cluster: A cluster with the manifests installed.
        directory: The directory for logs and databases.
        subscriber_url: The URL at which the local delivery calls the functions; the default is the functions' own URL.
        api_url: The URL at which the functions call the API server, for example a proxy's; "" for the server's own URL.
        eventing_manifests: The manifests of the Triggers and sources.
    """

    def __init__(
        self,
        cluster: LocalCluster,
        directory: Path,
        *,
        subscriber_url: str = "",
        api_url: str = "",
        eventing_manifests: Sequence[Path] = EVENTING_MANIFESTS,
    ) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        functions_port, delivery_port = reserve_port(), reserve_port()
        self.functions_url = f"http://{LOOPBACK}:{functions_port}"
        self.broker_url = f"http://{LOOPBACK}:{delivery_port}"
        self.journal = directory / "journal.db"
        self.database = directory / "delivery.db"
        self.functions_log = directory / "functions.log"
        self.delivery_log = directory / "delivery.log"
        self._subscriber_url = subscriber_url or self.functions_url
        identity = cluster.ensure_kubeconfig(access.make_username("functions"))
        if api_url:
            identity = access.write_proxied_kubeconfig(
                api_url, identity, cluster.url, directory / "functions.kubeconfig"
            )
        key = access.ensure_event_signing_key(cluster.directory)
        config = FunctionConfig(self.broker_url, str(self.journal), self.get_function_url("record"), key)
        self.functions = build_function_server("functions", functions_port, self.functions_log, identity, config)
        self.delivery = self._build_delivery(cluster, delivery_port, eventing_manifests)

    def _build_delivery(self, cluster: LocalCluster, port: int, eventing_manifests: Sequence[Path]) -> Server:
        manifests = [argument for path in eventing_manifests for argument in ("--manifests", path)]
        options = ("--functions", self._subscriber_url, "--database", self.database, "--listen", f"{LOOPBACK}:{port}")
        environment = {
            **NO_PROXY_LOCAL_ENV,
            "KUBECONFIG": str(cluster.ensure_kubeconfig(access.make_username("sources"))),
            "SIGNING_KEY": access.ensure_event_signing_key(cluster.directory),
            "PODSOURCE_KUBECONFIG": str(cluster.ensure_kubeconfig(access.make_username("podsource"))),
            "CERTIFICATE_SOURCES_KUBECONFIG": str(
                cluster.ensure_kubeconfig(access.make_username("certificate-sources"))
            ),
        }
        command = [sys.executable, "-m", "eventing.local.broker", *manifests, *options]
        return Server("delivery", command, self.delivery_log, environment, ROOT)

    def get_function_url(self, name: str) -> str:
        """Return the URL of a function."""
        return f"{self.functions_url}/{name}"

    @property
    def servers(self) -> list[Server]:
        """Return the functions' process and the local delivery's process."""
        return [self.functions, self.delivery]

    def _start_and_wait(self) -> None:
        """Start both processes concurrently; return when both are ready."""
        self.functions.start()
        self.delivery.start()
        self._wait_until_ready(self.functions, self.functions_url)
        self._wait_until_ready(self.delivery, self.broker_url)

    def wait_until_delivered(self) -> None:
        """Wait until the local delivery's outbox is empty: all events have been delivered."""
        with closing(sqlite3.connect(f"file:{self.database}?mode=ro", uri=True)) as outbox:
            wait_until_ready(
                "an empty outbox",
                lambda: outbox.execute("SELECT count(*) FROM delivery").fetchone() == (0,),
                self.servers,
            )

    def stop(self) -> None:
        """Stop both processes gracefully, the local delivery first."""
        self.delivery.stop()
        self.functions.stop()

    def start_functions(self) -> None:
        """Start the functions' server; return when it is ready."""
        self.functions.start()
        self._wait_until_ready(self.functions, self.functions_url)

    def start_delivery(self) -> None:
        """Start the local delivery; return when it is ready."""
        self.delivery.start()
        self._wait_until_ready(self.delivery, self.broker_url)

    def kill(self) -> None:
        """Kill both processes, because a graceful stop takes seconds."""
        self.kill_delivery()
        self.kill_functions()

    def kill_functions(self) -> None:
        """Kill the functions' server and its workers to simulate a crash."""
        self.functions.kill()

    def kill_delivery(self) -> None:
        """Kill the local delivery to simulate a crash."""
        self.delivery.kill()

    def _wait_until_ready(self, server: Server, url: str) -> None:
        wait_until_ready(server.name, lambda: is_ready(url), [server], timeout=30)


def start_product(cluster: LocalCluster, directory: Path) -> Product:
    """Start the functions and the local delivery for a cluster; return when both are ready."""
    product = Product(cluster, directory)
    product.start()
    return product
