"""Fixtures with KubeVirt's virt-controller and simulated virt-handlers; a test can also start its virt-api."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.kubevirt.api import VirtApi
from localcluster.kubevirt.controller import VirtController
from localcluster.components.selection import VIRTUALIZATION
from tests.chain.running_product import at_work
from tests.chain.virtualization.with_kubevirt.environment import TOLD, BesideStage


@pytest.fixture(scope="package")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BesideStage]:
    """Yield the environment with virtualization enabled; KubeVirt is configured with the drain taint of medik8s."""
    folder = tmp_path_factory.mktemp("beside-kubevirt")
    with at_work(folder, VIRTUALIZATION) as (cluster, product):
        controller = VirtController(cluster, folder / "kubevirt")
        controller.install()
        controller.declare(TOLD)
        stage = BesideStage(cluster, product, controller, VirtApi(cluster, folder / "kubevirt"))
        with controller, stage.handler:
            yield stage
        stage.admin.close()


@pytest.fixture
def stage(machines: BesideStage) -> Iterator[BesideStage]:
    """Yield the environment without objects of earlier tests."""
    yield machines
    machines.clear()
