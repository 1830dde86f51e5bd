"""A cluster of the mutex's own, with OpenShift's real kinds."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.wings.choice import MUTEX
from tests.chain.at_work import at_work
from tests.chain.mutex.stage import OLD, Stage
from tests.openshift import FakeMco


@pytest.fixture(scope="package")
def upgrading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Give a cluster with OpenShift's kinds, the upgrade mutex at work, and the old version."""
    folder = tmp_path_factory.mktemp("mutex")
    with at_work(folder, MUTEX) as (cluster, product):
        stage = Stage(cluster, product)
        stage.cvo.install(OLD)
        yield stage
        stage.admin.close()


@pytest.fixture
def stage(upgrading: Stage) -> Iterator[Stage]:
    """Give it with nothing on it of an earlier test."""
    upgrading.cvo.want(OLD)
    yield upgrading
    upgrading.clear()


@pytest.fixture
def mco(stage: Stage) -> Iterator[FakeMco]:
    """Give what upgrades nodes."""
    with FakeMco(stage.admin) as running:
        yield running
