"""Test for the notifications about a blocked drain on the real engines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing

import pytest

from kube.maintenance import objects as m
from kube.notifications.announcements import BLOCKED_REASON, UNBLOCKED_REASON
from kube.paths import build_events_path
from localcluster.http_receiver import Receiver
from tests.e2e.environment import TIMEOUT_SECONDS, WITH_ALL_COMPONENTS, E2eEnvironment
from tests.workload import Workload

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("environment", WITH_ALL_COMPONENTS, indirect=True)]
FUNCTION = "notify-owners"
KEY = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
PATH = "/chat"


@pytest.fixture
def receiver(environment: E2eEnvironment) -> Iterator[Receiver]:
    """Yield a receiver of notifications about blocked drains, which `notify-owners` announces without a delay."""
    with closing(Receiver()) as server:
        settings = {"NOTIFY_SECONDS": "0", "NOTIFY_HOSTS": server.url, "NOTIFY_KEY": KEY}
        original = environment.product.functions[FUNCTION].env
        restart_function(environment, {**original, **settings})
        yield server
        restart_function(environment, original)


def restart_function(environment: E2eEnvironment, variables: dict[str, str]) -> None:
    """Restart the function `notify-owners` with these environment variables."""
    environment.product.kill_functions(FUNCTION)
    environment.product.functions[FUNCTION].env = variables
    environment.product.start_functions(FUNCTION)


def list_sent_types(receiver: Receiver) -> list[str]:
    """Return the last segment of the event type of each event that the receiver got, without redelivered events."""
    bodies = [json.loads(request.body) for request in receiver.list_requests(PATH)]
    return list({body["id"]: body["type"].rpartition(".")[2] for body in bodies}.values())


def test_owners_and_receiver_follow_blocked_drain(environment: E2eEnvironment, receiver: Receiver) -> None:
    """Check that owners and receiver are notified of a blockage, its deadline, its end, and the end of the drain."""
    workload, labels = Workload(environment.cluster, environment.client), {"app": "db"}
    (node,) = environment.nodes[:1]
    workload.create_bare_pods(node, "db", labels=labels)
    budget = workload.create_budget("db", labels, 1, expected_healthy=1)
    maintenance = workload.create_maintenance(node, drain={"deadline": "1h"})
    workload.client.patch(m.build_path(maintenance), {"spec": {"notify": {"url": f"{receiver.url}{PATH}"}}})

    def wait_for_event(reason: str) -> str:
        fields = f"reason={reason},involvedObject.uid={budget['metadata']['uid']}"
        listed = workload.wait_for_collection(
            build_events_path(workload.namespace), bool, TIMEOUT_SECONDS, fields=fields
        )
        (event,) = listed.values()
        return str(event["message"])

    blocked_message = wait_for_event(BLOCKED_REASON)
    receiver.wait_until(lambda: list_sent_types(receiver) == ["blocked"])
    workload.delete(f"/apis/policy/v1/namespaces/{workload.namespace}/poddisruptionbudgets/db")
    wait_for_event(UNBLOCKED_REASON)
    receiver.wait_until(lambda: len(list_sent_types(receiver)) >= 3)

    assert "budget db needs 1 healthy" in blocked_message
    assert "The drain's deadline is " in blocked_message
    # The Broker delivers the events of the last two notifications independently, so they may arrive in either order.
    assert sorted(list_sent_types(receiver)) == ["blocked", "succeeded", "unblocked"]
    workload.delete(m.build_path(maintenance))
    workload.wait_for_object(m.build_path(maintenance), lambda current: current is None, TIMEOUT_SECONDS)
