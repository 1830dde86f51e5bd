"""Tests for the question that `start` asks on a terminal, and for the warnings that it prints without one."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from kube.client.api_errors import Unavailable
from kube.maintenance.groups import MEDIK8S
from kube.nodes import build_node_path
from localcluster.cluster import LocalCluster
from tests.console.commands.test_preview import record_drain
from tests.console.commands.workload_objects import build_budget, build_controller, build_pod, create_and_wait
from tests.console.conftest import ROOT, RunCommand

NAME_PREFIX = "nodemaintenance.nodemaintenance.medik8s.io/"
COMMAND_PROGRAM = "from console.cli import main; main()"
TIMED_OUT_PREVIEW_PROGRAM = """
from console.commands import start
from kube.client.api_errors import Unavailable

async def time_out(*arguments, **options):
    raise Unavailable(0, "no response from the API server: TimeoutError")

start.preview_maintenance = time_out
from console.cli import main
main()
"""
"""Python script that runs a command and makes its preview requests time out, as on a large and busy cluster."""


def run_on_terminal(
    cluster: LocalCluster, answer: str, *arguments: str, program: str = COMMAND_PROGRAM
) -> subprocess.CompletedProcess[str]:
    """Run a command with a terminal as its stdin, and type the answer to its question."""
    controller, terminal = pty.openpty()
    command = [sys.executable, "-c", program, *arguments, "--kubeconfig", str(cluster.kubeconfig)]
    os.write(controller, answer.encode())
    try:
        return subprocess.run(
            command, stdin=terminal, capture_output=True, text=True, cwd=ROOT, timeout=60, check=False
        )
    finally:
        os.close(controller)
        os.close(terminal)


def list_maintenances(cluster: LocalCluster, node: str) -> list[str]:
    items = cluster.get_client().list(MEDIK8S.path, field_selector=f"spec.nodeName={node}")["items"]
    return [item["metadata"]["name"] for item in items]


@pytest.fixture
def blocked_node(served_cluster: LocalCluster, node_name: str) -> Iterator[str]:
    """Yield a node with a pod that a PDB blocks, and a pod without a controller; delete its maintenance afterwards."""
    create_and_wait(served_cluster, build_controller("ReplicaSet", node_name, replicas=1))
    create_and_wait(served_cluster, build_budget(f"keep-{node_name}", node_name, {"by": "replicaset"}, minAvailable=1))
    create_and_wait(served_cluster, build_pod(f"bare-{node_name}", node_name))
    yield node_name
    for name in list_maintenances(served_cluster, node_name):
        served_cluster.get_client().run(served_cluster.get_client().api.request("DELETE", f"{MEDIK8S.path}/{name}"))


def test_start_on_terminal_shows_preview_and_asks(served_cluster: LocalCluster, blocked_node: str) -> None:
    """Check that `start` prints a summary of the preview, and creates the NodeMaintenance only after a confirmation."""
    declined = run_on_terminal(served_cluster, "n\n", "start", blocked_node)
    created_after_no = list_maintenances(served_cluster, blocked_node)
    confirmed = run_on_terminal(served_cluster, "y\n", "start", blocked_node)

    assert declined.returncode == 2
    lines = declined.stderr.splitlines()
    assert lines[0] == "  1 pod leaves now, 1 pod is blocked"
    assert lines[1].startswith(f"  1 pod will block the drain: budget keep-{blocked_node} needs 1 healthy pod")
    assert lines[2] == f"  no controller will recreate 1 pod after the eviction: default/bare-{blocked_node}"
    assert f"Start the maintenance of 1 node ({blocked_node})? [y/N]: " in declined.stderr
    assert lines[-1].endswith(
        f"Error: not confirmed, nothing was done: use --yes, or see kubectl maintenance preview {blocked_node}"
    )
    assert (declined.stdout, created_after_no) == ("", [])
    assert confirmed.returncode == 0, confirmed.stderr
    assert confirmed.stdout.startswith(f"{NAME_PREFIX}{blocked_node} created\n")


def test_yes_option_skips_question_on_terminal(served_cluster: LocalCluster, blocked_node: str) -> None:
    result = run_on_terminal(served_cluster, "", "start", blocked_node, "--yes", "-o", "name")

    assert (result.returncode, result.stdout) == (0, f"{NAME_PREFIX}{blocked_node}\n")
    assert "[y/N]" not in result.stderr


@pytest.mark.parametrize("options", [(), ("--yes",), ("--dry-run",)], ids=["question", "yes", "dry run"])
def test_start_warns_once_that_end_of_maintenance_uncordons_cordoned_node(
    served_cluster: LocalCluster, blocked_node: str, options: tuple[str, ...]
) -> None:
    served_cluster.get_client().patch(build_node_path(blocked_node), {"spec": {"unschedulable": True}})

    started = run_on_terminal(served_cluster, "" if options else "y\n", "start", blocked_node, *options)

    assert started.returncode == 0, started.stderr
    warning = f'node "{blocked_node}" is already cordoned, and the end of the maintenance uncordons it'
    assert f"Warning: {warning}\n" in started.stderr
    assert (started.stdout + started.stderr).count(warning) == 1


def test_unknown_node_on_terminal_is_error_without_question(served_cluster: LocalCluster) -> None:
    result = run_on_terminal(served_cluster, "", "start", "no-such-node")

    assert result.returncode == 1
    assert result.stderr.startswith('Error: node "no-such-node" not found: ')


def test_start_in_script_does_not_ask_but_warns(run_command: RunCommand, blocked_node: str) -> None:
    """Check that `start` without a terminal creates the NodeMaintenance, and warns about what will block the drain."""
    result = run_command("start", blocked_node, "-o", "name")

    assert (result.exit_code, result.stdout) == (0, f"{NAME_PREFIX}{blocked_node}\n")
    warning = f"Warning: 1 pod will block the drain: budget keep-{blocked_node} needs 1 healthy pod"
    assert result.stderr.startswith(warning)
    assert result.stderr.count("\n") == 1


def test_start_on_terminal_asks_if_preview_times_out(served_cluster: LocalCluster, blocked_node: str) -> None:
    """Check that `start` prints the error and still asks for confirmation if the preview's requests time out."""
    declined = run_on_terminal(served_cluster, "n\n", "start", blocked_node, program=TIMED_OUT_PREVIEW_PROGRAM)

    assert declined.returncode == 2
    assert declined.stderr.startswith("Warning: cannot preview the maintenance: no response from the API server: ")
    assert f"Start the maintenance of 1 node ({blocked_node})? [y/N]: " in declined.stderr
    assert list_maintenances(served_cluster, blocked_node) == []


def test_start_in_script_warns_if_preview_times_out(
    run_command: RunCommand, blocked_node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `start` without a terminal only warns if the preview's requests time out."""

    async def time_out(*_arguments: Any, **_options: Any) -> NoReturn:
        raise Unavailable(0, "no response from the API server: TimeoutError")

    monkeypatch.setattr("console.commands.start.preview_maintenance", time_out)
    result = run_command("start", blocked_node, "-o", "name")

    assert (result.exit_code, result.stdout) == (0, f"{NAME_PREFIX}{blocked_node}\n")
    assert result.stderr.startswith("Warning: cannot preview the maintenance: no response from the API server: ")


def test_start_in_script_estimates_duration_from_given_journal(
    run_command: RunCommand, blocked_node: str, tmp_path: Path
) -> None:
    """Check that `start --journal` estimates the duration without a terminal, and requires that the file exists."""
    record_drain(tmp_path / "journal.db", blocked_node)

    missing = run_command("start", blocked_node, "--journal", str(tmp_path / "missing.db"))
    started = run_command("start", blocked_node, "--journal", str(tmp_path / "journal.db"))

    assert missing.exit_code == 2
    assert "missing.db not found" in missing.stderr
    assert started.exit_code == 0, started.output
    assert f"about 1m35s by 1 recorded drain of {blocked_node} (median)" in started.stdout.splitlines()
