"""Helpers that create maintenances of real nodes, wait for them, delete them, and list pods with running containers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S, ApiGroup
from kube.paths import Object
from localcluster.waiting import wait_for_object
from tests.real.environment import RealNodesEnvironment

TIMEOUT_SECONDS = 120.0


def create_maintenance(
    environment: RealNodesEnvironment, name: str, node: str, group: ApiGroup = MEDIK8S, **spec: Any
) -> Object:
    """Create a NodeMaintenance."""
    body = {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "reason": "real", **spec},
    }
    return environment.client.create(group.path, body)


def wait_for_maintenance(
    environment: RealNodesEnvironment,
    name: str,
    predicate: Callable[[Object], bool],
    timeout: float = TIMEOUT_SECONDS,
    group: ApiGroup = MEDIK8S,
) -> Object:
    """Wait until the maintenance satisfies `predicate`, and return the maintenance."""
    return wait_for_object(
        environment.client,
        f"{group.path}/{name}",
        lambda maintenance: maintenance is not None and predicate(maintenance),
        timeout,
    )


def wait_until_succeeded(
    environment: RealNodesEnvironment, name: str, timeout: float = TIMEOUT_SECONDS, group: ApiGroup = MEDIK8S
) -> Object:
    """Wait until the maintenance's phase is Succeeded, and return the maintenance."""
    return wait_for_maintenance(
        environment, name, lambda maintenance: m.get_phase(maintenance) == "Succeeded", timeout, group
    )


def end_maintenance(environment: RealNodesEnvironment, name: str, node: str, group: ApiGroup = MEDIK8S) -> None:
    """Delete a maintenance, and wait until the maintenance is gone and its node is schedulable."""
    environment.delete(f"{group.path}/{name}")
    wait_for_object(
        environment.client, f"{group.path}/{name}", lambda maintenance: maintenance is None, TIMEOUT_SECONDS
    )
    path = f"/api/v1/nodes/{node}"
    wait_for_object(
        environment.client,
        path,
        lambda node_object: node_object is not None and not node_object["spec"].get("unschedulable"),
        TIMEOUT_SECONDS,
    )


def list_running_pods(environment: RealNodesEnvironment, node_name: str, *pods: Object) -> set[str]:
    """Return the names of those pods for which the node's containerd still runs a container."""
    return {
        pod["metadata"]["name"]
        for pod in pods
        if environment.get_node(node_name).list_running_containers(pod["metadata"]["uid"])
    }
