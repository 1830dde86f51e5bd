"""Tests for `preview`, which predicts the drain of several nodes, on a real API server."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from eventing import events
from eventing.events import ObjectReference, build_event
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from kube.nodes import build_node_path
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.waiting import wait_for_object
from tests.console.commands.test_dry_run import grant_temporary_permissions
from tests.console.commands.workload_objects import (
    COLLECTIONS,
    Manifest,
    build_budget,
    build_controller,
    build_pod,
    create_and_wait,
    is_cordoned,
    list_pods,
)
from tests.console.conftest import CreateNode, RunCommand

BLOCKED_EXIT_STATUS = 3


def create_shared_budget(cluster: LocalCluster, nodes: list[str], **rule: int) -> str:
    """Create a ReplicaSet of four pods on each node, and one PodDisruptionBudget for all pods; return the PDB's name.

    The PDB has the label of the first node's objects, so that the fixture deletes it together with that node.
    """
    labels = {"shared": nodes[0]}
    create_and_wait(cluster, *(build_controller("ReplicaSet", node, labels, replicas=4) for node in nodes))
    budget = build_budget(f"shared-{nodes[0]}", nodes[0], None, **rule)
    budget["spec"]["selector"] = {"matchLabels": labels}
    create_and_wait(cluster, budget)
    path = f"{COLLECTIONS['PodDisruptionBudget']}/{budget['metadata']['name']}"
    wait_for_object(
        cluster.get_client(),
        path,
        lambda live: live is not None and live["status"].get("currentHealthy") == 4 * len(nodes),
        20,
    )
    return str(budget["metadata"]["name"])


def record_drain(journal_file: Path, node: str) -> None:
    """Create a journal with a recorded drain of the node, which took 95 seconds."""
    reference = ObjectReference("nodemaintenance.medik8s.io/v1beta1", "nm", "uid-1")
    with closing(Journal(journal_file)) as journal:
        now = datetime.now(timezone.utc)
        begun = build_event(events.MAINTENANCE_BEGUN, "begin", reference, node)
        drained = build_event(events.NODE_DRAINED, "evict", reference, node, cause=begun)
        journal.write_events([(begun, now - timedelta(seconds=95)), (drained, now)])


def read_report(result: Any) -> Manifest:
    report: Manifest = json.loads(result.stdout)
    return report


def test_preview_of_two_nodes_counts_shared_pdb_once(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """NMO-6: a separate preview of each node expects eight evictions; the preview of both nodes expects four.

    The pods select their own node, so no other node accepts the replacements. The preview reports this.
    """
    nodes = [create_node(), create_node()]
    budget = create_shared_budget(installed_cluster, nodes, minAvailable=4)

    single_reports = [read_report(run_command("preview", node, "-o", "json")) for node in nodes]
    result = run_command("preview", *nodes, "--group=kubevirt", "-o", "json")

    assert [len(report["evicted"]) for report in single_reports] == [4, 4]
    report = read_report(result)
    assert result.exit_code == 0, result.output
    assert (len(report["evicted"]), len(report["later"]), len(report["blockedPods"])) == (4, 4, 0)
    assert [(item["name"], item["effect"], item["pods"]) for item in report["budgets"]] == [(budget, "inTurn", 8)]
    assert len(report["capacity"]["nowhere"]) == 8
    assert "node selector does not match on" in report["capacity"]["nowhere"][0]["reason"]


@pytest.mark.slow
def test_preview_predicts_what_drain_evicts_and_changes_nothing(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """NMO-6, NMO-7: the drain of both nodes evicts as many pods as the preview predicts.

    The other pods stay, because the replacements of the evicted pods do not become ready.
    """
    nodes = [create_node(), create_node()]
    budget = create_shared_budget(installed_cluster, nodes, minAvailable=6)

    report = read_report(run_command("preview", *nodes, "-o", "json"))

    assert (len(report["evicted"]), len(report["later"])) == (2, 6)
    assert not any(is_cordoned(installed_cluster, node) for node in nodes)
    assert [len(list_pods(installed_cluster, node)) for node in nodes] == [4, 4]
    assert installed_cluster.get_client().list(MEDIK8S.path, field_selector=f"spec.nodeName={nodes[0]}")["items"] == []
    for node in nodes:
        run_command("cordon", node)
    results = [run_command("drain", node, "--timeout=3s") for node in nodes]
    gone_lines = [line for result in results for line in result.stdout.splitlines() if line.endswith(" is gone")]
    assert len(gone_lines) == 2, budget


def test_preview_without_blocked_pods_exits_with_0_and_shows_pod_groups(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    volumes = [{"name": "scratch", "emptyDir": {}}]
    create_and_wait(
        installed_cluster,
        build_pod(f"bare-{node_name}", node_name),
        build_pod(f"local-{node_name}", node_name, volumes=volumes),
        build_controller("DaemonSet", node_name),
    )

    result = run_command("preview", node_name)

    assert result.exit_code == 0, result.output
    counts = next(line.split() for line in result.stdout.splitlines() if line.startswith(node_name))
    assert counts == [node_name, "schedulable", "2", "0", "0", "0", "1", "0"]
    assert f"1 pod will lose emptyDir data: default/local-{node_name}" in result.stdout
    assert "2 pods without a controller will not be recreated: " in result.stdout
    assert "1 pod: pod of a DaemonSet" in result.stdout
    assert "at most 30s by grace periods, for the pods that are not blocked" in result.stdout
    assert result.stdout.splitlines()[-1] == "Nothing known will block the drain."


def test_preview_groups_pods_that_pdb_blocks_and_exits_with_3(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    budget = create_shared_budget(installed_cluster, [node_name], minAvailable=4)

    result, verbose_result = run_command("preview", node_name), run_command("preview", node_name, "--verbose")

    assert result.exit_code == verbose_result.exit_code == BLOCKED_EXIT_STATUS
    cause = f"4 pods, DisruptionBudget: budget {budget} needs 4 healthy pods and has 4: default/"
    assert result.stdout.count(cause) == 1
    assert f"default/{budget} admits none of 4 pods, because it needs all pods that it covers" in result.stdout
    assert f'kubectl -n default patch pdb {budget} -p \'{{"spec":{{"minAvailable":3}}}}\'' in result.stdout
    assert f"kubectl scale replicaset/replicaset-{node_name} -n default --replicas=5" in result.stdout
    pods = [pod["metadata"]["name"] for pod in list_pods(installed_cluster, node_name)]
    assert all(f"default/{name}" in verbose_result.stdout for name in pods)
    assert result.stdout.splitlines()[-1] == "4 pods will block the drain, for 1 cause."


def test_preview_checks_whether_pods_fit_on_other_nodes(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """Check that the evicted pods fit on a labeled node with enough capacity, and nowhere if that node is cordoned."""
    node, other = create_node(), create_node()
    controller = build_controller("ReplicaSet", node)
    create_and_wait(installed_cluster, controller)
    label_patch = {"metadata": {"labels": {"kubernetes.io/hostname": node}}}
    installed_cluster.get_client().patch(build_node_path(other), label_patch)

    fitting = read_report(run_command("preview", node, "-o", "json"))["capacity"]
    run_command("cordon", other)
    rejected = read_report(run_command("preview", node, "-o", "json"))["capacity"]

    assert [pod["to"] for pod in fitting["fits"]] == [other], fitting
    assert (rejected["fits"], len(rejected["nowhere"])) == ([], 1)
    assert "cordoned on " in rejected["nowhere"][0]["reason"]


def test_preview_estimates_duration_from_recorded_drains(
    run_command: RunCommand, node_name: str, tmp_path: Path
) -> None:
    """Check that the estimated duration is the median of the node's drains in the journal.

    A journal that an environment variable configures is optional; one that the command line names must exist.
    """
    journal = str(tmp_path / "journal.db")
    record_drain(Path(journal), node_name)

    report = read_report(run_command("preview", node_name, "--journal", journal, "-o", "json"))
    text = run_command("preview", node_name, "--journal", journal).stdout
    missing = run_command("preview", node_name, "--journal", str(tmp_path / "none.db"))

    assert report["duration"]["recorded"] == {"seconds": 95, "drains": 1, "node": node_name}
    assert f"about 1m35s by 1 recorded drain of {node_name} (median)" in text
    assert read_report(run_command("preview", node_name, "-o", "json"))["duration"]["recorded"] is None
    assert missing.exit_code == 2
    assert "not found: name it with --journal or $JOURNAL" in missing.stderr


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("jsonpath={.nodes[0].node}: {.willBlock}", "{node}: false"),
        ("custom-columns=NODE:.nodes[0].node,BLOCKS:.willBlock", "NODE"),
    ],
)
def test_template_selects_fields_of_preview(
    run_command: RunCommand, node_name: str, output: str, expected: str
) -> None:
    result = run_command("preview", node_name, "-o", output)

    assert result.exit_code == 0, result.output
    assert result.stdout.startswith(expected.replace("{node}", node_name))


def test_misspelled_node_is_error_with_suggestion(run_command: RunCommand, node_name: str) -> None:
    result = run_command("preview", f"{node_name}x")

    assert result.stderr == f'Error: node "{node_name}x" not found: did you mean "{node_name}"? See kubectl get nodes\n'


@pytest.mark.parametrize("output", ["table", "json"])
def test_unknown_nodes_are_an_error(run_command: RunCommand, node_name: str, output: str) -> None:
    result = run_command("preview", node_name, "no-such-node", "nor-this", "-o", output)

    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == 'Error: nodes "no-such-node", "nor-this" not found: see kubectl get nodes\n'


def test_preview_lists_all_missing_permissions_in_one_error(run_command: RunCommand, node_name: str) -> None:
    """Check that one error lists all missing permissions without which the preview would be wrong."""
    result = run_command("preview", node_name, user=UNPRIVILEGED)

    assert result.exit_code == 1
    assert 'cannot list resource "pods"' in result.stderr
    assert 'cannot list resource "poddisruptionbudgets"' in result.stderr
    assert result.stderr.endswith(": ask an administrator for these permissions, or use another --context\n")


def test_preview_without_permission_to_list_nodes_omits_capacity_check(
    served_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that the preview for a user who may not list nodes has a warning instead of the capacity check."""
    create_and_wait(served_cluster, build_controller("ReplicaSet", node_name))
    rules = ("get nodes", "list pods", "list poddisruptionbudgets")

    with grant_temporary_permissions(served_cluster, "previewer", *rules):
        result = run_command("preview", node_name, user=UNPRIVILEGED)

    assert result.exit_code == 0, result.output
    assert "Warning: cannot list nodes, so the capacity of the other nodes is unknown: " in result.stderr
    assert "unknown: the nodes cannot be listed" in result.stdout
