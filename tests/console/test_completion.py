"""Tests for the shell completion, for which kubectl calls `kubectl_complete-maintenance`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from console.completion import complete
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.console.conftest import ROOT, CreateNode, RunCommand


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["cord"], ["cordon\tMark nodes unschedulable; their pods keep running", ":4"]),
        (["start", "node-1", "--group", ""], ["medik8s", "kubevirt", ":4"]),
        (["start", "node-1", "--group=k"], ["--group=kubevirt", ":4"]),
        (["mutex", "ret"], ["retry\tResume a halted upgrade run where it stopped", ":4"]),
        (["status", "--kubeconfig", ""], [":0"]),
    ],
)
def test_completion_offers_commands_options_and_values(args: list[str], expected: list[str]) -> None:
    """Check that the completion prints one candidate per line, and then the directive for the shell."""
    assert complete(args) == expected


def test_completion_without_arguments_offers_all_commands() -> None:
    names = [line.split("\t")[0] for line in complete([""])]

    assert {"start", "status", "version"} <= set(names)


def test_completion_offers_no_names_if_cluster_is_unreachable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Check that a completion prints no error if the cluster cannot be read."""
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "missing"))

    assert complete(["start", ""]) == [":4"]


@pytest.mark.slow
def test_completion_ends_if_credential_plugin_hangs(tmp_path: Path) -> None:
    """Check that the shell does not wait for a credential plugin that does not respond."""
    plugin = {"apiVersion": "client.authentication.k8s.io/v1", "command": "sleep", "args": ["60"]}
    config = {
        "current-context": "slow",
        "contexts": [{"name": "slow", "context": {"cluster": "slow", "user": "slow"}}],
        "clusters": [{"name": "slow", "cluster": {"server": "https://127.0.0.1:1"}}],
        "users": [{"name": "slow", "user": {"exec": {**plugin, "interactiveMode": "Never"}}}],
    }
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(json.dumps(config))
    command = [sys.executable, "-m", "console.completion", "start", "--kubeconfig", str(kubeconfig), ""]

    result = subprocess.run(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False, timeout=30
    )

    assert (result.returncode, result.stdout) == (1, "")


def test_completion_offers_names_of_nodes_and_maintenances(
    served_cluster: LocalCluster, product: Product, create_node: CreateNode, run_command: RunCommand
) -> None:
    """Check that the completion reads names from the cluster that the preceding options select."""
    first, second = create_node(), create_node()
    run_command("start", first, "--wait")
    options = ["--kubeconfig", str(served_cluster.kubeconfig)]

    start_lines = complete(["start", *options, second, "console-"])
    prefixed_lines = complete(["cordon", *options, f"node/{second}"])
    stop_lines = complete([*options, "stop", ""])

    assert first in start_lines
    assert second not in start_lines
    assert prefixed_lines == [f"node/{second}", ":4"]
    assert first in stop_lines
    assert second not in stop_lines
    run_command("stop", first)


def test_completion_of_events_offers_maintenance_names(
    served_cluster: LocalCluster,
    product: Product,
    node_name: str,
    run_command: RunCommand,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(served_cluster.kubeconfig))
    run_command("start", node_name, f"--name=disk-{node_name}")

    assert complete(["events", "--maintenance", "disk-"]) == [f"disk-{node_name}", ":4"]
    run_command("stop", node_name)


def test_kubectl_finds_completion_script(plugin_environment: dict[str, str], tmp_path: Path) -> None:
    """Check that kubectl finds the completion script that pyproject.toml defines, and accepts its output."""
    assert 'kubectl_complete-maintenance = "console.completion:main"' in (ROOT / "pyproject.toml").read_text()
    script = tmp_path / "kubectl_complete-maintenance"
    script.write_text(f"#!{sys.executable}\nfrom console.completion import main\n\nmain()\n")
    script.chmod(0o755)

    command = ["kubectl", "__complete", "maintenance", "uncor"]
    result = subprocess.run(command, env=plugin_environment, capture_output=True, text=True, check=False)

    assert result.stdout == "uncordon\tMake nodes schedulable again\n:4\n", result.stderr
