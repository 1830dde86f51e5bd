"""The engines that `DELIVERY` selects: each one's binaries, its API server flags, and how it installs the product.

Importing this module is cheap: an engine's modules are imported when the engine is selected, and the product's modules
when the product is started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localcluster.components.selection import DEFAULT_COMPONENTS, Components
from localcluster.errors import LocalClusterError
from localcluster.processes import Server
from localcluster.programs import build
from localcluster.programs.build import Toolset

if TYPE_CHECKING:
    from localcluster.addons import Addon
    from localcluster.cluster import LocalCluster
    from localcluster.knative.pod_install import PodProduct
    from localcluster.product import Product
    from localcluster.rabbitmq.product import RabbitProduct


class RunningProduct(Protocol):
    """The installed product while it runs.

    Attributes:
        broker_url: The URL at which the broker accepts events.
        functions_url: The base URL of the functions, with their names as paths; "" if each has its own address.
        journal: The file that stores the events.
    """

    broker_url: str
    functions_url: str
    journal: Path

    def get_function_url(self, name: str) -> str:
        """Return the URL of a function."""

    @property
    def servers(self) -> Sequence[Server]:
        """Return all processes of the product."""


@dataclass(frozen=True)
class Engine:
    """An engine that delivers the events.

    Attributes:
        create_product: Installs the given components on a cluster; returns a context manager that starts the product
            and waits until it is ready.
        toolsets: The toolsets to build in addition to the Kubernetes servers.
        apiserver_flags: Additional flags of the API server.
        check: Checks the host's requirements before anything is started; raises `LocalClusterError` if one is missing.
        addons: The add-ons to install as pods; an engine with add-ons requires real nodes.
    """

    create_product: Callable[[LocalCluster, Path, Components], AbstractContextManager[RunningProduct]]
    toolsets: tuple[Toolset, ...] = ()
    apiserver_flags: tuple[str, ...] = ()
    check: Callable[[], None] = lambda: None
    addons: Sequence[Addon] = ()

    def build(self, components: Components = DEFAULT_COMPONENTS, with_real_nodes: bool = False) -> None:
        """Build missing binaries, including those of real nodes if `with_real_nodes`; fetch the components' CRDs."""
        build.build_all([build.KUBERNETES, *self.toolsets, *([build.NODES] if with_real_nodes else [])])
        from localcluster.components import crds

        crds.fetch_crds(components)

    def create_cluster(self, directory: Path, nodes: int, real_nodes: int = 0) -> LocalCluster:
        """Return a cluster for this engine that supports this number of real nodes; it is not started yet."""
        from localcluster.cluster import LocalCluster

        return LocalCluster(directory, nodes, flags=self.apiserver_flags, real_nodes=real_nodes)

    def install_product(
        self, cluster: LocalCluster, directory: Path, components: Components = DEFAULT_COMPONENTS
    ) -> AbstractContextManager[RunningProduct]:
        """Install the CRDs that these components need, then the product; return the product, not yet started."""
        from localcluster.components import crds

        crds.install_crds(cluster, components)
        return self.create_product(cluster, directory, components)


def _build_local_engine() -> Engine:
    def create_product(cluster: LocalCluster, directory: Path, components: Components) -> Product:
        from localcluster import product

        product.install_manifests(cluster, components=components)
        return product.Product(
            cluster, directory, eventing_manifests=product.list_trigger_and_source_manifests(components)
        )

    return Engine(create_product)


def _build_knative_engine() -> Engine:
    from localcluster.knative import install, planes
    from localcluster.knative.product import KnativeProduct

    return Engine(KnativeProduct, (build.KNATIVE,), install.APISERVER_FLAGS, planes.check_nginx)


def _build_rabbitmq_engine() -> Engine:
    from localcluster.rabbitmq import server

    def create_product(cluster: LocalCluster, directory: Path, components: Components) -> RabbitProduct:
        from localcluster import product
        from localcluster.rabbitmq.product import RabbitProduct

        product.install_manifests(cluster, with_v1alpha1=True, components=components)
        return RabbitProduct(cluster, directory, components)

    return Engine(create_product, (build.RABBITMQ,), check=server.check_programs)


def _build_pods_engine() -> Engine:
    from localcluster.addons import APISERVER_FLAGS, EVENTING_ADDON

    return Engine(_build_pod_product_factory("plain"), (build.KNATIVE,), APISERVER_FLAGS, addons=(EVENTING_ADDON,))


def _build_serving_engine() -> Engine:
    from localcluster.addons import APISERVER_FLAGS, EVENTING_ADDON, SERVING_ADDONS

    toolsets = (build.KNATIVE, build.SERVING, build.TRAEFIK)
    addons = (EVENTING_ADDON, *SERVING_ADDONS)
    return Engine(_build_pod_product_factory("knative"), toolsets, APISERVER_FLAGS, addons=addons)


def _build_pod_product_factory(overlay: str) -> Callable[[LocalCluster, Path, Components], PodProduct]:
    """Return a `create_product` callable that installs the product with the overlay of this name."""

    def create_product(cluster: LocalCluster, directory: Path, components: Components) -> PodProduct:
        from localcluster.knative.pod_install import PodProduct
        from localcluster.servers import ROOT

        return PodProduct(cluster, directory, components, ROOT / "manifests" / "overlays" / overlay)

    return create_product


ENGINES = {
    "local": _build_local_engine,
    "knative": _build_knative_engine,
    "rabbitmq": _build_rabbitmq_engine,
    "pods": _build_pods_engine,
    "serving": _build_serving_engine,
}


def get_engine(name: str) -> Engine:
    """Return the engine with this name."""
    if name not in ENGINES:
        raise LocalClusterError(f"DELIVERY={name}: unsupported value: use one of {', '.join(ENGINES)}")
    return ENGINES[name]()
