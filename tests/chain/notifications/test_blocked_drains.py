"""Test for the notifications from the beginning to the end of a blocked drain."""

from __future__ import annotations

import json
import shlex

from kube.notifications.announcements import BLOCKED_REASON, UNBLOCKED_REASON
from kube.paths import Object, build_events_path
from localcluster.http_receiver import Receiver
from tests.chain.environment import EventChainEnvironment

REMEDY_PREFIX = "or a looser budget: "
OWNER_KINDS = {"PodDisruptionBudget", "Deployment"}


def wait_for_owner_events(environment: EventChainEnvironment, namespace: str, reason: str) -> dict[str, str]:
    """Send ticks until the PDB and the Deployment have an Event with this reason; return its message by kind."""

    def wait() -> dict[str, Object]:
        return environment.workload.wait_for_collection(
            build_events_path(namespace),
            lambda found: {item["involvedObject"]["kind"] for item in found.values()} >= OWNER_KINDS,
            1.0,
            fields=f"reason={reason}",
        )

    return {item["involvedObject"]["kind"]: item["message"] for item in environment.wait_with_ticks(wait).values()}


def list_received_notifications(receiver: Receiver) -> list[Object]:
    """Return the bodies of the received notifications without redelivered ones, as identified by their event ids."""
    first_bodies: dict[str, Object] = {}
    for request in receiver.list_requests("/chat"):
        first_bodies.setdefault(request.headers["webhook-id"], json.loads(request.body))
    return list(first_bodies.values())


def test_owners_and_receiver_follow_blocked_drain(environment: EventChainEnvironment, receiver: Receiver) -> None:
    """Check that the command in the owners' Event unblocks the drain, and that another Event reports the end.

    The notification receiver gets one event each when the drain is blocked, continues and succeeds.
    """
    node, other_node, namespace = environment.create_node(), environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 2)
    environment.allow_deployment_on_node(namespace, other_node)
    environment.create_budget(namespace, {"app": "web"}, name="web", disruptions_allowed=0, minAvailable=2)
    path = environment.create_maintenance(node)
    environment.client.patch(path, {"spec": {"notify": {"url": f"{receiver.url}/chat"}}})

    messages = wait_for_owner_events(environment, namespace, BLOCKED_REASON)
    assert messages.keys() == OWNER_KINDS
    receiver.wait_for_requests("/chat")

    _, _, command = messages["Deployment"].partition(REMEDY_PREFIX)
    program, *arguments = shlex.split(command)
    assert program == "kubectl"
    environment.cluster.kubectl(*arguments)

    environment.wait_for_state(path)
    assert wait_for_owner_events(environment, namespace, UNBLOCKED_REASON).keys() == OWNER_KINDS
    receiver.wait_until(lambda: len(list_received_notifications(receiver)) >= 3)
    assert [
        (body["type"].rpartition(".")[2], body["data"]["node"]) for body in list_received_notifications(receiver)
    ] == [
        ("blocked", node),
        ("unblocked", node),
        ("succeeded", node),
    ]
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
