"""Creates and deletes a case's workload: bare pods, or Deployments with PDBs and with capacity on a spare node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from bench.cases import DrainCase
from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.pods import is_ready
from localcluster.cluster import FAKE_NODE_TOLERATION

DELETE_DELAY_ANNOTATION = "pod-delete.stage.kwok.x-k8s.io/delay"
"""kwok's annotation with the time that a pod takes to terminate."""
TIMEOUT_SECONDS, TIMEOUT_SECONDS_PER_POD = 120.0, 0.05
"""Timeout for creating or deleting a workload: a fixed part, and a part per pod, in seconds."""
MAX_CONCURRENT = 50
_counter = itertools.count(1)


class Workload:
    """The workload of one round, in its own namespace.

    The methods raise `asyncio.TimeoutError` if the workload does not reach the expected state.

    Args:
        client: The API client.
        case: The case to measure.
        nodes: The names of the nodes to drain.
        spare_node: The name of the node for the pods that Deployments recreate.
    """

    def __init__(self, client: SyncClient, case: DrainCase, nodes: Sequence[str], spare_node: str) -> None:
        self._client, self._case, self._nodes, self._spare_node = client, case, nodes, spare_node
        self.namespace = f"bench-{next(_counter)}"
        self._pods_path = f"/api/v1/namespaces/{self.namespace}/pods"

    def deploy(self) -> list[Object]:
        """Create the workload; return the pods when they are Ready and each PDB allows `max_unavailable` evictions."""
        self._client.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self._wait_until(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", lambda accounts: "default" in accounts)
        for number, node in enumerate(self._nodes):
            self._deploy_with_budget(f"web-{number}", node) if self._case.max_unavailable else self._create_bare_pods(
                node
            )
        pod_count = self._case.pods * len(self._nodes)
        pods = self._wait_until(self._pods_path, lambda ready_pods: len(ready_pods) >= pod_count, matches=is_ready)
        if self._case.max_unavailable:
            self._wait_until(self._budgets_path, lambda budgets: all(map(self._is_budget_open, budgets.values())))
            for number in range(len(self._nodes)):
                self._allow_deployment_on_node(self._spare_node, f"web-{number}")
        return list(pods.values())

    def delete(self) -> None:
        """Delete the workload; return when its last pod is deleted."""
        self._client.run(self._client.api.request("DELETE", f"/api/v1/namespaces/{self.namespace}"))
        self._wait_until(self._pods_path, lambda pods: not pods)

    @property
    def _budgets_path(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"

    def _is_budget_open(self, budget: Object) -> bool:
        return bool((budget.get("status") or {}).get("disruptionsAllowed") == self._case.max_unavailable)

    def _create_bare_pods(self, node: str) -> None:
        bodies = [self._build_pod(node, f"{node}-{number}") for number in range(self._case.pods)]
        run_concurrently(self._client, (self._client.api.create(self._pods_path, body) for body in bodies))

    def _build_pod(self, node: str, name: str) -> Object:
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "fake"}]}
        return {"metadata": {"name": name, "annotations": self._pod_annotations}, "spec": spec}

    @property
    def _pod_annotations(self) -> dict[str, str]:
        return (
            {DELETE_DELAY_ANNOTATION: f"{self._case.termination_seconds:g}s"} if self._case.termination_seconds else {}
        )

    def _deploy_with_budget(self, name: str, node: str) -> None:
        """Create a Deployment and its PDB; the pods can run only on this node until another node is allowed."""
        self._create_deployment(name, node, self._case.pods)
        budget = {"maxUnavailable": self._case.max_unavailable, "selector": {"matchLabels": {"app": name}}}
        self._client.create(self._budgets_path, {"metadata": {"name": name}, "spec": budget})

    def deploy_tolerant_pods(self, name: str, node: str, replicas: int) -> None:
        """Create a Deployment whose pods run on this node and tolerate all taints; return when all pods are Ready."""
        self._create_deployment(name, node, replicas, tolerations=[{"operator": "Exists"}])
        pod_count = len(self._nodes) * self._case.pods + replicas
        self._wait_until(self._pods_path, lambda ready_pods: len(ready_pods) >= pod_count, matches=is_ready)

    def remove_tolerations(self, name: str, other_node: str) -> None:
        """Remove a Deployment's tolerations, and allow its pods to run on `other_node`, too."""
        self._allow_deployment_on_node(other_node, name)
        spec = {"template": {"spec": {"tolerations": [FAKE_NODE_TOLERATION]}}}
        self._client.patch(f"{self._deployments_path}/{name}", {"spec": spec})

    @property
    def _deployments_path(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments"

    def _create_deployment(self, name: str, node: str, replicas: int, **pod_spec: Any) -> None:
        self._allow_deployment_on_node(node, name)
        labels = {"app": name}
        selector = {self._build_node_label_key(name): "yes"}
        containers = [{"name": "main", "image": "fake"}]
        template = {
            "metadata": {"labels": labels, "annotations": self._pod_annotations},
            "spec": {
                "nodeSelector": selector,
                "containers": containers,
                "tolerations": [FAKE_NODE_TOLERATION],
                **pod_spec,
            },
        }
        spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self._client.create(self._deployments_path, {"metadata": {"name": name}, "spec": spec})

    def _build_node_label_key(self, name: str) -> str:
        return f"bench/{self.namespace}-{name}"

    def _allow_deployment_on_node(self, node: str, name: str) -> None:
        self._client.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {self._build_node_label_key(name): "yes"}}})

    def _wait_until(
        self, path: str, is_done: Callable[[dict[str, Object]], bool], matches: Callable[[Object], bool] = bool
    ) -> dict[str, Object]:
        timeout = TIMEOUT_SECONDS + TIMEOUT_SECONDS_PER_POD * self._case.pods * self._case.nodes
        return wait_until(self._client, path, is_done, timeout, matches=matches)


def run_concurrently(client: SyncClient, calls: Iterable[Awaitable[Object]]) -> None:
    """Await API calls with limited concurrency, because a call's timeout includes the wait for a free connection."""
    limiter = asyncio.Semaphore(MAX_CONCURRENT)

    async def await_with_limit(call: Awaitable[Object]) -> Object:
        async with limiter:
            return await call

    client.gather_all(*map(await_with_limit, calls))


def wait_until(
    client: SyncClient,
    path: str,
    is_done: Callable[[dict[str, Object]], bool],
    timeout: float = TIMEOUT_SECONDS,
    *,
    matches: Callable[[Object], bool] = bool,
) -> dict[str, Object]:
    """Return a collection's objects by name once `is_done` is true. Raises `asyncio.TimeoutError` after `timeout`.

    Args:
        client: The API client.
        path: The path of the collection.
        is_done: Called with the objects by name after every change, so it must be fast for thousands of objects.
        timeout: The timeout in seconds.
        matches: Returns whether an object must be included.
    """
    return client.run(asyncio.wait_for(_watch_until(client, path, is_done, matches), timeout))


async def _watch_until(
    client: SyncClient, path: str, is_done: Callable[[dict[str, Object]], bool], matches: Callable[[Object], bool]
) -> dict[str, Object]:
    objects: dict[str, Object] = {}
    is_synced = False
    async with aclosing(follow(client.api, path)) as changes:
        async for change in changes:
            is_synced = is_synced or change.change_type == "SYNCED"
            if change.change_type != "SYNCED":
                objects.pop(change.object["metadata"]["name"], None)
                if change.change_type != "DELETED" and matches(change.object):
                    objects[change.object["metadata"]["name"]] = change.object
            if is_synced and is_done(objects):
                return objects
    raise TimeoutError(f"watch of {path} ended before the condition was met")
