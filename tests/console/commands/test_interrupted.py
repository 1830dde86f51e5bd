"""Tests that Ctrl-C ends a command with exit status 130 and a message about what continues without the command."""

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
from tests.console.commands.workload_objects import apply, budget, controlled
from tests.console.conftest import ROOT, Nodes, Run


@contextmanager
def running(cluster: LocalCluster, *words: str) -> Iterator[subprocess.Popen[str]]:
    """Yield the process of a command, and interrupt it at the end of the block."""
    line = [sys.executable, "-m", "console.cli", *words, "--kubeconfig", str(cluster.kubeconfig)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, cwd=ROOT) as process:
        yield process
        process.send_signal(signal.SIGINT)


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Interrupt the process, and return its exit status and the last line of its stderr."""
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=20)
    assert "Traceback" not in errors
    return process.returncode, errors.strip().splitlines()[-1]


@pytest.fixture
def blocked(installed: LocalCluster, product: Product, node: str, run: Run) -> Iterator[str]:
    """Yield a node whose drain a budget blocks."""
    apply(installed, controlled("ReplicaSet", node, replicas=1))
    apply(installed, budget(f"keep-{node}", node, minAvailable=1))
    yield node
    run("stop", node)


def test_start_says_that_the_maintenance_goes_on(installed: LocalCluster, blocked: str) -> None:
    with running(installed, "start", blocked, "--wait") as process:
        assert process.stdout
        assert process.stdout.readline().endswith("created\n")
        assert "blocked" in process.stdout.readline()
        status, said = ended(process)

    assert status == 130
    assert said.startswith(f"Interrupted: the maintenance of {blocked} goes on: ")
    assert f"kubectl maintenance stop {blocked} ends it" in said


@pytest.mark.slow
def test_stop_says_that_the_node_is_given_back_without_it(installed: LocalCluster, new_node: Nodes) -> None:
    """Check that an interrupted `stop` reports that the deletion continues without the command.

    In this test the deletion does not continue: a finalizer of another owner keeps the object, and no function runs.
    """
    node = new_node()
    item = {"apiVersion": "nodemaintenance.kubevirt.io/v1beta1", "kind": "NodeMaintenance", "spec": {"nodeName": node}}
    metadata = {"name": node, "finalizers": ["example.com/kept"]}
    installed.kubectl("create", "-f", "-", input=json.dumps({**item, "metadata": metadata}))
    try:
        with running(installed, "stop", node) as process:
            name = f"nodemaintenances.nodemaintenance.kubevirt.io/{node}"
            installed.kubectl("wait", "--for=jsonpath={.metadata.deletionTimestamp}", name, "--timeout=20s")
            status, said = ended(process)
    finally:
        installed.kubectl("patch", name, "--type=merge", "-p", '{"metadata":{"finalizers":null}}')

    assert status == 130
    assert said.startswith("Interrupted: what is marked for deletion ends without this command: ")
    assert said.endswith(f"kubectl maintenance status {node}")
