"""The engines that `DELIVERY` can name: the programs each needs, its API server flags, and how it installs the product.

Importing this module is cheap: each engine is imported only when it is selected, and the product only when it is
started.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from localcluster.processes import Server
from localcluster.programs import build
from localcluster.programs.build import Toolset
from localcluster.errors import LocalClusterError
from localcluster.components.selection import DEFAULT, Wings

if TYPE_CHECKING:
    from localcluster.cluster import LocalCluster
    from localcluster.product import Product
    from localcluster.rabbitmq.product import RabbitProduct


class Running(Protocol):
    """The installed product.

    Attributes:
        broker_url: The URL at which the broker accepts events.
        functions_url: The base URL of the functions, each below its name; "" if each function has its own address.
        journal: The file that stores the events.
    """

    broker_url: str
    functions_url: str
    journal: Path

    def function_url(self, name: str) -> str:
        """Return the address of one function."""

    @property
    def servers(self) -> Sequence[Server]:
        """Return all processes of the product."""


@dataclass(frozen=True)
class Delivery:
    """An engine that delivers the events.

    Attributes:
        install: Installs the given components on a cluster; returns a context manager that starts the product and waits
            until it is ready.
        tools: The toolsets to build in addition to the Kubernetes servers.
        flags: Additional flags of the API server.
        check: Raises an error, before anything is started, for a problem that the user must fix.
    """

    install: Callable[[LocalCluster, Path, Wings], AbstractContextManager[Running]]
    tools: tuple[Toolset, ...] = ()
    flags: tuple[str, ...] = ()
    check: Callable[[], None] = lambda: None

    def build(self, wings: Wings = DEFAULT, real: bool = False) -> None:
        """Build the missing programs, also those of real nodes if `real`, and fetch the CRDs of these components."""
        build.build_all([build.KUBERNETES, *self.tools, *([build.NODES] if real else [])])
        from localcluster.components import crds

        crds.fetch(wings)

    def cluster(self, directory: Path, nodes: int, real: int = 0) -> LocalCluster:
        """Return a cluster for this engine, with support for this number of real nodes."""
        from localcluster.cluster import LocalCluster

        return LocalCluster(directory, nodes, flags=self.flags, real=real)

    def open(self, cluster: LocalCluster, directory: Path, wings: Wings = DEFAULT) -> AbstractContextManager[Running]:
        """Install the CRDs that these components need, then the product; return the product, not yet started."""
        from localcluster.components import crds

        crds.install(cluster, wings)
        return self.install(cluster, directory, wings)


def _local() -> Delivery:
    def installed(cluster: LocalCluster, directory: Path, wings: Wings) -> Product:
        from localcluster import product

        product.install(cluster, opted=wings)
        return product.Product(cluster, directory, flow=product.flow(wings))

    return Delivery(installed)


def _knative() -> Delivery:
    from localcluster.knative import install, proxy
    from localcluster.knative.product import KnativeProduct

    return Delivery(KnativeProduct, (build.KNATIVE,), install.APISERVER_FLAGS, proxy.check)


def _rabbitmq() -> Delivery:
    from localcluster.rabbitmq import server

    def installed(cluster: LocalCluster, directory: Path, wings: Wings) -> RabbitProduct:
        from localcluster import product
        from localcluster.rabbitmq.product import RabbitProduct

        product.install(cluster, v1alpha1=True, opted=wings)
        return RabbitProduct(cluster, directory, wings)

    return Delivery(installed, (build.RABBITMQ,), check=server.check)


DELIVERIES = {"local": _local, "knative": _knative, "rabbitmq": _rabbitmq}


def named(name: str) -> Delivery:
    """Return the engine with this name."""
    if name not in DELIVERIES:
        raise LocalClusterError(f"DELIVERY={name} is not known; allowed: {', '.join(DELIVERIES)}")
    return DELIVERIES[name]()
