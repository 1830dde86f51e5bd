"""Fixtures for a separate cluster that runs the component `mutex`, with OpenShift's real CRDs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import MUTEX
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import OLD_VERSION
from tests.chain.mutex.environment import MutexEnvironment
from tests.chain.running_product import run_product


@pytest.fixture(scope="package")
def upgrade_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[MutexEnvironment]:
    """Yield a cluster at the old OpenShift version, with OpenShift's CRDs and the running component `mutex`."""
    folder = tmp_path_factory.mktemp("mutex")
    with run_product(folder, MUTEX) as (cluster, product):
        mutex_environment = MutexEnvironment(cluster, product)
        mutex_environment.cvo.install(OLD_VERSION)
        yield mutex_environment
        mutex_environment.client.close()


@pytest.fixture
def environment(upgrade_environment: MutexEnvironment) -> Iterator[MutexEnvironment]:
    """Yield the environment without objects from earlier tests."""
    upgrade_environment.cvo.set_desired_version(OLD_VERSION)
    yield upgrade_environment
    upgrade_environment.delete_all_objects()


@pytest.fixture
def fake_mco(environment: MutexEnvironment) -> Iterator[FakeMco]:
    """Yield a running fake machine-config-operator, which upgrades nodes."""
    with FakeMco(environment.client) as mco:
        yield mco
