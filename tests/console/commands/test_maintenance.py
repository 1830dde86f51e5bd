"""Tests of `start`, `status` and `stop` on a real cluster with the functions running."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import aclosing

import pytest

from console.operations.maintenance_watch import watched
from kube.maintenance.groups import KUBEVIRT, KUBEVIRT_ALPHA, MEDIK8S
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.console.commands.workload_objects import apply, budget, controlled, is_cordoned, pod, pods_on
from tests.console.conftest import Nodes, Run
from tests.proofs import proves

GROUPS = {"medik8s": MEDIK8S, "kubevirt": KUBEVIRT}


@pytest.fixture
def node(product: Product, node: str, run: Run) -> Iterator[str]:
    """Yield a node with the functions running, and end its maintenance after the test."""
    yield node
    run("stop", node)


@pytest.mark.parametrize("group", GROUPS)
def test_a_node_goes_into_maintenance_and_comes_back(installed: LocalCluster, run: Run, node: str, group: str) -> None:
    """NMO-3, NMO-6, NMO-14, KNM-1, OSV-1: `start` drains a node, and `stop` makes it schedulable again."""
    apply(installed, pod(f"bare-{node}", node), controlled("ReplicaSet", node))

    started = run("start", node, "--group", group, "--reason", "new disk", "--wait", "--timeout=30s", "-o", "json")
    assert started.exit_code == 0, started.output
    made = json.loads(started.stdout)
    assert (made["apiVersion"], made["metadata"]["name"]) == (GROUPS[group].api_version, node)
    assert made["spec"] == {"nodeName": node, "reason": "new disk"}
    assert (made["status"]["phase"], made["status"]["drainProgress"]) == ("Succeeded", 100)
    assert pods_on(installed, node) == []

    stopped = run("stop", node, "-o", "json")
    assert stopped.exit_code == 0, stopped.output
    name = f"nodemaintenance.{GROUPS[group].api_version.split('/')[0]}/{node}"
    assert json.loads(stopped.stdout) == {
        "node": node,
        "schedulable": True,
        "state": "schedulable",
        "deleted": [name],
        "keptBy": {},
    }
    assert not is_cordoned(installed, node)


@pytest.mark.slow
def test_one_that_is_over_keeps_its_node_from_nothing(installed: LocalCluster, run: Run, node: str) -> None:
    """NMO-14, NMO-22: A released maintenance that another finalizer keeps does not block its node.

    `stop` names the finalizer and does not wait for its removal. `start` can create a second maintenance with another
    name.
    """
    name, keeper = f"nodemaintenance.nodemaintenance.medik8s.io/{node}", "backup.example/keep"
    assert run("start", node, "--wait", "--timeout=30s").exit_code == 0
    patch = [{"op": "add", "path": "/metadata/finalizers/-", "value": keeper}]
    installed.kubectl("patch", "nm", node, "--type=json", "-p", json.dumps(patch))

    stopped, again = run("stop", node), run("stop", node)
    uncordoned, taken, other = run("uncordon", node), run("start", node), run("start", node, "--name", f"{node}-again")

    kept = f"{name} is over, and stays until its finalizers are taken off: {keeper}"
    assert (stopped.exit_code, stopped.output) == (0, f"{kept}\nNode {node}: schedulable\n")
    assert (again.exit_code, uncordoned.exit_code, taken.exit_code, other.exit_code) == (1, 0, 1, 0)
    assert f"{node} is not in maintenance" in again.stderr
    assert taken.stderr == f"Error: {kept}: choose another --name\n"
    installed.kubectl("patch", "nm", node, "--type=json", "-p", '[{"op": "remove", "path": "/metadata/finalizers"}]')


def test_start_shows_progress_by_lines_where_there_is_no_terminal(installed: LocalCluster, run: Run, node: str) -> None:
    """NMO-10: Without a terminal, `start --wait` prints one line per change, from Running to Succeeded."""
    apply(installed, pod(f"slow-{node}", node, annotations={"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}))

    lines = run("start", node, "--wait").stdout.splitlines()

    assert lines[0] == f"nodemaintenance.nodemaintenance.medik8s.io/{node} created"
    assert f"{node} Running 0% 1 pending, 0 blocked" in lines
    assert lines[-1] == f"{node} Succeeded 100% 0 pending, 0 blocked"


@proves("DRN-1a")
def test_start_takes_the_flags_of_kubectl_drain(installed: LocalCluster, run: Run, node: str) -> None:
    """DRN-1a: `start` accepts the flags of `kubectl drain`, and `status` names the flag that a blocked pod needs."""
    apply(installed, pod(f"bare-{node}", node), controlled("ReplicaSet", node))
    flags = ("--force=false", "--delete-local-data", "--ignore-daemonsets", "--grace-period=-1", "--pod-selector", "!x")

    started = run("start", node, *flags, "--skip-wait-for-delete-timeout=9", "--disable-eviction=false", "-o", "json")
    assert started.exit_code == 0, started.output
    state = installed.kubectl(
        "wait", f"nm/{node}", "--for=jsonpath={.status.pendingCount}=1", "--timeout=20s", check=False
    )
    shown = run("status", node)

    assert state.returncode == 0, state.stderr
    assert json.loads(started.stdout)["spec"]["drain"] == {
        "force": False,
        "deleteEmptyDirData": True,
        "ignoreDaemonSets": True,
        "gracePeriodSeconds": -1,
        "podSelector": "!x",
        "skipWaitForDeleteTimeoutSeconds": 9,
        "disableEviction": False,
    }
    for words in (f"bare-{node}", "Force", "spec.drain.force"):
        assert words in shown.stdout
    assert [item["metadata"]["name"] for item in pods_on(installed, node)] == [f"bare-{node}"]


@proves("DRN-1a")
def test_a_selector_that_start_cannot_read_is_a_usage_error(installed: LocalCluster, run: Run, node: str) -> None:
    """DRN-1a, DRN-5: An invalid pod selector is a usage error, and `start` creates nothing."""
    refused = run("start", node, "--pod-selector", "app=(")

    assert refused.exit_code == 2
    assert "'app=(' is no condition on a label, such as app=web" in refused.stderr
    assert installed.kubectl("get", "nm", node, "--ignore-not-found").stdout == ""


def test_status_says_who_is_blocked_by_what_and_what_would_unblock_it(
    installed: LocalCluster, run: Run, node: str
) -> None:
    """NMO-12, OSV-13: `status` shows the blocking budget with its counts, and the command that edits it."""
    apply(installed, controlled("ReplicaSet", node, replicas=2))
    apply(installed, budget(f"keep-{node}", node, minAvailable=2))
    late = run("start", node, "--wait", "--timeout=2s")

    shown, report = run("status", node), json.loads(run("status", node, "-o", "json").stdout)

    assert late.exit_code == 1
    assert late.stderr.startswith(f"Error: {node} is not drained after 2 s (default/")
    assert (
        f": budget keep-{node} needs 2 healthy pods and has 2 (and 1 more)), its maintenance goes on: " in late.stderr
    )
    assert late.stderr.count("\n") == 1
    assert f"Node {node}: cordoned, takes no new pods" in shown.stdout
    for words in ("2 of 2 pods left", f"keep-{node}", "2/2", f"kubectl -n default edit pdb keep-{node}"):
        assert words in shown.stdout
    assert report["schedulable"] is False
    assert [item["status"]["phase"] for item in report["maintenances"]] == ["Running"]
    assert f"{node} " in run("status").stdout


def test_watching_follows_the_maintenance_live_and_ends_with_ctrl_c(
    installed: LocalCluster, plugin: dict[str, str], run: Run, node: str
) -> None:
    """NMO-12: `status --watch` prints one line per change and exits with 130 after Ctrl-C, as shells expect."""
    words = ["kubectl", "maintenance", "status", node, "--watch"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plugin) as process:
        assert process.stdout
        assert process.stdout.readline() == "No maintenance.\n"

        run("start", node)

        assert any("Succeeded 100%" in line for line in process.stdout)
        process.send_signal(2)
        _, errors = process.communicate(timeout=10)
    assert (process.returncode, errors) == (130, "")


@pytest.mark.slow
@proves("X-7")
@pytest.mark.usefixtures("leftover")
def test_a_group_that_knows_no_field_selector_keeps_no_command_from_waiting(
    installed: LocalCluster, run: Run, node: str
) -> None:
    """X-7: Commands filter the objects themselves if an API group supports no field selectors."""
    other = {"apiVersion": KUBEVIRT_ALPHA.api_version, "kind": "NodeMaintenance", "spec": {"nodeName": "other"}}
    installed.door().create(KUBEVIRT_ALPHA.path, {**other, "metadata": {"name": "other"}})

    async def first() -> list[str]:
        async with aclosing(watched(installed.door().api, node)) as states:
            return [item["metadata"]["name"] for item in await anext(states)]

    started = run("start", node, "--wait")
    shown = installed.door().run(first())
    stopped = run("stop", node, "-o", "json")

    assert (started.exit_code, stopped.exit_code) == (0, 0), started.output + stopped.output
    assert shown == [node]
    assert json.loads(stopped.stdout)["state"] == "schedulable"


@proves("X-6")
def test_json_is_there_too_when_the_time_is_over(installed: LocalCluster, run: Run, node: str) -> None:
    """Check that `start -o json` prints the object also after its timeout, so that programs can read the progress."""
    apply(installed, controlled("ReplicaSet", node, replicas=2), budget(f"keep-{node}", node, minAvailable=2))

    late = run("start", node, "--wait", "--timeout=5s", "-o", "json")

    assert late.exit_code == 1
    found = json.loads(late.stdout)
    assert found["metadata"]["name"] == node
    assert [item["reason"] for item in found["status"]["blockedPods"]] == ["DisruptionBudget"] * 2
    assert f"{node} is not drained after 5 s" in late.stderr


def test_a_second_maintenance_for_the_node_is_refused(run: Run, node: str) -> None:
    """NMO-22, X-7: A second maintenance for the node is refused, also in another API group."""
    run("start", node, "--wait")

    second = run("start", node, "--group=kubevirt", "--name=another")

    assert second.exit_code == 1
    holder = f"nodemaintenance.nodemaintenance.medik8s.io/{node} (Succeeded)"
    change = f"kubectl edit nodemaintenance.nodemaintenance.medik8s.io/{node} changes how it drains"
    remedy = f"{change}, kubectl maintenance stop {node} ends it"
    assert second.stderr == f"Error: {node} is in maintenance already by {holder}: {remedy}\n"


def test_a_name_that_another_node_uses_is_refused(product: Product, run: Run, new_node: Nodes) -> None:
    """NMO-22: `start` refuses a name that another node's maintenance uses, and leaves that maintenance unchanged."""
    first, second = new_node(), new_node()
    run("start", first, f"--name=shared-{first}", "--wait")

    refused = run("start", second, f"--name=shared-{first}")

    assert refused.stderr == f"Error: the NodeMaintenance shared-{first} exists for {first}: choose another --name\n"
    assert run("stop", first).exit_code == 0


def test_a_node_in_maintenance_is_not_uncordoned(run: Run, node: str) -> None:
    """DRN-6: `uncordon` refuses a node in maintenance, which would be cordoned again, and suggests `stop`."""
    run("start", node, "--wait")

    result = run("uncordon", node)

    assert result.exit_code == 1
    assert result.stderr.endswith(f": kubectl maintenance stop {node}\n")


@pytest.mark.parametrize("command", ["start", "stop", "status", "cordon", "drain", "uncordon"])
def test_an_unknown_node_is_one_line_and_exit_1(run: Run, command: str) -> None:
    """NMO-19: An unknown node is a one-line error with exit status 1."""
    result = run(command, "no-such-node")

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: there is no node no-such-node")
    assert result.stderr.count("\n") == 1


def test_stop_tells_a_node_cordoned_by_hand_from_one_in_maintenance(
    installed: LocalCluster, run: Run, node: str
) -> None:
    """DRN-6: `stop` refuses a node that was cordoned by hand and suggests `uncordon`."""
    assert run("stop", node).stderr == f"Error: {node} is not in maintenance: see kubectl maintenance status\n"

    installed.kubectl("cordon", node)

    result = run("stop", node)
    assert (result.exit_code, is_cordoned(installed, node)) == (1, True)
    assert result.stderr.endswith(f"kubectl maintenance uncordon {node}\n")


def test_what_an_account_may_not_do_is_the_servers_sentence_with_a_remedy(run: Run, node: str) -> None:
    """OSV-14, X-6: A missing permission is a one-line error with the API server's message and a remedy."""
    result = run("start", node, user=UNPRIVILEGED)

    assert result.exit_code == 1
    assert 'User "unprivileged" cannot get resource "nodes"' in result.stderr
    assert result.stderr.endswith(": ask an administrator for this right, or use another --context\n")
    assert result.stderr.count("\n") == 1
