"""A cluster with the product at work on it, for as long as a folder's tests last."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.wings import foreign


@contextmanager
def at_work(folder: Path, *wings: str, nodes: int = 1) -> Iterator[tuple[LocalCluster, Product]]:
    """Give both, with all three NodeMaintenance APIs, these opt-in wings, and what they stand on."""
    with LocalCluster(folder / "servers", nodes=nodes) as cluster:
        foreign.install(cluster, wings)
        localproduct.install(cluster, v1alpha1=True, opted=wings)
        with Product(cluster, folder / "product", flow=localproduct.flow(wings)) as product:
            yield cluster, product
            product.kill()
