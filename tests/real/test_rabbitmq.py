"""Tests for the durable broker as a user installs it: RabbitMQ, its operators and its Knative Broker run as pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.access import NAMESPACE
from localcluster.demo import real_nodes as demo
from localcluster.knative import pod_install
from localcluster.knative import pods as knative
from localcluster.nodes import preflight
from localcluster.rabbitmq import pods as rabbitmq
from tests.real import maintenances
from tests.real.environment import RealNodesEnvironment

pytestmark = pytest.mark.installs


@pytest.fixture(scope="module")
def installed_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RealNodesEnvironment]:
    """Yield two real nodes with Knative, RabbitMQ and the product as pods."""
    preflight.check_host()
    folder = tmp_path_factory.mktemp("durable")
    with pod_install.start_real_cluster(folder / "cluster", addons=(knative, rabbitmq)) as (cluster, nodes):
        cluster.kubectl("create", "namespace", NAMESPACE)
        rabbitmq.create_rabbitmq_cluster(cluster, folder / "disk")
        cluster.kubectl("apply", "-k", rabbitmq.write_overlay(folder / "overlay"))
        pod_install.wait_until_ready(cluster, demo.LATE_DEPLOYMENT)
        yield RealNodesEnvironment(cluster, nodes)


def test_maintenance_drains_and_restores_node(installed_environment: RealNodesEnvironment) -> None:
    """Check that a kwok node, on which no pod of the product runs, is drained and restored with RabbitMQ."""
    maintenances.create_maintenance(installed_environment, "durable", "node-1")
    maintenances.wait_until_succeeded(installed_environment, "durable")
    maintenances.end_maintenance(installed_environment, "durable", "node-1")
