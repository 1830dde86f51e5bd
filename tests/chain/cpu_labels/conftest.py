"""Fixture for a cluster with a thousand nodes that runs the product with the component `cpu-labels`."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import CPU_LABELS
from tests.chain.cpu_labels.environment import NODE_COUNT, CpuLabelsEnvironment
from tests.chain.running_product import run_product


@pytest.fixture(scope="package")
def environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CpuLabelsEnvironment]:
    """Yield the cluster with a HyperConverged without obsolete CPUs, and without the CPU capabilities' ConfigMap."""
    folder = tmp_path_factory.mktemp("cpu-labels")
    with run_product(folder, CPU_LABELS, node_count=NODE_COUNT) as (cluster, product):
        cpu_environment = CpuLabelsEnvironment(cluster, product)
        yield cpu_environment
        cpu_environment.client.close()
