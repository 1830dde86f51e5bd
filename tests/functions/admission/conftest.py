"""Fixtures for the admission tests: a cluster on which only the admission webhook of the product runs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kube.client.sync_client import SyncClient
from localcluster import product
from localcluster.admission.webhook import Webhook
from localcluster.cluster import LocalCluster
from tests.workload import Workload


@pytest.fixture(scope="package")
def webhook_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Yield a cluster with the CRDs of all three API groups, on which only the webhook runs."""
    with LocalCluster(tmp_path_factory.mktemp("guarded"), nodes=1) as running:
        product.install_manifests(running, with_v1alpha1=True)
        yield running


@pytest.fixture(scope="package")
def webhook(webhook_cluster: LocalCluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Webhook]:
    """Yield the webhook that the API server of `webhook_cluster` calls."""
    with Webhook(webhook_cluster, tmp_path_factory.mktemp("webhook")) as running:
        yield running


@pytest.fixture
def client(webhook: Webhook, webhook_cluster: LocalCluster) -> SyncClient:
    """Return the administrator's API client for `webhook_cluster`, after checking that the webhook's server runs."""
    assert webhook.server.is_alive
    return webhook_cluster.get_client()


@pytest.fixture
def workload(webhook_cluster: LocalCluster, client: SyncClient) -> Workload:
    """Return a `Workload` that creates its pods in a new namespace."""
    return Workload(webhook_cluster, client)
