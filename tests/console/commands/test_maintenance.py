"""Tests for `start`, `status` and `stop` on a real cluster with running functions."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from console.operations.maintenance_actions import watch_maintenances
from kube.maintenance.groups import KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S
from kube.nodes import build_node_path
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.waiting import wait_for_object
from tests.console.commands.workload_objects import (
    build_budget,
    build_controller,
    build_pod,
    create_and_wait,
    is_cordoned,
    list_pods,
)
from tests.console.conftest import CreateNode, RunCommand
from tests.proofs import proves

API_GROUPS = {"medik8s": MEDIK8S, "kubevirt": KUBEVIRT}


@pytest.fixture
def maintained_node(product: Product, node_name: str, run_command: RunCommand) -> Iterator[str]:
    """Yield the name of a node while the functions run, and delete its maintenance after the test."""
    yield node_name
    run_command("stop", node_name)


@pytest.mark.parametrize("group_name", API_GROUPS)
def test_start_drains_and_stop_restores_node(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str, group_name: str
) -> None:
    """NMO-3, NMO-6, NMO-14, KNM-1, OSV-1: `start` drains a node, and `stop` makes it schedulable again."""
    create_and_wait(
        installed_cluster,
        build_pod(f"bare-{maintained_node}", maintained_node),
        build_controller("ReplicaSet", maintained_node),
    )

    start_result = run_command(
        "start", maintained_node, "--group", group_name, "--reason", "new disk", "--wait", "--timeout=30s", "-o", "json"
    )
    assert start_result.exit_code == 0, start_result.output
    created = json.loads(start_result.stdout)
    assert (created["apiVersion"], created["metadata"]["name"]) == (API_GROUPS[group_name].api_version, maintained_node)
    assert created["spec"] == {"nodeName": maintained_node, "reason": "new disk"}
    assert (created["status"]["phase"], created["status"]["drainProgress"]) == ("Succeeded", 100)
    assert list_pods(installed_cluster, maintained_node) == []

    stop_result = run_command("stop", maintained_node, "-o", "json")
    assert stop_result.exit_code == 0, stop_result.output
    name = f"nodemaintenance.{API_GROUPS[group_name].api_version.split('/')[0]}/{maintained_node}"
    assert json.loads(stop_result.stdout) == {
        "node": maintained_node,
        "schedulable": True,
        "state": "schedulable",
        "deleted": [name],
        "keptBy": {},
    }
    assert not is_cordoned(installed_cluster, maintained_node)


@pytest.mark.slow
def test_released_maintenance_does_not_block_its_node(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """NMO-14, NMO-22: a released maintenance that another finalizer keeps does not block its node.

    `stop` names the finalizer and does not wait for its removal. `start` can create a second maintenance with a
    different name.
    """
    name, finalizer = f"nodemaintenance.nodemaintenance.medik8s.io/{maintained_node}", "backup.example/keep"
    assert run_command("start", maintained_node, "--wait", "--timeout=30s").exit_code == 0
    patch = [{"op": "add", "path": "/metadata/finalizers/-", "value": finalizer}]
    installed_cluster.kubectl("patch", "nm", maintained_node, "--type=json", "-p", json.dumps(patch))

    stop_result, second_stop_result = run_command("stop", maintained_node), run_command("stop", maintained_node)
    uncordon_result, refused_start_result, second_start_result = (
        run_command("uncordon", maintained_node),
        run_command("start", maintained_node),
        run_command("start", maintained_node, "--name", f"{maintained_node}-again"),
    )

    message = f"{name} is released, but exists until these finalizers are removed: {finalizer}"
    assert (stop_result.exit_code, stop_result.output) == (0, f"{message}\nNode {maintained_node}: schedulable\n")
    assert (
        second_stop_result.exit_code,
        uncordon_result.exit_code,
        refused_start_result.exit_code,
        second_start_result.exit_code,
    ) == (1, 0, 1, 0)
    assert f'node "{maintained_node}" is not in maintenance' in second_stop_result.stderr
    assert refused_start_result.stderr == f"Error: {message}: choose another --name\n"
    installed_cluster.kubectl(
        "patch", "nm", maintained_node, "--type=json", "-p", '[{"op": "remove", "path": "/metadata/finalizers"}]'
    )


def test_start_prints_progress_lines_without_terminal(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """NMO-10: `start --wait` without a terminal prints one line per change, until the phase is Succeeded."""
    create_and_wait(
        installed_cluster,
        build_pod(
            f"slow-{maintained_node}", maintained_node, annotations={"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}
        ),
    )

    lines = run_command("start", maintained_node, "--wait").stdout.splitlines()

    assert lines[0] == f"nodemaintenance.nodemaintenance.medik8s.io/{maintained_node} created"
    assert f"{maintained_node} Running 0% 1 pending, 0 blocked" in lines
    assert lines[-1] == f"{maintained_node} Succeeded 100% 0 pending, 0 blocked"


@proves("DRN-1a")
def test_start_accepts_flags_of_kubectl_drain_and_status_names_required_flag(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """DRN-1a: `start` accepts the flags of `kubectl drain`, and `status` names the flag that a blocked pod needs."""
    create_and_wait(
        installed_cluster,
        build_pod(f"bare-{maintained_node}", maintained_node),
        build_controller("ReplicaSet", maintained_node),
    )
    flags = ("--force=false", "--delete-local-data", "--ignore-daemonsets", "--grace-period=-1", "--pod-selector", "!x")

    start_result = run_command(
        *("start", maintained_node, *flags, "--skip-wait-for-delete-timeout=9", "--disable-eviction=false"),
        *("--deadline=1h30m", "-o", "json"),
    )
    assert start_result.exit_code == 0, start_result.output
    wait_result = installed_cluster.kubectl(
        "wait", f"nm/{maintained_node}", "--for=jsonpath={.status.pendingCount}=1", "--timeout=20s", check=False
    )
    result = run_command("status", maintained_node)

    assert wait_result.returncode == 0, wait_result.stderr
    assert json.loads(start_result.stdout)["spec"]["drain"] == {
        "force": False,
        "deleteEmptyDirData": True,
        "ignoreDaemonSets": True,
        "gracePeriodSeconds": -1,
        "podSelector": "!x",
        "skipWaitForDeleteTimeoutSeconds": 9,
        "disableEviction": False,
        "deadline": "1h30m",
    }
    for expected in (f"bare-{maintained_node}", "Force", "spec.drain.force"):
        assert expected in result.stdout
    assert [pod["metadata"]["name"] for pod in list_pods(installed_cluster, maintained_node)] == [
        f"bare-{maintained_node}"
    ]


@proves("DRN-1a")
def test_start_with_invalid_pod_selector_is_usage_error(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """DRN-1a, DRN-5: an invalid pod selector is a usage error, and `start` creates nothing."""
    result = run_command("start", maintained_node, "--pod-selector", "app=(")

    assert result.exit_code == 2
    assert "'app=(' is not a condition on a label, such as app=web" in result.stderr
    assert installed_cluster.kubectl("get", "nm", maintained_node, "--ignore-not-found").stdout == ""


def test_status_shows_blocked_pods_budget_and_remedy(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """NMO-12, OSV-13: `status` shows the PDB that blocks a pod, the PDB's counts, and the command to relax it."""
    create_and_wait(installed_cluster, build_controller("ReplicaSet", maintained_node, replicas=2))
    create_and_wait(installed_cluster, build_budget(f"keep-{maintained_node}", maintained_node, minAvailable=2))
    result = run_command("start", maintained_node, "--wait", "--timeout=2s")

    status_result, report = (
        run_command("status", maintained_node),
        json.loads(run_command("status", maintained_node, "-o", "json").stdout),
    )

    assert result.exit_code == 1
    warning, error = result.stderr.splitlines()
    cause = f"budget keep-{maintained_node} needs 2 healthy pods and has 2"
    assert warning.startswith(f"Warning: 2 pods will block the drain: {cause}: default/")
    assert error.startswith(f'Error: node "{maintained_node}" not drained within 2s (default/')
    assert (
        f": budget keep-{maintained_node} needs 2 healthy pods and has 2 (and 1 more)), its maintenance continues: "
        in error
    )
    assert f"Node {maintained_node}: cordoned, takes no new pods" in status_result.stdout
    assert "2 of 2 pods remaining" in status_result.stdout
    assert f", DisruptionBudget: {cause}\n" in status_result.stdout
    command_lines = [line.strip() for line in status_result.stdout.splitlines() if "kubectl" in line]
    assert command_lines == [
        f"kubectl scale replicaset/replicaset-{maintained_node} -n default --replicas=3",
        f'kubectl -n default patch pdb keep-{maintained_node} -p \'{{"spec":{{"minAvailable":1}}}}\'',
        f"kubectl maintenance status {maintained_node} --watch",
    ]
    assert report["schedulable"] is False
    assert [maintenance["status"]["phase"] for maintenance in report["maintenances"]] == ["Running"]
    assert f"{maintained_node} " in run_command("status").stdout


def test_status_reports_that_uncordoned_node_was_cordoned_again(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """Check that `status` explains why an uncordoned node is cordoned again, and names the command that ends this."""
    started = run_command("start", maintained_node, "--wait", "--timeout=30s")
    assert started.exit_code == 0, started.output
    assert "Cordoned again" not in run_command("status", maintained_node).stdout
    installed_cluster.kubectl("uncordon", maintained_node)
    wait_for_object(
        installed_cluster.get_client(),
        build_node_path(maintained_node),
        lambda node: bool(node and node["spec"].get("unschedulable")),
    )

    lines = run_command("status", maintained_node).stdout.splitlines()

    (index,) = [index for index, line in enumerate(lines) if line.startswith("Cordoned again ")]
    assert lines[index].endswith(
        " ago: another client had removed the node's cordon, taint or label. "
        "To end the maintenance and uncordon the node:"
    )
    assert lines[index + 1] == f"  kubectl maintenance stop {maintained_node}"


def test_status_watch_prints_changes_until_ctrl_c(
    installed_cluster: LocalCluster, plugin_environment: dict[str, str], run_command: RunCommand, maintained_node: str
) -> None:
    """NMO-12: `status --watch` prints one line with the time per change, and exits with status 130 after Ctrl-C."""
    command = ["kubectl", "maintenance", "status", maintained_node, "--watch"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plugin_environment
    ) as process:
        assert process.stdout
        time_pattern = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d "
        assert re.fullmatch(f"{time_pattern}No maintenances found.\n", process.stdout.readline())

        run_command("start", maintained_node)

        last_line = next(line for line in process.stdout if "Succeeded 100%" in line)
        assert re.match(f"{time_pattern}{maintained_node} ", last_line)

        run_command("stop", maintained_node, "--no-wait")

        name = f"nodemaintenance.nodemaintenance.medik8s.io/{maintained_node}"
        assert any(line.endswith(f" {maintained_node} {name} deleted\n") for line in process.stdout)
        process.send_signal(2)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.slow
@proves("X-7")
@pytest.mark.usefixtures("legacy_crd")
def test_commands_work_if_api_group_has_no_field_selectors(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """X-7: commands list and filter all objects locally if an API group does not support field selectors."""
    other_maintenance = {
        "apiVersion": KUBEVIRT_ALPHA.api_version,
        "kind": "NodeMaintenance",
        "spec": {"nodeName": "other"},
    }
    installed_cluster.get_client().create(KUBEVIRT_ALPHA.path, {**other_maintenance, "metadata": {"name": "other"}})

    async def read_first_state() -> list[str]:
        async with aclosing(watch_maintenances(installed_cluster.get_client().api, maintained_node)) as states:
            return [maintenance["metadata"]["name"] for maintenance in await anext(states)]

    start_result = run_command("start", maintained_node, "--wait")
    names = installed_cluster.get_client().run(read_first_state())
    stop_result = run_command("stop", maintained_node, "-o", "json")

    assert (start_result.exit_code, stop_result.exit_code) == (0, 0), start_result.output + stop_result.output
    assert names == [maintained_node]
    assert json.loads(stop_result.stdout)["state"] == "schedulable"


@pytest.mark.slow
@proves("X-6")
def test_start_prints_json_even_after_timeout(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """Check that `start -o json` prints the object even after a timeout, so that scripts can read the progress."""
    create_and_wait(
        installed_cluster,
        build_controller("ReplicaSet", maintained_node, replicas=2),
        build_budget(f"keep-{maintained_node}", maintained_node, minAvailable=2),
    )

    result = run_command("start", maintained_node, "--wait", "--timeout=5s", "-o", "json")

    assert result.exit_code == 1
    report = json.loads(result.stdout)
    assert report["metadata"]["name"] == maintained_node
    assert [pod["reason"] for pod in report["status"]["blockedPods"]] == ["DisruptionBudget"] * 2
    assert f'node "{maintained_node}" not drained within 5s' in result.stderr


def test_start_refuses_second_maintenance_for_node(run_command: RunCommand, maintained_node: str) -> None:
    """NMO-22, X-7: `start` refuses a second maintenance for a node, even one of a different API group."""
    run_command("start", maintained_node, "--wait")

    second_result = run_command("start", maintained_node, "--group=kubevirt", "--name=another")

    assert second_result.exit_code == 1
    existing_maintenance = f"nodemaintenance.nodemaintenance.medik8s.io/{maintained_node} (Succeeded)"
    edit_command = f"run kubectl edit nodemaintenance.nodemaintenance.medik8s.io/{maintained_node}"
    remedy = f"to change its drain options, {edit_command}; to end it, run kubectl maintenance stop {maintained_node}"
    assert (
        second_result.stderr
        == f'Error: node "{maintained_node}" is already in maintenance by {existing_maintenance}: {remedy}\n'
    )


def test_start_refuses_name_of_maintenance_for_another_node(
    product: Product, run_command: RunCommand, create_node: CreateNode
) -> None:
    """NMO-22: `start` refuses the name of a maintenance for another node, and leaves that maintenance unchanged."""
    first_node, second_node = create_node(), create_node()
    run_command("start", first_node, f"--name=shared-{first_node}", "--wait")

    result = run_command("start", second_node, f"--name=shared-{first_node}")

    message = f'NodeMaintenance "shared-{first_node}" already exists for node "{first_node}"'
    assert result.stderr == f"Error: {message}: choose another --name\n"
    assert run_command("stop", first_node).exit_code == 0


def test_uncordon_refuses_node_under_maintenance(run_command: RunCommand, maintained_node: str) -> None:
    """DRN-6: `uncordon` refuses a node under maintenance, which the product would cordon again, and suggests `stop`."""
    run_command("start", maintained_node, "--wait")

    result = run_command("uncordon", maintained_node)

    assert result.exit_code == 1
    assert result.stderr.endswith(f": to end it, run kubectl maintenance stop {maintained_node}\n")


@pytest.mark.parametrize("command", ["start", "stop", "status", "cordon", "drain", "uncordon"])
def test_unknown_node_is_one_line_error(run_command: RunCommand, command: str) -> None:
    """NMO-19: an unknown node is a one-line error with exit status 1."""
    result = run_command(command, "no-such-node")

    assert result.exit_code == 1
    assert result.stderr.startswith('Error: node "no-such-node" not found')
    assert result.stderr.count("\n") == 1


def test_stop_refuses_node_cordoned_by_hand(
    installed_cluster: LocalCluster, run_command: RunCommand, maintained_node: str
) -> None:
    """DRN-6: `stop` refuses a node that was cordoned by hand and suggests `uncordon`."""
    assert (
        run_command("stop", maintained_node).stderr
        == f'Error: node "{maintained_node}" is not in maintenance: see kubectl maintenance status\n'
    )

    installed_cluster.kubectl("cordon", maintained_node)

    result = run_command("stop", maintained_node)
    assert (result.exit_code, is_cordoned(installed_cluster, maintained_node)) == (1, True)
    assert result.stderr.endswith(f"kubectl maintenance uncordon {maintained_node}\n")


def test_error_about_missing_permission_has_server_message_and_remedy(
    run_command: RunCommand, maintained_node: str
) -> None:
    """OSV-14, X-6: a missing permission is a one-line error with the API server's message and a remedy."""
    result = run_command("start", maintained_node, user=UNPRIVILEGED)

    assert result.exit_code == 1
    assert 'User "unprivileged" cannot get resource "nodes"' in result.stderr
    assert result.stderr.endswith(": ask an administrator for this right, or use another --context\n")
    assert result.stderr.count("\n") == 1
