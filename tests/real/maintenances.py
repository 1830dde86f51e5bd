"""Creates, awaits and deletes maintenances of real nodes, and reads their running containers from containerd."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kube.maintenance import objects as m
from kube.maintenance.groups import MEDIK8S, Group
from kube.paths import Object
from tests.real.environment import Real
from tests.waiting import wait_for

SECONDS = 120.0


def begin(real: Real, name: str, node: str, group: Group = MEDIK8S, **spec: Any) -> Object:
    """Create a NodeMaintenance."""
    body = {
        "apiVersion": group.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": name},
        "spec": {"nodeName": node, "reason": "real", **spec},
    }
    return real.door.create(group.path, body)


def until_maintenance(
    real: Real, name: str, holds: Callable[[Object], bool], seconds: float = SECONDS, group: Group = MEDIK8S
) -> Object:
    """Wait until `holds` is true for the maintenance; return it."""
    return wait_for(real.door, f"{group.path}/{name}", lambda found: found is not None and holds(found), seconds)


def until_succeeded(real: Real, name: str, seconds: float = SECONDS, group: Group = MEDIK8S) -> Object:
    """Wait until the maintenance is Succeeded; return it."""
    return until_maintenance(real, name, lambda found: m.phase(found) == "Succeeded", seconds, group)


def end(real: Real, name: str, node: str, group: Group = MEDIK8S) -> None:
    """Delete a maintenance; return once it is deleted and its node is schedulable again."""
    real.delete(f"{group.path}/{name}")
    wait_for(real.door, f"{group.path}/{name}", lambda found: found is None, SECONDS)
    path = f"/api/v1/nodes/{node}"
    wait_for(real.door, path, lambda found: found is not None and not found["spec"].get("unschedulable"), SECONDS)


def running(real: Real, node: str, *pods: Object) -> set[str]:
    """Return the names of those pods of which containerd still runs a container on the node."""
    return {pod["metadata"]["name"] for pod in pods if real.node(node).running(pod["metadata"]["uid"])}
