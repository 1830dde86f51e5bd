"""A cluster of a thousand nodes with the labels of CPUs at work on it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.wings.choice import CPU_LABELS
from tests.chain.at_work import at_work
from tests.chain.cpu_labels.stage import NODES, Stage


@pytest.fixture(scope="package")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give it, with a HyperConverged that names no obsolete CPU, and nothing told of what nodes offer."""
    folder = tmp_path_factory.mktemp("cpu-labels")
    with at_work(folder, CPU_LABELS, nodes=NODES) as (cluster, product):
        stage = Stage(cluster, product)
        yield stage
        stage.admin.close()
