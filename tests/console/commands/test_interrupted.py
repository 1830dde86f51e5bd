"""Tests that Ctrl-C ends a command with exit status 130 and a message about what continues in the cluster."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.console.commands.workload_objects import build_budget, build_controller, create_and_wait
from tests.console.conftest import ROOT, CreateNode, RunCommand


@contextmanager
def start_command(cluster: LocalCluster, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """Start a command, yield its process, and interrupt the process at the end of the `with` block."""
    command = [sys.executable, "-m", "console.cli", *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield process
        process.send_signal(signal.SIGINT)


def interrupt_process(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Interrupt the process, and return its exit status and the last line of its stderr."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    return process.returncode, errors.strip().splitlines()[-1]


@pytest.fixture
def blocked_node(
    installed_cluster: LocalCluster, product: Product, node_name: str, run_command: RunCommand
) -> Iterator[str]:
    """Yield the name of a node whose drain a PodDisruptionBudget blocks."""
    create_and_wait(installed_cluster, build_controller("ReplicaSet", node_name, replicas=1))
    create_and_wait(installed_cluster, build_budget(f"keep-{node_name}", node_name, minAvailable=1))
    yield node_name
    run_command("stop", node_name)


def test_interrupted_start_reports_that_maintenance_continues(
    installed_cluster: LocalCluster, blocked_node: str
) -> None:
    with start_command(installed_cluster, "start", blocked_node, "--wait") as process:
        assert process.stdout
        assert process.stdout.readline().endswith("created\n")
        assert "blocked" in process.stdout.readline()
        exit_status, message = interrupt_process(process)

    assert exit_status == 130
    assert message.startswith(f'Interrupted: the maintenance of node "{blocked_node}" continues: ')
    assert f"to end it, run kubectl maintenance stop {blocked_node}" in message


@pytest.mark.slow
def test_interrupted_stop_reports_that_deletion_continues(
    installed_cluster: LocalCluster, create_node: CreateNode
) -> None:
    """Check that an interrupted `stop` reports that the maintenance's deletion continues without the command.

    In this test, another finalizer and the lack of running functions delay the deletion.
    """
    node = create_node()
    type_and_spec = {
        "apiVersion": "nodemaintenance.kubevirt.io/v1beta1",
        "kind": "NodeMaintenance",
        "spec": {"nodeName": node},
    }
    metadata = {"name": node, "finalizers": ["example.com/kept"]}
    installed_cluster.kubectl("create", "-f", "-", input=json.dumps({**type_and_spec, "metadata": metadata}))
    try:
        with start_command(installed_cluster, "stop", node) as process:
            name = f"nodemaintenances.nodemaintenance.kubevirt.io/{node}"
            installed_cluster.kubectl("wait", "--for=jsonpath={.metadata.deletionTimestamp}", name, "--timeout=20s")
            exit_status, message = interrupt_process(process)
    finally:
        installed_cluster.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')

    assert exit_status == 130
    assert message.startswith("Interrupted: maintenances marked for deletion end without this command: ")
    assert message.endswith(f"kubectl maintenance status {node}")
