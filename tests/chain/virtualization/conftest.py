"""Fixtures for a separate cluster with virtual machines, KubeVirt's real CRDs and a simulated KubeVirt."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import VIRTUALIZATION
from localcluster.simulators.kubevirt import FakeVirt
from tests.chain.running_product import run_product
from tests.chain.virtualization.environment import VirtualizationEnvironment


@pytest.fixture(scope="package")
def virtualization_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VirtualizationEnvironment]:
    """Yield the environment with the component `virtualization`."""
    folder = tmp_path_factory.mktemp("virtualization")
    with run_product(folder, VIRTUALIZATION) as (cluster, product):
        virtualization_env = VirtualizationEnvironment(cluster, product)
        with FakeVirt(virtualization_env.client):
            yield virtualization_env
        virtualization_env.client.close()


@pytest.fixture
def environment(virtualization_environment: VirtualizationEnvironment) -> Iterator[VirtualizationEnvironment]:
    """Yield the environment without objects from earlier tests."""
    yield virtualization_environment
    virtualization_environment.delete_all_objects()
