"""Fixtures for a cluster with KubeVirt's virt-controller and simulated virt-handlers; tests can start virt-api."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.components.selection import VIRTUALIZATION
from localcluster.kubevirt.control_plane import VirtApi, VirtController
from tests.chain.running_product import run_product
from tests.chain.virtualization.with_kubevirt.environment import KUBEVIRT_CONFIGURATION, KubeVirtEnvironment


@pytest.fixture(scope="package")
def kubevirt_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KubeVirtEnvironment]:
    """Yield the environment with the component `virtualization`; KubeVirt is configured with medik8s's drain taint."""
    folder = tmp_path_factory.mktemp("with-kubevirt")
    with run_product(folder, VIRTUALIZATION) as (cluster, product):
        controller = VirtController(cluster, folder / "kubevirt")
        controller.install_crds()
        controller.create_kubevirt(KUBEVIRT_CONFIGURATION)
        kubevirt_env = KubeVirtEnvironment(cluster, product, controller, VirtApi(cluster, folder / "kubevirt"))
        with controller, kubevirt_env.handler:
            yield kubevirt_env
        kubevirt_env.client.close()


@pytest.fixture
def environment(kubevirt_environment: KubeVirtEnvironment) -> Iterator[KubeVirtEnvironment]:
    """Yield the environment without objects from earlier tests."""
    yield kubevirt_environment
    kubevirt_environment.delete_all_objects()
