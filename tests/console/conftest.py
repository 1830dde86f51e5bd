"""Fixtures: the command line on a real cluster, and nodes to which no other pods are scheduled."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from console.cli import commands
from kube.client.api import absent_ok
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import NODES, node_path
from kube.pods import is_ready
from localcluster.cluster import LocalCluster
from localcluster.programs import build
from tests.console.commands.workload_objects import KEEP_OUT, clear
from tests.waiting import wait_for

Run = Callable[..., Result]
Nodes = Callable[[], str]
NUMBERS = count(1)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def served(installed: LocalCluster) -> LocalCluster:
    """Return the cluster after it serves our API groups.

    The API server responds with 429 for a moment after a CRD is Established; kubectl retries such requests.
    """
    for group in (MEDIK8S, KUBEVIRT):
        installed.kubectl("get", f"nodemaintenances.{group.api_version.split('/')[0]}")
    return installed


@pytest.fixture
def run(served: LocalCluster) -> Run:
    """Return a function that runs one command line against the cluster, as the administrator or as `user`."""

    def runs(*words: str, user: str = "admin") -> Result:
        kubeconfig = ["--kubeconfig", str(served.kubeconfig_for(user))]
        return CliRunner().invoke(commands, [*kubeconfig, *words], prog_name="kubectl maintenance")

    return runs


@pytest.fixture
def new_node(installed: LocalCluster) -> Iterator[Nodes]:
    """Yield a function that creates Ready nodes with a taint that keeps other tests' pods out.

    After the test, the fixture deletes the nodes and the objects that `workloads` created for them.
    """
    names: list[str] = []

    def make() -> str:
        name = f"console-{next(NUMBERS)}"
        taint = {"key": KEEP_OUT, "effect": "NoSchedule"}
        metadata = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}}
        installed.door().create(NODES, node)
        wait_for(installed.door(), node_path(name), lambda found: found is not None and is_ready(found), 20)
        names.append(name)
        return name

    yield make
    for name in names:
        clear(installed, name)
        installed.door().run(absent_ok(installed.door().api.request("DELETE", node_path(name))))


@pytest.fixture
def node(new_node: Nodes) -> str:
    """Return the name of a new node from `new_node`."""
    return new_node()


@pytest.fixture
def plugin(served: LocalCluster, tmp_path: Path) -> dict[str, str]:
    """Return an environment in which kubectl finds the `kubectl-maintenance` script of an installed project."""
    script = tmp_path / "kubectl-maintenance"
    script.write_text(f"#!{sys.executable}\nfrom console.cli import main\n\nmain()\n")
    script.chmod(0o755)
    path = f"{tmp_path}:{build.servers()}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "KUBECONFIG": str(served.kubeconfig)}
