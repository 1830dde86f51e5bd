"""Property tests: no request makes a function crash or expose a traceback."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eventing.event_types import KNOWN
from eventing.events import ATTEMPTS_MADE, Reference
from functions.app import FUNCTIONS
from kube.client.sync_client import Cluster
from localcluster.cluster import LocalCluster
from tests.functions.conftest import Functions, forget
from tests.invalid_events import Hostile
from tests.proofs import proves
from tests.workload import Workload

pytestmark = pytest.mark.slow

TRIES = 60
"""Number of examples per function; `make fuzz` runs 10,000."""


@pytest.fixture(scope="module")
def maintained(quiet: LocalCluster, functions: Functions) -> Iterator[tuple[Reference, str]]:
    """Yield a maintenance in progress and its node, which has a pod that stays; many of the requests name them."""
    admin = Cluster(str(quiet.kubeconfig))
    work = Workload(quiet, admin)
    node = work.node()
    work.pods(node, "stays", finalizers=("example.com/hold",))
    item = work.maintenance(node)
    functions.chain(item, "begin", "cordon", "taint")
    yield Reference.of(item), node
    forget(admin)
    admin.close()


@proves("X-6")
@pytest.mark.parametrize("name", FUNCTIONS)
def test_whatever_comes_in_is_answered_and_is_no_bug(
    functions: Functions, maintained: tuple[Reference, str], name: str
) -> None:
    """X-6: a function accepts a request or rejects it with one line that names the fault, and never answers 5xx."""
    kinds = FUNCTIONS[name].consumes or (*KNOWN, ATTEMPTS_MADE)

    @settings(max_examples=TRIES, deadline=None, suppress_health_check=list(HealthCheck), database=None)
    @given(st.integers(0, 2**32))
    def knock(seed: int) -> None:
        request = Hostile(Random(seed), *maintained).request(kinds)
        answer = functions.clients[name].post(f"/{name}", data=request.body, headers=dict(request.headers))
        assert answer.status_code < 500, (request, answer.text)
        assert "Traceback" not in answer.text
        assert answer.status_code < 400 or answer.text.count("\n") == 1

    knock()
