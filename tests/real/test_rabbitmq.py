"""Tests for the overlay `rabbitmq` on Knative Serving: RabbitMQ, its operators and its Broker run as pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.access import NAMESPACE
from localcluster.addons import EVENTING_ADDON, SERVING_ADDONS
from localcluster.knative import pod_install
from localcluster.nodes import preflight
from localcluster.rabbitmq.pods import RABBITMQ, create_rabbitmq_cluster, write_overlay
from tests.real import maintenances
from tests.real.environment import RealNodesEnvironment
from tests.real.installed_environment import apply_until_accepted

pytestmark = pytest.mark.installs


@pytest.fixture(scope="module")
def installed_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodesEnvironment]:
    """Yield two real nodes with Knative Eventing and Serving, RabbitMQ and the product as pods."""
    preflight.check_host()
    folder = tmp_path_factory.mktemp("durable")
    addons = (EVENTING_ADDON, *SERVING_ADDONS, RABBITMQ)
    with pod_install.start_real_cluster(folder / "cluster", addons=addons) as (cluster, nodes):
        cluster.kubectl("create", "namespace", NAMESPACE)
        create_rabbitmq_cluster(cluster, folder / "disk")
        overlay = write_overlay(folder / "overlay")
        # The Broker's webhook sometimes misses its timeout of 2 s while all pods start.
        apply_until_accepted(cluster, overlay)
        pod_install.wait_until_ready(cluster, pod_install.LATE_DEPLOYMENT)
        yield RealNodesEnvironment(cluster, nodes)


def test_maintenance_drains_and_restores_node(installed_environment: RealNodesEnvironment) -> None:
    """Check that a kwok node, on which no pod of the product runs, is drained and restored with RabbitMQ."""
    maintenances.create_maintenance(installed_environment, "durable", "node-1")
    maintenances.wait_until_succeeded(installed_environment, "durable")
    maintenances.end_maintenance(installed_environment, "durable", "node-1")
