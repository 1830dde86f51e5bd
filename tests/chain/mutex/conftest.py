"""Fixtures with a separate cluster for the upgrade mutex, with OpenShift's real CRDs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import MUTEX
from tests.chain.running_product import at_work
from tests.chain.mutex.environment import OLD, Stage
from tests.openshift import FakeMco


@pytest.fixture(scope="package")
def upgrading(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    """Yield a cluster with OpenShift's CRDs, the running upgrade mutex, and the old version."""
    folder = tmp_path_factory.mktemp("mutex")
    with at_work(folder, MUTEX) as (cluster, product):
        stage = Stage(cluster, product)
        stage.cvo.install(OLD)
        yield stage
        stage.admin.close()


@pytest.fixture
def stage(upgrading: Stage) -> Iterator[Stage]:
    """Yield the environment without objects of earlier tests."""
    upgrading.cvo.want(OLD)
    yield upgrading
    upgrading.clear()


@pytest.fixture
def mco(stage: Stage) -> Iterator[FakeMco]:
    """Yield a running fake machine-config-operator, which upgrades nodes."""
    with FakeMco(stage.admin) as running:
        yield running
