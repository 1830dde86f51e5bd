"""The environment that the controllers would set for ingress, dispatchers and adapters. Pure functions."""

from __future__ import annotations

import json
from typing import Any

from eventing.local.manifests import Document
from eventing.local.triggers import Trigger
from kube.selectors import text
from localcluster.access import NAMESPACE
from localcluster.rabbitmq import topology

SYSTEM = "knative-eventing"
"""The namespace of Knative's own components."""


def ingress(broker: str, rabbit_url: str, port: int) -> dict[str, str]:
    """Return the ingress variables as `MakeIngressDeployment` of the RabbitMQ Broker sets them, with another port."""
    return {
        "SYSTEM_NAMESPACE": SYSTEM,
        "BROKER_URL": rabbit_url,
        "EXCHANGE_NAME": topology.exchange(broker),
        "CONTAINER_NAME": "ingress",
        "POD_NAME": f"{broker}-broker-ingress",
        "BROKER_NAME": broker,
        "BROKER_NAMESPACE": NAMESPACE,
        "RABBITMQ_VHOST": topology.VHOST,
        "PORT": str(port),
    }


def dispatcher(trigger: Trigger, broker: str, rabbit_url: str, ingress_url: str) -> dict[str, str]:
    """Return the dispatcher variables as `MakeDispatcherDeployment` sets them for a Trigger."""
    more = {"DLX_NAME": topology.dead_exchange(trigger.name)} if trigger.policy.dead_letters else {}
    return {
        **_dispatcher(trigger, rabbit_url, ingress_url),
        "QUEUE_NAME": topology.queue(trigger.name, broker),
        "SUBSCRIBER": trigger.url,
        "POD_NAME": dispatcher_name(trigger),
        **more,
    }


def dispatcher_name(trigger: Trigger) -> str:
    """Return the name of a Trigger's dispatcher process."""
    return f"{trigger.name}-dispatcher"


def dead_letter_dispatcher(trigger: Trigger, sink: str, rabbit_url: str, ingress_url: str) -> dict[str, str]:
    """Return the variables of a Trigger's dead letter dispatcher, which sends dead letters to `sink`."""
    return {
        **_dispatcher(trigger, rabbit_url, ingress_url),
        "QUEUE_NAME": topology.dead_queue(trigger.name),
        "SUBSCRIBER": sink,
        "POD_NAME": f"{trigger.name}-dlx-dispatcher",
        "DLX": "true",
    }


def _dispatcher(trigger: Trigger, rabbit_url: str, ingress_url: str) -> dict[str, str]:
    policy = trigger.policy
    return {
        "SYSTEM_NAMESPACE": SYSTEM,
        "RABBIT_URL": rabbit_url,
        "RABBITMQ_VHOST": topology.VHOST,
        "BROKER_INGRESS_URL": ingress_url,
        "NAMESPACE": NAMESPACE,
        "CONTAINER_NAME": "dispatcher",
        "RETRY": str(policy.retry),
        "BACKOFF_POLICY": policy.backoff,
        "BACKOFF_DELAY": f"{policy.delay:g}s",
        "TIMEOUT": f"{policy.timeout:g}s",
        "PARALLELISM": str(trigger.parallelism),
    }


def api_server_source(document: Document, sink: str) -> dict[str, str]:
    """Return the adapter variables as `MakeReceiveAdapter` sets them for an ApiServerSource."""
    config = {
        **_scope(document),
        "resources": [_watched(entry) for entry in document.need("spec.resources", list)],
        "mode": document.need("spec.mode", str),
    }
    return {
        "K_SINK": sink,
        "K_SOURCE_CONFIG": json.dumps(config),
        "SYSTEM_NAMESPACE": SYSTEM,
        "NAMESPACE": document.namespace,
        "NAME": document.name,
        "METRICS_DOMAIN": "knative.dev/eventing",
    }


def _scope(document: Document) -> dict[str, Any]:
    """Return the namespaces that a source watches: its own, or all of them if it has an empty selector."""
    everywhere = document.get("spec.namespaceSelector", dict) is not None
    return {"namespaces": ["" if everywhere else document.namespace], "allNamespaces": everywhere}


def _watched(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a resource in the adapter's format; the plural is guessed from the kind, as the controller does."""
    group, _, version = entry["apiVersion"].rpartition("/")
    watched: dict[str, Any] = {"gvr": {"Group": group, "Version": version, "Resource": f"{entry['kind'].lower()}s"}}
    return watched | ({"selector": text(entry["selector"])} if "selector" in entry else {})


def ping_source(kubeconfig: str) -> dict[str, str]:
    """Return the variables of `config/core/deployments/pingsource-mt-adapter.yaml`, filled in as by its controller."""
    return {
        "KUBECONFIG": kubeconfig,
        "SYSTEM_NAMESPACE": SYSTEM,
        "NAMESPACE": SYSTEM,
        "POD_NAME": "pingsource-mt-adapter",
        "K_OBSERVABILITY_CONFIG": "{}",
        "K_NO_SHUTDOWN_AFTER": "55",
        "K_SINK_TIMEOUT": "-1",
    }
