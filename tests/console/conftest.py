"""Fixtures for running commands on a real cluster, and for nodes to which no other pods are scheduled."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from console.cli import cli
from kube.client.api import get_or_none
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.nodes import NODES_PATH, build_node_path
from localcluster.cluster import LocalCluster
from localcluster.plugin.wheel import build_wheel
from localcluster.programs import build
from localcluster.readiness import is_node_ready
from localcluster.waiting import wait_for_object
from tests.console.commands.workload_objects import NODE_TAINT_KEY, delete_objects

RunCommand = Callable[..., Result]
CreateNode = Callable[[], str]
NODE_COUNTER = count(1)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def served_cluster(installed_cluster: LocalCluster) -> LocalCluster:
    """Return the cluster after it serves the API groups of NodeMaintenance.

    The API server responds with 429 for a moment after a CRD becomes Established; kubectl retries such requests.
    """
    for group in (MEDIK8S, KUBEVIRT):
        installed_cluster.kubectl("get", f"nodemaintenances.{group.api_version.split('/')[0]}")
    return installed_cluster


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the wheel `kubectl-maintenance`, built from the sources."""
    return build_wheel(tmp_path_factory.mktemp("wheel"))


@pytest.fixture
def run_command(served_cluster: LocalCluster) -> RunCommand:
    """Return a function that runs a command on the cluster, as the administrator or as `user`."""

    def invoke_command(*args: str, user: str = "admin") -> Result:
        kubeconfig = ["--kubeconfig", str(served_cluster.ensure_kubeconfig(user))]
        return CliRunner().invoke(cli, [*kubeconfig, *args], prog_name="kubectl maintenance")

    return invoke_command


@pytest.fixture
def create_node(installed_cluster: LocalCluster) -> Iterator[CreateNode]:
    """Yield a function that creates Ready nodes with a taint that keeps other tests' pods away.

    After the test, the fixture deletes these nodes and the objects that `create_and_wait` created for them.
    """
    names: list[str] = []

    def create_tainted_node() -> str:
        name = f"console-{next(NODE_COUNTER)}"
        taint = {"key": NODE_TAINT_KEY, "effect": "NoSchedule"}
        metadata = {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {"kwok.x-k8s.io/node": "fake"},
        }
        node = {"apiVersion": "v1", "kind": "Node", "metadata": metadata, "spec": {"taints": [taint]}}
        installed_cluster.get_client().create(NODES_PATH, node)
        wait_for_object(
            installed_cluster.get_client(),
            build_node_path(name),
            lambda live_node: live_node is not None and is_node_ready(live_node),
            20,
        )
        names.append(name)
        return name

    yield create_tainted_node
    for name in names:
        delete_objects(installed_cluster, name)
        installed_cluster.get_client().run(
            get_or_none(installed_cluster.get_client().api.request("DELETE", build_node_path(name)))
        )


@pytest.fixture
def node_name(create_node: CreateNode) -> str:
    """Return the name of a new node from `create_node`."""
    return create_node()


@pytest.fixture
def plugin_environment(served_cluster: LocalCluster, tmp_path: Path) -> dict[str, str]:
    """Return environment variables with which kubectl finds `kubectl-maintenance`, as after an installation."""
    script = tmp_path / "kubectl-maintenance"
    script.write_text(f"#!{sys.executable}\nfrom console.cli import main\n\nmain()\n")
    script.chmod(0o755)
    path = f"{tmp_path}:{build.ensure_programs()}:{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(ROOT), "KUBECONFIG": str(served_cluster.kubeconfig)}
