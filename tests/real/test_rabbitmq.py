"""Tests of the durable broker as a user installs it: RabbitMQ, its operators and its Knative Broker as pods."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from localcluster.access import NAMESPACE
from localcluster.demo import real_nodes as demo
from localcluster.knative import pods as knative
from localcluster.knative import pod_install
from localcluster.nodes import preflight
from localcluster.rabbitmq import pods as rabbitmq
from tests.real import maintenances
from tests.real.environment import Real

pytestmark = pytest.mark.installs


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Real]:
    """Yield two real nodes with Knative, RabbitMQ and the product as pods."""
    preflight.check()
    folder = tmp_path_factory.mktemp("durable")
    with pod_install.nodes(folder / "cluster", parts=(knative, rabbitmq)) as (cluster, nodes):
        cluster.kubectl("create", "namespace", NAMESPACE)
        rabbitmq.provide(cluster, folder / "disk")
        cluster.kubectl("apply", "-k", rabbitmq.overlay(folder / "overlay"))
        pod_install.await_ready(cluster, demo.COMES_LATE)
        yield Real(cluster, nodes)


def test_a_node_is_drained_and_given_back(installed: Real) -> None:
    """Drains of a kwok node, without the product's pods, work with events through RabbitMQ."""
    maintenances.begin(installed, "durable", "node-1")
    maintenances.until_succeeded(installed, "durable")
    maintenances.end(installed, "durable", "node-1")
