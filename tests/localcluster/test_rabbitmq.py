"""Tests that the local RabbitMQ topology and the dispatchers' environment are the same as with Knative's controller."""

from __future__ import annotations

import shutil

import pytest

from eventing.local.manifests import DeliveryPolicy, Trigger
from localcluster.errors import LocalClusterError
from localcluster.rabbitmq import environment, server, topology

POLICY = DeliveryPolicy(retry=10, backoff_delay_seconds=0.2, timeout_seconds=10, dead_letter_url="http://record/")
FILTERED_TRIGGER = Trigger("evict-on-more", {"type": "pods.gone", "more": "true"}, "http://evict/", POLICY, 20)
UNFILTERED_TRIGGER = Trigger("record-on-everything", {}, "http://record/", DeliveryPolicy(retry=3))


def test_queue_binding_requires_all_filter_attributes() -> None:
    """Check that each Trigger has a headers binding with all its filter attributes and its name."""
    bindings = topology.build_definitions("default", [FILTERED_TRIGGER, UNFILTERED_TRIGGER])["bindings"]

    assert [binding["arguments"] for binding in bindings[:2]] == [
        {"type": "pods.gone", "more": "true", "x-knative-trigger": "evict-on-more", "x-match": "all"},
        {"x-knative-trigger": "record-on-everything", "x-match": "all"},
    ]
    assert {binding["source"] for binding in bindings[:2]} == {topology.get_exchange_name("default")}


def test_queues_are_durable_and_dead_letters_have_separate_queue() -> None:
    """Check that each Trigger has a durable quorum queue, and that its dead letters have another one.

    A dead letter queue has its own exchange and policy.
    """
    definitions = topology.build_definitions("default", [FILTERED_TRIGGER, UNFILTERED_TRIGGER])

    assert [queue["name"] for queue in definitions["queues"]] == [
        topology.get_queue_name("evict-on-more", "default"),
        topology.get_queue_name("record-on-everything", "default"),
        topology.get_dead_letter_queue("evict-on-more"),
    ]
    assert all(queue["durable"] and queue["arguments"] == {"x-queue-type": "quorum"} for queue in definitions["queues"])
    assert [policy["definition"] for policy in definitions["policies"]] == [
        {"dead-letter-exchange": topology.get_dead_letter_exchange("evict-on-more")}
    ]


def test_long_queue_name_is_shortened_with_stable_hash() -> None:
    """Check that a name that is too long for Kubernetes is truncated, and ends with a stable hash."""
    name = topology.get_dead_letter_queue("restore-on-maintenance-updated")

    assert len(name) <= topology.MAX_NAME_LENGTH
    assert name.startswith("t.node-maintenance.restore-on-m")
    assert (
        name
        == topology.get_dead_letter_queue("restore-on-maintenance-updated")
        != topology.get_dead_letter_queue("restore-on-maintenance")
    )


def test_dispatcher_environment_matches_trigger() -> None:
    """Check that a dispatcher gets the Trigger's retries, backoff, timeout and parallelism, with Go durations."""
    variables = environment.build_dispatcher_env(FILTERED_TRIGGER, "default", "amqp://x", "http://ingress")

    expected = {"RETRY": "10", "BACKOFF_POLICY": "exponential", "BACKOFF_DELAY": "0.2s", "TIMEOUT": "10s"}
    assert expected.items() <= variables.items()
    assert (variables["PARALLELISM"], variables["SUBSCRIBER"]) == ("20", "http://evict/")
    assert variables["DLX_NAME"] == topology.get_dead_letter_exchange("evict-on-more")
    assert "DLX_NAME" not in environment.build_dispatcher_env(
        UNFILTERED_TRIGGER, "default", "amqp://x", "http://ingress"
    )


def test_missing_rabbitmq_error_names_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the error about missing RabbitMQ contains the command that installs it, before anything is built."""
    monkeypatch.setattr(server, "PROGRAM_DIRS", ())
    monkeypatch.setattr(shutil, "which", lambda program: None)

    with pytest.raises(
        LocalClusterError, match=r"rabbitmq-server, which is missing; run as root: apt-get install -y rabbitmq-server"
    ):
        server.check_programs()
