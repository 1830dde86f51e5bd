"""Creates and deletes a case's workload: bare pods, or Deployments with budgets and capacity on another node."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import Any

from bench.cases import Case
from kube.client.list_watch import follow
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.pods import is_ready

DELAY = "pod-delete.stage.kwok.x-k8s.io/delay"
"""kwok's annotation for how long a pod takes to terminate."""
PATIENCE, PATIENCE_PER_POD = 120.0, 0.05
"""Timeout in seconds for a workload to become ready or to disappear: a fixed part, and a part per pod."""
AT_ONCE = 50
_numbers = itertools.count(1)


class Load:
    """The workload of one round, in its own namespace.

    Raises `TimeoutError` if the workload does not become ready.

    Args:
        cluster: The API client.
        nodes: The nodes to drain.
        spare: The node for the pods that their controllers recreate.
    """

    def __init__(self, cluster: Cluster, case: Case, nodes: Sequence[str], spare: str) -> None:
        self._cluster, self._case, self._nodes, self._spare = cluster, case, nodes, spare
        self.namespace = f"bench-{next(_numbers)}"
        self._pods = f"/api/v1/namespaces/{self.namespace}/pods"

    def fill(self) -> list[Object]:
        """Create the workload; return the pods once all are Ready and every budget allows its evictions."""
        self._cluster.create("/api/v1/namespaces", {"metadata": {"name": self.namespace}})
        self._until(f"/api/v1/namespaces/{self.namespace}/serviceaccounts", lambda accounts: "default" in accounts)
        for number, node in enumerate(self._nodes):
            self._behind_budget(f"web-{number}", node) if self._case.budget else self._bare(node)
        wanted = self._case.pods * len(self._nodes)
        pods = self._until(self._pods, lambda ready: len(ready) >= wanted, only=is_ready)
        if self._case.budget:
            self._until(self._budgets, lambda found: all(map(self._is_open, found.values())))
            for number in range(len(self._nodes)):
                self._allow(self._spare, f"web-{number}")
        return list(pods.values())

    def clear(self) -> None:
        """Delete the workload; return when its last pod is gone."""
        self._cluster.run(self._cluster.api.request("DELETE", f"/api/v1/namespaces/{self.namespace}"))
        self._until(self._pods, lambda pods: not pods)

    @property
    def _budgets(self) -> str:
        return f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets"

    def _is_open(self, budget: Object) -> bool:
        return bool((budget.get("status") or {}).get("disruptionsAllowed") == self._case.budget)

    def _bare(self, node: str) -> None:
        bodies = [self._pod(node, f"{node}-{number}") for number in range(self._case.pods)]
        side_by_side(self._cluster, (self._cluster.api.create(self._pods, body) for body in bodies))

    def _pod(self, node: str, name: str) -> Object:
        spec = {"nodeName": node, "containers": [{"name": "main", "image": "fake"}]}
        return {"metadata": {"name": name, "annotations": self._annotations}, "spec": spec}

    @property
    def _annotations(self) -> dict[str, str]:
        return {DELAY: f"{self._case.termination:g}s"} if self._case.termination else {}

    def _behind_budget(self, name: str, node: str) -> None:
        """Create a Deployment that is bound to the node until `_allow` adds another one, and its budget."""
        self._deployment(name, node, self._case.pods)
        budget = {"maxUnavailable": self._case.budget, "selector": {"matchLabels": {"app": name}}}
        self._cluster.create(self._budgets, {"metadata": {"name": name}, "spec": budget})

    def deploy_tolerant(self, name: str, node: str, replicas: int) -> None:
        """Create a Deployment that is bound to the node and tolerates all taints; return when all pods are Ready."""
        self._deployment(name, node, replicas, tolerations=[{"operator": "Exists"}])
        wanted = len(self._nodes) * self._case.pods + replicas
        self._until(self._pods, lambda ready: len(ready) >= wanted, only=is_ready)

    def heed_taints(self, name: str, elsewhere: str) -> None:
        """Remove the tolerations of such a Deployment, and allow its pods on another node."""
        self._allow(elsewhere, name)
        spec = {"template": {"spec": {"tolerations": None}}}
        self._cluster.patch(f"{self._deployments}/{name}", {"spec": spec})

    @property
    def _deployments(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments"

    def _deployment(self, name: str, node: str, replicas: int, **more: Any) -> None:
        self._allow(node, name)
        labels = {"app": name}
        selector = {self._label(name): "yes"}
        containers = [{"name": "main", "image": "fake"}]
        template = {
            "metadata": {"labels": labels, "annotations": self._annotations},
            "spec": {"nodeSelector": selector, "containers": containers, **more},
        }
        spec: dict[str, Any] = {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template}
        self._cluster.create(self._deployments, {"metadata": {"name": name}, "spec": spec})

    def _label(self, name: str) -> str:
        return f"bench/{self.namespace}-{name}"

    def _allow(self, node: str, name: str) -> None:
        self._cluster.patch(f"/api/v1/nodes/{node}", {"metadata": {"labels": {self._label(name): "yes"}}})

    def _until(
        self, path: str, done: Callable[[dict[str, Object]], bool], only: Callable[[Object], bool] = bool
    ) -> dict[str, Object]:
        patience = PATIENCE + PATIENCE_PER_POD * self._case.pods * self._case.nodes
        return until(self._cluster, path, done, patience, only=only)


def side_by_side(cluster: Cluster, calls: Iterable[Awaitable[Object]]) -> None:
    """Make many calls, a limited number concurrently: a request that waits for a connection uses up its own timeout."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def gated(call: Awaitable[Object]) -> Object:
        async with gate:
            return await call

    cluster.together(*map(gated, calls))


def until(
    cluster: Cluster,
    path: str,
    done: Callable[[dict[str, Object]], bool],
    seconds: float = PATIENCE,
    *,
    only: Callable[[Object], bool] = bool,
) -> dict[str, Object]:
    """Return the objects of a collection by name once `done` is true. Raises `asyncio.TimeoutError`.

    Args:
        cluster: The API client.
        path: The path of the collection.
        done: Called at each change, so it must be fast even for thousands of objects.
        seconds: The timeout.
        only: Selects the objects that count.
    """
    return cluster.run(asyncio.wait_for(_until(cluster, path, done, only), seconds))


async def _until(
    cluster: Cluster, path: str, done: Callable[[dict[str, Object]], bool], only: Callable[[Object], bool]
) -> dict[str, Object]:
    known: dict[str, Object] = {}
    synced = False
    async with aclosing(follow(cluster.api, path)) as changes:
        async for change in changes:
            synced = synced or change.kind == "SYNCED"
            if change.kind != "SYNCED":
                known.pop(change.object["metadata"]["name"], None)
                if change.kind != "DELETED" and only(change.object):
                    known[change.object["metadata"]["name"]] = change.object
            if synced and done(known):
                return known
    raise TimeoutError(path)
