"""A cluster whose API server asks the webhook; no function is at work."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.door.sync_client import Cluster
from localcluster import product
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from tests.workload import Workload


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Give a cluster with the three kinds, where nothing of ours but the webhook will run."""
    with LocalCluster(tmp_path_factory.mktemp("guarded"), nodes=1) as running:
        product.install(running, v1alpha1=True)
        yield running


@pytest.fixture(scope="package")
def webhook(guarded: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Give the webhook that this cluster's API server asks."""
    with Webhook(guarded, tmp_path_factory.mktemp("webhook")) as running:
        yield running


@pytest.fixture
def door(webhook: Webhook, guarded: LocalCluster) -> Cluster:
    """Give the administrator's door to it."""
    assert webhook.server.alive
    return guarded.door()


@pytest.fixture
def work(guarded: LocalCluster, door: Cluster) -> Workload:
    """Give a namespace of the test's own."""
    return Workload(guarded, door)
