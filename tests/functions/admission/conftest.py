"""Fixtures: a cluster whose API server calls the admission webhook; no function runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.client.sync_client import Cluster
from localcluster import product
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from tests.workload import Workload


@pytest.fixture(scope="package")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the CRDs of all three API groups, on which only the webhook runs."""
    with LocalCluster(tmp_path_factory.mktemp("guarded"), nodes=1) as running:
        product.install(running, v1alpha1=True)
        yield running


@pytest.fixture(scope="package")
def webhook(guarded: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Yield the webhook that the API server of `guarded` calls."""
    with Webhook(guarded, tmp_path_factory.mktemp("webhook")) as running:
        yield running


@pytest.fixture
def door(webhook: Webhook, guarded: LocalCluster) -> Cluster:
    """Return the administrator's client of `guarded`, after a check that the webhook's server runs."""
    assert webhook.server.alive
    return guarded.door()


@pytest.fixture
def work(guarded: LocalCluster, door: Cluster) -> Workload:
    """Return a workload with a new namespace for the test."""
    return Workload(guarded, door)
