"""Fixtures with a separate cluster for virtual machines, with KubeVirt's real CRDs and a simulation of KubeVirt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import VIRTUALIZATION
from tests.chain.running_product import at_work
from tests.chain.virtualization.environment import Stage
from tests.fake_virt import FakeVirt


@pytest.fixture(scope="package")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield the environment with virtualization enabled."""
    folder = tmp_path_factory.mktemp("virtualization")
    with at_work(folder, VIRTUALIZATION) as (cluster, product):
        stage = Stage(cluster, product)
        with FakeVirt(stage.admin):
            yield stage
        stage.admin.close()


@pytest.fixture
def stage(machines: Stage) -> Iterator[Stage]:
    """Yield the environment without objects of earlier tests."""
    yield machines
    machines.clear()
