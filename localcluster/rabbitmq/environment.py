"""Builds the environment variables of ingress, dispatchers and adapters, as the controllers would. Pure functions."""

from __future__ import annotations

import json
from typing import Any

from eventing.local.manifests import Document, Trigger
from kube.selectors import format_selector
from localcluster.access import NAMESPACE
from localcluster.rabbitmq import topology

SYSTEM_NAMESPACE = "knative-eventing"
"""The namespace of Knative's own components."""


def build_ingress_env(broker: str, rabbit_url: str, port: int) -> dict[str, str]:
    """Return the ingress's variables as RabbitMQ Broker's `MakeIngressDeployment` sets them, except for the port."""
    return {
        "SYSTEM_NAMESPACE": SYSTEM_NAMESPACE,
        "BROKER_URL": rabbit_url,
        "EXCHANGE_NAME": topology.get_exchange_name(broker),
        "CONTAINER_NAME": "ingress",
        "POD_NAME": f"{broker}-broker-ingress",
        "BROKER_NAME": broker,
        "BROKER_NAMESPACE": NAMESPACE,
        "RABBITMQ_VHOST": topology.VHOST,
        "PORT": str(port),
    }


def build_dispatcher_env(trigger: Trigger, broker: str, rabbit_url: str, ingress_url: str) -> dict[str, str]:
    """Return the variables of a Trigger's dispatcher as the RabbitMQ Broker's `MakeDispatcherDeployment` sets them."""
    dead_letters = (
        {"DLX_NAME": topology.get_dead_letter_exchange(trigger.name)} if trigger.policy.dead_letter_url else {}
    )
    return {
        **_build_common_env(trigger, rabbit_url, ingress_url),
        "QUEUE_NAME": topology.get_queue_name(trigger.name, broker),
        "SUBSCRIBER": trigger.subscriber_url,
        "POD_NAME": get_dispatcher_name(trigger),
        **dead_letters,
    }


def get_dispatcher_name(trigger: Trigger) -> str:
    """Return the name of a Trigger's dispatcher process."""
    return f"{trigger.name}-dispatcher"


def build_dead_letter_env(trigger: Trigger, sink_url: str, rabbit_url: str, ingress_url: str) -> dict[str, str]:
    """Return the variables of a Trigger's dead letter dispatcher, which posts dead letters to `sink_url`."""
    return {
        **_build_common_env(trigger, rabbit_url, ingress_url),
        "QUEUE_NAME": topology.get_dead_letter_queue(trigger.name),
        "SUBSCRIBER": sink_url,
        "POD_NAME": f"{trigger.name}-dlx-dispatcher",
        "DLX": "true",
    }


def _build_common_env(trigger: Trigger, rabbit_url: str, ingress_url: str) -> dict[str, str]:
    policy = trigger.policy
    return {
        "SYSTEM_NAMESPACE": SYSTEM_NAMESPACE,
        "RABBIT_URL": rabbit_url,
        "RABBITMQ_VHOST": topology.VHOST,
        "BROKER_INGRESS_URL": ingress_url,
        "NAMESPACE": NAMESPACE,
        "CONTAINER_NAME": "dispatcher",
        "RETRY": str(policy.retry),
        "BACKOFF_POLICY": policy.backoff,
        "BACKOFF_DELAY": f"{policy.backoff_delay_seconds:g}s",
        "TIMEOUT": f"{policy.timeout_seconds:g}s",
        "PARALLELISM": str(trigger.parallelism),
    }


def build_api_server_source_env(document: Document, sink_url: str) -> dict[str, str]:
    """Return the variables of an ApiServerSource's adapter as Knative's `MakeReceiveAdapter` sets them."""
    config = {
        **_build_namespace_scope(document),
        "resources": [_build_watched_resource(entry) for entry in document.require("spec.resources", list)],
        "mode": document.require("spec.mode", str),
    }
    return {
        "K_SINK": sink_url,
        "K_SOURCE_CONFIG": json.dumps(config),
        "SYSTEM_NAMESPACE": SYSTEM_NAMESPACE,
        "NAMESPACE": document.namespace,
        "NAME": document.name,
        "METRICS_DOMAIN": "knative.dev/eventing",
    }


def _build_namespace_scope(document: Document) -> dict[str, Any]:
    """Return the namespaces that a source watches: its own one, or all if the source has an empty selector."""
    all_namespaces = document.get("spec.namespaceSelector", dict) is not None
    return {"namespaces": ["" if all_namespaces else document.namespace], "allNamespaces": all_namespaces}


def _build_watched_resource(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a resource in the adapter's format; derive the plural from the kind, as Knative's controller does."""
    group, _, version = entry["apiVersion"].rpartition("/")
    watched: dict[str, Any] = {"gvr": {"Group": group, "Version": version, "Resource": f"{entry['kind'].lower()}s"}}
    return watched | ({"selector": format_selector(entry["selector"])} if "selector" in entry else {})


def build_ping_source_env(kubeconfig: str) -> dict[str, str]:
    """Return the variables of the ping adapter (`pingsource-mt-adapter.yaml`) as its controller sets them."""
    return {
        "KUBECONFIG": kubeconfig,
        "SYSTEM_NAMESPACE": SYSTEM_NAMESPACE,
        "NAMESPACE": SYSTEM_NAMESPACE,
        "POD_NAME": "pingsource-mt-adapter",
        "K_OBSERVABILITY_CONFIG": "{}",
        "K_NO_SHUTDOWN_AFTER": "55",
        "K_SINK_TIMEOUT": "-1",
    }
