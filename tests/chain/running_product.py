"""A local cluster that runs the product while the tests of one package run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.components import crds


@contextmanager
def at_work(folder: Path, *wings: str, nodes: int = 1) -> Iterator[tuple[LocalCluster, Product]]:
    """Yield a cluster and the product on it, with all three NodeMaintenance APIs and the given components.

    Also installs the CRDs of other projects that these components need.
    """
    with LocalCluster(folder / "servers", nodes=nodes) as cluster:
        crds.install(cluster, wings)
        localproduct.install(cluster, v1alpha1=True, opted=wings)
        with Product(cluster, folder / "product", flow=localproduct.flow(wings)) as product:
            yield cluster, product
            product.kill()
