"""Property tests that no HTTP request makes a function crash or expose a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventing.events import ATTEMPTS_MADE, KNOWN_TYPES, ObjectReference
from functions.app import FUNCTIONS
from kube.client.sync_client import SyncClient
from localcluster.cluster import LocalCluster
from tests.functions.conftest import Functions, delete_maintenances
from tests.invalid_events import InvalidEventGenerator
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.slow

MAX_EXAMPLES = 60
"""Number of examples per function; `make fuzz` runs 10,000."""


@pytest.fixture(scope="module")
def maintenance_and_node(idle_cluster: LocalCluster, functions: Functions) -> Iterator[tuple[ObjectReference, str]]:
    """Yield a maintenance in progress, which many generated requests name, and its node, which has a pod."""
    admin = SyncClient(str(idle_cluster.kubeconfig))
    workload = Workload(idle_cluster, admin)
    node = workload.take_node()
    workload.create_bare_pods(node, "stays", finalizers=("example.com/hold",))
    maintenance = workload.create_maintenance(node)
    functions.run_chain(maintenance, "begin", "cordon", "taint")
    yield ObjectReference.from_object(maintenance), node
    delete_maintenances(admin)
    admin.close()


@proves("X-6")
@pytest.mark.parametrize("function_name", FUNCTIONS)
def test_hostile_request_does_not_cause_5xx(
    functions: Functions, maintenance_and_node: tuple[ObjectReference, str], function_name: str
) -> None:
    """X-6: a function accepts a request or rejects it with a one-line error, but never answers 5xx."""
    event_types = FUNCTIONS[function_name].consumes or (*KNOWN_TYPES, ATTEMPTS_MADE)

    @settings(max_examples=MAX_EXAMPLES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**32))
    def send_request(seed: int) -> None:
        request = InvalidEventGenerator(Random(seed), *maintenance_and_node).build_request(event_types)
        response = functions.clients[function_name].post(
            f"/{function_name}", data=request.body, headers=dict(request.headers)
        )
        assert response.status_code < 500, (request, response.text)
        assert "Traceback" not in response.text
        assert response.status_code < 400 or response.text.count("\n") == 1

    send_request()
