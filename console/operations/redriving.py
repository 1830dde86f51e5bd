"""Dead letters for commands and pages: where to deliver one again, where its answer goes, and its fields."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from console.operations.errors import NoResult
from eventing.journal.entries import Entry
from eventing.replay.redrive import function_of, is_open
from eventing.urls import below

if TYPE_CHECKING:
    from kube.door.cluster import Cluster


def address(letter: Entry, base: str) -> str:
    """The function's address below the URL `base`; with "" the address that it could not be delivered to.

    Raises `NoResult` when the dead letter does not say which function that was.
    """
    function, why = function_of(letter), letter.dead_letter
    if not base:
        return why.destination if why else ""
    if not function:
        raise NoResult(f"which function was at {why and why.destination}? Leave --functions and $FUNCTIONS out")
    return below(base, function)


def broker_address(cluster: Cluster, namespace: str) -> str:
    """The address that Knative gave the Broker. Raises `NoResult` where no Broker has one."""
    from kube.door.api import absent_ok  # no dead letter is shown the later for it

    path = f"/apis/eventing.knative.dev/v1/namespaces/{namespace}/brokers"
    found = cluster.run(absent_ok(cluster.api.list(path)))
    for item in found["items"] if found else []:
        if url := ((item.get("status") or {}).get("address") or {}).get("url"):
            return str(url)
    raise NoResult(f"no Broker in namespace {namespace} says its address: name it by --broker or $BROKER")


def letter_fields(letter: Entry) -> dict[str, Any]:
    """One dead letter as JSON."""
    why = letter.dead_letter
    return {
        "event": letter.event.get_id(),
        "source": letter.event.get_source(),
        "type": letter.event.get_type(),
        "node": letter.node,
        "maintenance": letter.maintenance,
        "arrived": letter.arrived.isoformat(),
        "function": function_of(letter),
        "destination": why.destination if why else "",
        "code": why.code if why else 0,
        "reason": why.data if why else "",
        "open": is_open(letter),
    }
