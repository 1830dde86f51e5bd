"""RabbitMQ's topology as the Broker's controller declares it, and the environment of its programs."""

from __future__ import annotations

import shutil

import pytest

from eventing.local.triggers import Policy, Trigger
from localcluster.rabbitmq import environment, server, topology
from localcluster.errors import LocalClusterError

POLICY = Policy(retry=10, delay=0.2, timeout=10, dead_letters="http://record/")
TRIGGER = Trigger("evict-on-more", {"type": "pods.gone", "more": "true"}, "http://evict/", POLICY, 20)
EVERYTHING = Trigger("record-on-everything", {}, "http://record/", Policy(retry=3))


def test_an_event_needs_all_attributes_of_a_filter() -> None:
    """Check that each Trigger has a headers binding for all its attributes; without a filter, for its name only."""
    bindings = topology.definitions("default", [TRIGGER, EVERYTHING])["bindings"]

    assert [binding["arguments"] for binding in bindings[:2]] == [
        {"type": "pods.gone", "more": "true", "x-knative-trigger": "evict-on-more", "x-match": "all"},
        {"x-knative-trigger": "record-on-everything", "x-match": "all"},
    ]
    assert {binding["source"] for binding in bindings[:2]} == {topology.exchange("default")}


def test_every_queue_survives_and_dead_letters_have_their_own() -> None:
    """Check that there is a durable quorum queue per Trigger, and a second one per dead letter sink.

    A dead letter queue has its own exchange and policy.
    """
    found = topology.definitions("default", [TRIGGER, EVERYTHING])

    assert [queue["name"] for queue in found["queues"]] == [
        topology.queue("evict-on-more", "default"),
        topology.queue("record-on-everything", "default"),
        topology.dead_queue("evict-on-more"),
    ]
    assert all(queue["durable"] and queue["arguments"] == {"x-queue-type": "quorum"} for queue in found["queues"])
    assert [policy["definition"] for policy in found["policies"]] == [
        {"dead-letter-exchange": topology.dead_exchange("evict-on-more")}
    ]


def test_names_fit_into_kubernetes() -> None:
    """Check that a name that is too long keeps its beginning and ends with a stable hash."""
    name = topology.dead_queue("restore-on-maintenance-updated")

    assert len(name) <= topology.LONGEST_NAME
    assert name.startswith("t.node-maintenance.restore-on-m")
    assert (
        name == topology.dead_queue("restore-on-maintenance-updated") != topology.dead_queue("restore-on-maintenance")
    )


def test_a_dispatcher_is_told_what_the_trigger_says() -> None:
    """Check that a dispatcher gets retries, backoff, timeout and parallelism from the Trigger, as Go durations."""
    found = environment.dispatcher(TRIGGER, "default", "amqp://x", "http://ingress")

    wanted = {"RETRY": "10", "BACKOFF_POLICY": "exponential", "BACKOFF_DELAY": "0.2s", "TIMEOUT": "10s"}
    assert wanted.items() <= found.items()
    assert (found["PARALLELISM"], found["SUBSCRIBER"]) == ("20", "http://evict/")
    assert found["DLX_NAME"] == topology.dead_exchange("evict-on-more")
    assert "DLX_NAME" not in environment.dispatcher(EVERYTHING, "default", "amqp://x", "http://ingress")


def test_a_machine_without_rabbitmq_is_told_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that a missing RabbitMQ is reported in one line with the command, before anything is built."""
    monkeypatch.setattr(server, "PLACES", ())
    monkeypatch.setattr(shutil, "which", lambda program: None)

    with pytest.raises(LocalClusterError, match=r"rabbitmq-server is not there: apt-get install -y rabbitmq-server"):
        server.check()
