"""What DELIVERY can be: which programs each needs, how its API server is started, and how the product is put on it.

An engine is imported where it is chosen, and the product where it is started.
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
from localcluster.trouble import LocalClusterError
from localcluster.wings.choice import DEFAULT, Wings

if TYPE_CHECKING:
    from localcluster.cluster import LocalCluster
    from localcluster.product import Product
    from localcluster.rabbitmq.product import RabbitProduct


class Running(Protocol):
    """The product at work.

    Attributes:
        broker_url: where events are taken.
        functions_url: below which functions answer by their names; "" when each has an address of its own.
        journal: the file in which events are kept.
    """

    broker_url: str
    functions_url: str
    journal: Path

    def function_url(self, name: str) -> str:
        """Give the address where one function answers."""

    @property
    def servers(self) -> Sequence[Server]:
        """Give every process that belongs to it."""


@dataclass(frozen=True)
class Delivery:
    """One engine that carries the events.

    Attributes:
        install: installs these wings on a cluster and gives the product, not started; entered, it is ready.
        tools: what is built for it beside the Kubernetes servers.
        flags: what its API server gets beside the usual.
        check: raises what a person has to mend before anything is started.
    """

    install: Callable[[LocalCluster, Path, Wings], AbstractContextManager[Running]]
    tools: tuple[Toolset, ...] = ()
    flags: tuple[str, ...] = ()
    check: Callable[[], None] = lambda: None

    def build(self, wings: Wings = DEFAULT, real: bool = False) -> None:
        """Build what is not built yet, for real nodes, too, and fetch what these wings stand on."""
        build.build_all([build.KUBERNETES, *self.tools, *([build.NODES] if real else [])])
        from localcluster.wings import foreign

        foreign.fetch(wings)

    def cluster(self, directory: Path, nodes: int, real: int = 0) -> LocalCluster:
        """Give a cluster that this engine can work on, ready for so many real nodes beside the others."""
        from localcluster.cluster import LocalCluster

        return LocalCluster(directory, nodes, flags=self.flags, real=real)

    def open(self, cluster: LocalCluster, directory: Path, wings: Wings = DEFAULT) -> AbstractContextManager[Running]:
        """Install the product with these wings, before it what they stand on; gives it, not started."""
        from localcluster.wings import foreign

        foreign.install(cluster, wings)
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
    """Give the delivery of that name."""
    if name not in DELIVERIES:
        raise LocalClusterError(f"DELIVERY={name} is not known; allowed: {', '.join(DELIVERIES)}")
    return DELIVERIES[name]()
