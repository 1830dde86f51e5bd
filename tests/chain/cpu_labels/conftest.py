"""A cluster of a thousand nodes that runs the product with the CPU labels component."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import CPU_LABELS
from tests.chain.running_product import at_work
from tests.chain.cpu_labels.environment import NODES, Stage


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield the cluster with a HyperConverged without obsolete CPUs, and without a ConfigMap of CPU capabilities."""
    folder = tmp_path_factory.mktemp("cpu-labels")
    with at_work(folder, CPU_LABELS, nodes=NODES) as (cluster, product):
        stage = Stage(cluster, product)
        yield stage
        stage.admin.close()
