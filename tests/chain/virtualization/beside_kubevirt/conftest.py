"""A cluster with KubeVirt's virt-controller, and an actor for what it has on each node; its virt-api on request."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.kubevirt.api import VirtApi
from localcluster.kubevirt.controller import VirtController
from localcluster.wings.choice import VIRTUALIZATION
from tests.chain.at_work import at_work
from tests.chain.virtualization.beside_kubevirt.stage import TOLD, BesideStage


@pytest.fixture(scope="package")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BesideStage]:
    """Give it with drains at work, and KubeVirt told of the taint of NodeMaintenances of medik8s."""
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
    """Give it with nothing on it of an earlier test."""
    yield machines
    machines.clear()
