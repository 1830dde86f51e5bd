"""The drainers that are compared: the product, `kubectl drain`, and the lower bound."""

from __future__ import annotations

import asyncio
import itertools
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from bench import floor
from bench.cases import Case
from bench.observer_process import PATIENCE, Watching
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import SUCCEEDED
from kube.paths import Object
from localcluster.programs import build

_numbers = itertools.count(1)
KUBECTL = ("--force", "--ignore-daemonsets", "--delete-emptydir-data")


QUOTED = 300
"""Number of characters of a failed program's output to quote."""


class Way(Protocol):
    """A way to drain nodes and to restore them."""

    name: str

    def drain(self, case: Case, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes; return the time at which the drainer reported completion.

        Raises `TimeoutError` after `PATIENCE`, or `RuntimeError` with the output of a program.
        """

    def give_back(self, nodes: Sequence[str]) -> float:
        """Make the nodes schedulable again; return the time at which the last one was restored."""


def maintenances(names: Iterable[str], nodes: Iterable[str], reason: str) -> list[Object]:
    """Return a NodeMaintenance for each pair of name and node; nodes without a name are skipped."""
    head = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    return [
        {**head, "metadata": {"name": name}, "spec": {"nodeName": node, "reason": reason}}
        for name, node in zip(names, nodes, strict=False)
    ]


class Ours:
    """Creates a NodeMaintenance for each node; done when the observer has seen the last one Succeeded."""

    name = "ours"

    def __init__(self, cluster: Cluster, watching: Watching) -> None:
        self._cluster, self._watching = cluster, watching
        self._made: list[str] = []

    def drain(self, case: Case, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Way`)."""
        self._made = [f"bench-{next(_numbers)}" for _ in nodes]
        bodies = maintenances(self._made, nodes, case.name)
        self._cluster.together(*(self._cluster.api.create(MEDIK8S.path, body) for body in bodies))
        return self._watching.last("phase", self._made, SUCCEEDED)

    def give_back(self, nodes: Sequence[str]) -> float:
        """Restore the nodes (see `Way`)."""
        api, since = self._cluster.api, time.monotonic()
        self._cluster.together(*(api.request("DELETE", f"{MEDIK8S.path}/{name}") for name in self._made))
        back = self._watching.in_service(nodes, since)
        self._watching.last("maintenance gone", self._made)
        return back


class Kubectl:
    """Runs `kubectl drain`, one process per node; done when the last one has exited."""

    name = "kubectl drain"

    def __init__(self, kubeconfig: Path, watching: Watching) -> None:
        self._line = [str(build.servers() / "kubectl"), f"--kubeconfig={kubeconfig}"]
        self._watching = watching

    def drain(self, case: Case, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Way`)."""
        quiet, pipe = subprocess.DEVNULL, subprocess.PIPE
        words = (*KUBECTL, f"--timeout={PATIENCE:.0f}s")
        running = [
            subprocess.Popen([*self._line, "drain", node, *words], stdout=quiet, stderr=pipe, text=True)
            for node in nodes
        ]
        for each in running:
            _, said = each.communicate()
            if each.returncode:
                raise RuntimeError(f"kubectl drain ended with {each.returncode}: {said.strip()[-QUOTED:]}")
        return time.monotonic()

    def give_back(self, nodes: Sequence[str]) -> float:
        """Restore the nodes (see `Way`)."""
        since = time.monotonic()
        subprocess.run([*self._line, "uncordon", *nodes], check=True, capture_output=True)
        return self._watching.in_service(nodes, since)


class Floor:
    """Uses the bare client; done when the observer has seen the last pod gone."""

    name = "floor"

    def __init__(self, cluster: Cluster, watching: Watching) -> None:
        self._cluster, self._watching = cluster, watching

    def drain(self, case: Case, nodes: Sequence[str], pods: Sequence[Object]) -> float:
        """Drain the nodes (see `Way`)."""
        namespace = pods[0]["metadata"]["namespace"]
        draining = floor.drain(self._cluster.api, nodes, pods, namespace, budgets=bool(case.budget))
        try:
            self._cluster.run(asyncio.wait_for(draining, PATIENCE))
        except asyncio.TimeoutError:
            raise TimeoutError(f"not all pods could be evicted within {PATIENCE:.0f} s") from None
        return self._watching.last("pod gone", [pod["metadata"]["name"] for pod in pods])

    def give_back(self, nodes: Sequence[str]) -> float:
        """Restore the nodes (see `Way`)."""
        since, api = time.monotonic(), self._cluster.api
        uncordoned = {"spec": {"unschedulable": None}}
        self._cluster.together(*(api.patch(f"/api/v1/nodes/{node}", uncordoned) for node in nodes))
        return self._watching.in_service(nodes, since)
