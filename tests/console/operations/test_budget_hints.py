"""Tests for the commands that scale up the workload of a blocked pod, with plain dicts as the API server's objects."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from console.operations.budget_hints import read_budget_hints
from kube.client.api import Api
from kube.client.api_errors import Denied
from kube.paths import DEFAULT_NAMESPACE, Object
from tests.kube.samples import make_budget

APPS_PATH = "/apis/apps/v1/namespaces/shop"
POD_PATH = "/api/v1/namespaces/shop/pods/web-1"
BUDGET_PATH = "/apis/policy/v1/namespaces/shop/poddisruptionbudgets/web"
BLOCKED_POD = {"namespace": "shop", "name": "web-1", "reason": "DisruptionBudget", "message": "no", "budget": "web"}
MAINTENANCE = {"metadata": {"name": "node-1"}, "status": {"blockedPods": [BLOCKED_POD]}}


class FakeApi:
    """API client that returns the objects in a dict by their paths, and denies the requests for all other paths."""

    def __init__(self, objects: dict[str, Object]) -> None:
        self._objects = objects

    async def get(self, path: str) -> Object:
        """Return the object at the path. Raises `Denied` if there is none."""
        if path not in self._objects:
            raise Denied(403, f"forbidden: {path}")
        return self._objects[path]


def build_workload(kind: str, name: str, owner: tuple[str, str, str] | None = None) -> Object:
    owners = [dict(zip(("apiVersion", "kind", "name"), owner, strict=True), controller=True)] if owner else []
    return {"kind": kind, "metadata": {"name": name, "ownerReferences": owners}, "spec": {"replicas": 3}}


def find_scale_commands(*workloads: tuple[str, Object]) -> dict[str, str]:
    """Return the commands for a blocked pod whose controller is the first of these workloads."""
    budget = make_budget("web", namespace="shop")
    budget["spec"]["minAvailable"] = 3
    budget["status"]["expectedPods"] = 3
    controller = workloads[0][1]
    pod = build_workload("Pod", "web-1", ("apps/v1", controller["kind"], controller["metadata"]["name"]))
    paths = {f"{APPS_PATH}/{plural}/{workload['metadata']['name']}": workload for plural, workload in workloads}
    api = cast("Api", FakeApi({BUDGET_PATH: budget, POD_PATH: pod, **paths}))
    return asyncio.run(read_budget_hints(api, [MAINTENANCE], DEFAULT_NAMESPACE)).scale_commands


@pytest.mark.parametrize(
    ("workloads", "target"),
    [
        (
            (
                ("replicasets", build_workload("ReplicaSet", "web-5d4f", ("apps/v1", "Deployment", "web"))),
                ("deployments", build_workload("Deployment", "web")),
            ),
            "deployment/web",
        ),
        ((("statefulsets", build_workload("StatefulSet", "web")),), "statefulset/web"),
        ((("replicasets", build_workload("ReplicaSet", "web")),), "replicaset/web"),
    ],
    ids=["Deployment", "StatefulSet", "ReplicaSet"],
)
def test_command_scales_workload_that_determines_number_of_pods(
    workloads: tuple[tuple[str, Object], ...], target: str
) -> None:
    assert find_scale_commands(*workloads) == {"shop/web": f"kubectl scale {target} -n shop --replicas=4"}


@pytest.mark.parametrize(
    "workload",
    [
        ("replicasets", build_workload("ReplicaSet", "web-5d4f", ("argoproj.io/v1alpha1", "Rollout", "web"))),
        ("replicasets", build_workload("ReplicaSet", "web-5d4f", ("apps/v1", "Deployment", "web"))),
        ("daemonsets", build_workload("DaemonSet", "web")),
    ],
    ids=["other owner", "unreadable owner", "no replicas"],
)
def test_unknown_workload_has_no_command(workload: tuple[str, Object]) -> None:
    assert find_scale_commands(workload) == {}
