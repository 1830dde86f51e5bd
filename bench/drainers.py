"""The drainers that are compared: the product, `kubectl drain`, and the lower bound ("floor").

The lower bound is a bare asynchronous client. It gets the pods as input, cordons the nodes, and then evicts the pods.
It evicts pods without a PodDisruptionBudget (PDB) concurrently. Under a PDB, it evicts as many pods as the PDB
currently allows, with a short delay between evictions. Without this delay, evictions under one PDB conflict in the API
server, which then waits for half a second.
"""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections import defaultdict, deque
from collections.abc import Iterable, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Protocol

from bench.cases import DrainCase
from bench.observer_process import TIMEOUT_SECONDS, ObserverProcess
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.evictions.requests import build_eviction, build_eviction_path
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED
from kube.paths import Object
from localcluster.programs import build

_counter = itertools.count(1)
DRAIN_FLAGS = ("--force", "--ignore-daemonsets", "--delete-emptydir-data")
MAX_QUOTED_CHARS = 300
"""Maximum number of characters to quote from a failed command's output."""
EVICTION_INTERVAL_SECONDS = 0.045
"""Delay between evictions under the same PDB."""


class Drainer(Protocol):
    """A way to drain nodes, and to make them schedulable again."""

    name: str

    def drain(self, case: DrainCase, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes; return the monotonic time at which the drain was complete.

        Raises `TimeoutError` after `TIMEOUT_SECONDS`, or `RuntimeError` with a failed command's output.
        """

    def uncordon_nodes(self, nodes: Sequence[str]) -> float:
        """Make the nodes schedulable again; return the monotonic time at which the last node was schedulable."""


def build_maintenances(names: Iterable[str], nodes: Iterable[str], reason: str) -> list[Object]:
    """Build a NodeMaintenance for each pair of a name and a node; stop at the end of the shorter iterable."""
    type_fields = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    return [
        {**type_fields, "metadata": {"name": name}, "spec": {"nodeName": node, "reason": reason}}
        for name, node in zip(names, nodes, strict=False)
    ]


class ProductDrainer:
    """Drains with a NodeMaintenance per node; done when the observer has reported each one as Succeeded."""

    name = "ours"

    def __init__(self, client: SyncClient, observer: ObserverProcess) -> None:
        self._client, self._observer = client, observer
        self._names: list[str] = []

    def drain(self, case: DrainCase, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Drainer`)."""
        self._names = [f"bench-{next(_counter)}" for _ in nodes]
        bodies = build_maintenances(self._names, nodes, case.name)
        self._client.gather_all(*(self._client.api.create(MEDIK8S.path, body) for body in bodies))
        return self._observer.wait_for_changes("phase", self._names, SUCCEEDED)

    def uncordon_nodes(self, nodes: Sequence[str]) -> float:
        """Restore the nodes (see `Drainer`)."""
        api, requested_at = self._client.api, time.monotonic()
        self._client.gather_all(*(api.request("DELETE", f"{MEDIK8S.path}/{name}") for name in self._names))
        restored_at = self._observer.wait_until_schedulable(nodes, requested_at)
        self._observer.wait_for_changes("maintenance gone", self._names)
        return restored_at


class KubectlDrainer:
    """Drains with one `kubectl drain` process per node; done when the last process has exited."""

    name = "kubectl drain"

    def __init__(self, kubeconfig: Path, observer: ObserverProcess) -> None:
        self._command = [str(build.ensure_programs() / "kubectl"), f"--kubeconfig={kubeconfig}"]
        self._observer = observer

    def drain(self, case: DrainCase, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Drainer`)."""
        devnull, pipe = subprocess.DEVNULL, subprocess.PIPE
        flags = (*DRAIN_FLAGS, f"--timeout={TIMEOUT_SECONDS:.0f}s")
        processes = [
            subprocess.Popen([*self._command, "drain", node, *flags], stdout=devnull, stderr=pipe, text=True)
            for node in nodes
        ]
        for process in processes:
            _, errors = process.communicate()
            if process.returncode:
                quoted = errors.strip()[-MAX_QUOTED_CHARS:]
                raise RuntimeError(f"kubectl drain exited with status {process.returncode}: {quoted}")
        return time.monotonic()

    def uncordon_nodes(self, nodes: Sequence[str]) -> float:
        """Restore the nodes (see `Drainer`)."""
        requested_at = time.monotonic()
        subprocess.run([*self._command, "uncordon", *nodes], check=True, capture_output=True)
        return self._observer.wait_until_schedulable(nodes, requested_at)


class FloorDrainer:
    """Drains with a bare API client; done when the observer has reported the deletion of the last pod."""

    name = "floor"

    def __init__(self, client: SyncClient, observer: ObserverProcess) -> None:
        self._client, self._observer = client, observer

    def drain(self, case: DrainCase, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Drainer`)."""
        namespace = pods[0]["metadata"]["namespace"]
        draining = drain(self._client.api, nodes, pods, namespace, has_budgets=bool(case.max_unavailable))
        try:
            self._client.run(asyncio.wait_for(draining, TIMEOUT_SECONDS))
        except asyncio.TimeoutError:
            raise TimeoutError(f"floor drainer did not evict all pods within {TIMEOUT_SECONDS:.0f} s") from None
        return self._observer.wait_for_changes("pod gone", [pod["metadata"]["name"] for pod in pods])

    def uncordon_nodes(self, nodes: Sequence[str]) -> float:
        """Restore the nodes (see `Drainer`)."""
        requested_at, api = time.monotonic(), self._client.api
        patch = {"spec": {"unschedulable": None}}
        self._client.gather_all(*(api.patch(f"/api/v1/nodes/{node}", patch) for node in nodes))
        return self._observer.wait_until_schedulable(nodes, requested_at)


async def drain(api: Api, nodes: Sequence[str], pods: Sequence[Object], namespace: str, *, has_budgets: bool) -> None:
    """Cordon the nodes and evict the pods; return when the API server has accepted all evictions."""
    await asyncio.gather(*(api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}) for node in nodes))
    if not has_budgets:
        await asyncio.gather(*(api.create(build_eviction_path(pod), build_eviction(pod)) for pod in pods))
        return
    pods_by_budget: dict[str, deque[Object]] = defaultdict(deque)
    for pod in pods:
        pods_by_budget[pod["metadata"]["labels"]["app"]].append(pod)
    await asyncio.gather(
        *(_drain_pods_of_budget(api, namespace, budget, queue) for budget, queue in pods_by_budget.items())
    )


async def _drain_pods_of_budget(api: Api, namespace: str, budget: str, pending: deque[Object]) -> None:
    """Evict the pending pods of one PDB, as many at a time as the PDB allows."""
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    async with aclosing(follow(api, path, field_selector=f"metadata.name={budget}")) as changes:
        async for change in changes:
            allowed = (change.object.get("status") or {}).get("disruptionsAllowed", 0)
            evictions = []
            for _ in range(min(allowed, len(pending))):
                evictions.append(asyncio.create_task(_evict_pod(api, pending.popleft())))
                await asyncio.sleep(EVICTION_INTERVAL_SECONDS)
            pending.extend(pod for pod in await asyncio.gather(*evictions) if pod is not None)
            if not pending:
                return


async def _evict_pod(api: Api, pod: Object) -> Object | None:
    """Evict a pod; return the pod if the eviction must be retried, otherwise None."""
    try:
        await api.create(build_eviction_path(pod), build_eviction(pod))
    except ApiError as error:
        return None if error.status == 404 else pod
    return None
