"""Helper that runs the product on a local cluster, for the fixtures of a test package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.components import crds
from localcluster.product import Product


@contextmanager
def run_product(directory: Path, *components: str, node_count: int = 1) -> Iterator[tuple[LocalCluster, Product]]:
    """Yield a cluster and the product running on it, with all three NodeMaintenance APIs and the given components.

    Also installs the CRDs of other projects that the components need.
    """
    with LocalCluster(directory / "servers", nodes=node_count) as cluster:
        crds.install_crds(cluster, components)
        localproduct.install_manifests(cluster, with_v1alpha1=True, components=components)
        with Product(
            cluster,
            directory / "product",
            eventing_manifests=localproduct.list_trigger_and_source_manifests(components),
        ) as product:
            yield cluster, product
            product.kill()
