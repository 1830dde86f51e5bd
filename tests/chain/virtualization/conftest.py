"""A cluster of virtual machines' own, with KubeVirt's real kinds and who plays it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.wings.choice import VIRTUALIZATION
from tests.chain.at_work import at_work
from tests.chain.virtualization.stage import Stage
from tests.fake_virt import FakeVirt


@pytest.fixture(scope="package")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give it with drains and migrations at work."""
    folder = tmp_path_factory.mktemp("virtualization")
    with at_work(folder, VIRTUALIZATION) as (cluster, product):
        stage = Stage(cluster, product)
        with FakeVirt(stage.admin):
            yield stage
        stage.admin.close()


@pytest.fixture
def stage(machines: Stage) -> Iterator[Stage]:
    """Give it with nothing on it of an earlier test."""
    yield machines
    machines.clear()
