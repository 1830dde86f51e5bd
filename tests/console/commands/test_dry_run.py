"""Tests for `start --dry-run`, which predicts what a maintenance would do with each pod."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from kube.maintenance.groups import MEDIK8S
from kube.pods import MIRROR_ANNOTATION
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.processes import wait_until_ready
from localcluster.waiting import wait_for_collection
from tests.console.commands.workload_objects import (
    build_budget,
    build_controller,
    build_pod,
    create_and_wait,
    is_cordoned,
    list_pods,
)
from tests.console.conftest import CreateNode, RunCommand
from tests.console.permissions import grant_permissions, has_permission
from tests.proofs import proves

MAINTAINER_RESOURCES = ("nodes", "nodemaintenances")


def create_pods(cluster: LocalCluster, node: str) -> None:
    """Create one pod on the node for each possible outcome of a drain.

    A PodDisruptionBudget blocks two pods, one pod has emptyDir data, a DaemonSet pod and a static pod are ignored, and
    one pod can be evicted.
    """
    labels = {"kept": "yes"}
    volumes = [{"name": "scratch", "emptyDir": {}}]
    static_pod = build_pod(f"static-{node}", node, annotations={MIRROR_ANNOTATION: "here"})
    create_and_wait(
        cluster, build_pod(f"bare-{node}", node), build_pod(f"local-{node}", node, volumes=volumes), static_pod
    )
    create_and_wait(
        cluster, build_controller("DaemonSet", node), build_controller("ReplicaSet", node, labels, replicas=2)
    )
    create_and_wait(cluster, build_budget(f"keep-{node}", node, labels, minAvailable=2))


@proves("DRN-1a")
def test_dry_run_lists_evictable_blocked_and_ignored_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """NMO-6, NMO-7: the dry run lists evictable, blocked and ignored pods with their reasons, and changes nothing."""
    create_pods(installed_cluster, node_name)

    result = run_command("start", node_name, "--dry-run", "--delete-emptydir-data=false")

    assert result.exit_code == 0, result.output
    evicted_line, *blocked_lines, daemon_line, static_line, counts_line = result.stdout.splitlines()[:7]
    *_, last_line = result.stdout.splitlines()
    assert evicted_line == f"would evict pod default/bare-{node_name}"
    assert blocked_lines[0].startswith(
        f"would not evict pod default/local-{node_name} now: its emptyDir data would be lost: "
    )
    for line in blocked_lines[1:]:
        assert line.startswith(f"would not evict pod default/replicaset-{node_name}-")
        assert f"budget keep-{node_name} needs 2 healthy pods and has 2" in line
    assert len(blocked_lines) == 3
    assert daemon_line.startswith(f"would ignore pod default/daemonset-{node_name}-")
    assert daemon_line.endswith(": pod of a DaemonSet")
    assert static_line == f"would ignore pod default/static-{node_name}: static pod"
    assert counts_line == "1 pod leaves now, 3 pods are blocked, 2 pods stay on the node"
    assert f"2 pods will block the drain: budget keep-{node_name} needs 2 healthy pods and has 2: " in result.stderr
    assert last_line == f"nodemaintenance.nodemaintenance.medik8s.io/{node_name} would be created"
    assert len(list_pods(installed_cluster, node_name)) == 6
    assert not is_cordoned(installed_cluster, node_name)
    assert installed_cluster.get_client().list(MEDIK8S.path, field_selector=f"spec.nodeName={node_name}")["items"] == []


def test_dry_run_of_several_nodes_counts_shared_pdb_once(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """NMO-6: if one PDB covers a pod on each of two nodes, the dry run expects one eviction at a time."""
    nodes = [create_node(), create_node()]
    labels = {"shared": nodes[0]}
    for node in nodes:
        create_and_wait(installed_cluster, build_controller("ReplicaSet", node, labels, replicas=1))
    budget = build_budget(f"shared-{nodes[0]}", nodes[0], None, minAvailable=1)
    budget["spec"]["selector"] = {"matchLabels": labels}
    create_and_wait(installed_cluster, budget)

    lines = run_command("start", *nodes, "--dry-run").stdout.splitlines()
    items = json.loads(run_command("start", *nodes, "--dry-run", "-o", "json").stdout)["items"]

    assert [lines[0], lines[2]] == [f"node/{node}:" for node in nodes]
    pod_lines = sorted((lines[1], lines[3]), key=len)
    assert pod_lines[0].startswith("  would evict pod default/replicaset-")
    assert pod_lines[1].endswith(" in turn, when its budget allows it again")
    assert lines[4] == "1 pod leaves now, 1 pod leaves in turn"
    assert [len(item["evicted"]) + len(item["later"]) for item in items] == [1, 1]
    assert [item["blockedPods"] for item in items] == [[], []]


def test_json_output_of_dry_run_contains_maintenance_and_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    create_pods(installed_cluster, node_name)

    report = json.loads(run_command("start", node_name, "--dry-run", "-o", "json").stdout)

    assert report["spec"] == {"nodeName": node_name}
    assert [pod["name"] for pod in report["evicted"]] == [f"bare-{node_name}", f"local-{node_name}"]
    assert {(pod["reason"], pod["budget"]) for pod in report["blockedPods"]} == {
        ("DisruptionBudget", f"keep-{node_name}")
    }
    assert [(pod["name"].split("-")[0], pod["reason"]) for pod in report["ignored"]] == [
        ("daemonset", "pod of a DaemonSet"),
        ("static", "static pod"),
    ]


@pytest.mark.slow
def test_dry_run_predicts_which_pods_drain_evicts(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """Check that the dry run lists the pods that `drain` evicts from an identical node."""
    node, other_node = create_node(), create_node()
    for name in (node, other_node):
        create_pods(installed_cluster, name)

    report = json.loads(run_command("start", node, "--dry-run", "-o", "json").stdout)
    run_command("drain", other_node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3s")

    evicted_names = {pod["name"].removesuffix(f"-{node}") for pod in report["evicted"]}
    assert evicted_names == {"bare", "local"}
    remaining = {"daemonset", "replicaset", "static"}
    wait_for_collection(
        installed_cluster.get_client(),
        "/api/v1/pods",
        lambda pods: get_name_prefixes(pods) == remaining,
        fields=f"spec.nodeName={other_node}",
    )


def get_name_prefixes(names: Iterable[str]) -> set[str]:
    """Return the part of each pod name before the first hyphen, which is the pod's kind."""
    return {name.split("-")[0] for name in names}


@pytest.mark.parametrize("dry_run_flag", ["--dry-run=server", "--dry-run=client", "--dry-run=true"])
@pytest.mark.parametrize("command", ["start", "drain"])
def test_dry_run_flag_accepts_values_of_kubectl(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str, command: str, dry_run_flag: str
) -> None:
    result, flag_result = run_command(command, "--dry-run", node_name), run_command(command, node_name, dry_run_flag)

    assert flag_result.exit_code == 0, flag_result.output
    assert flag_result.stdout == result.stdout
    assert not is_cordoned(installed_cluster, node_name)


def test_dry_runs_of_start_and_drain_print_same_lines(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that the dry runs of `start` and `drain` print the same lines, except for static pods.

    `drain` does not mention static pods, like `kubectl drain`.
    """
    create_pods(installed_cluster, node_name)

    start_lines = [
        line for line in run_command("start", node_name, "--dry-run").stdout.splitlines() if is_pod_line(line)
    ]
    drain_result = run_command(
        "drain", node_name, "--dry-run", "--force", "--ignore-daemonsets", "--delete-emptydir-data"
    )

    *lines, last_line = drain_result.stdout.splitlines()
    assert lines == [line for line in start_lines if "static" not in line]
    assert last_line == f"node/{node_name} would be drained"
    assert not is_cordoned(installed_cluster, node_name)


def is_pod_line(line: str) -> bool:
    """Return whether a line of a dry run is about a pod."""
    return line.startswith("would ") and " pod " in line


def test_unselected_pods_stay_and_selector_without_match_causes_warning(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that unselected pods stay on the node, and that a selector that matches no pod causes a warning.

    Without the warning, a drain that selects no pod would seem to succeed, although no pod has left the node.
    """
    create_pods(installed_cluster, node_name)

    matching = run_command("start", node_name, "--dry-run", "--pod-selector=kept=yes")
    unmatched = run_command("start", node_name, "--dry-run", "--pod-selector=kept=no")
    started = run_command("start", node_name, "--pod-selector=kept=no")
    run_command("stop", node_name, "--no-wait")

    assert f"would ignore pod default/bare-{node_name}: not selected" in matching.stdout.splitlines()
    assert "pod selector" not in matching.stderr
    for result in (unmatched, started):
        assert f'Warning: pod selector kept=no matches no pod that would leave node "{node_name}"' in result.stderr


def test_dry_run_with_disable_eviction_lists_blocked_pods_as_deleted(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that `--disable-eviction` lists blocked pods as deleted, and warns about the component `deleting`."""
    create_pods(installed_cluster, node_name)

    result = run_command("start", node_name, "--dry-run", "--disable-eviction")

    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith(f"would delete pod default/replicaset-{node_name}-")]) == 2
    assert not [line for line in lines if "would not evict" in line or "would evict" in line]
    assert 'if the component "deleting" is installed; otherwise they stay' in result.stderr


def test_dry_run_would_wait_for_terminating_pod(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    create_and_wait(
        installed_cluster,
        build_pod(f"slow-{node_name}", node_name, annotations={"pod-delete.stage.kwok.x-k8s.io/delay": "20s"}),
    )
    installed_cluster.kubectl("delete", "pod", f"slow-{node_name}", "--wait=false")

    result = run_command("start", node_name, "--dry-run")

    assert f"would wait for pod default/slow-{node_name}, which is terminating" in result.stdout.splitlines()


@pytest.fixture
def maintainer_without_pod_access(served_cluster: LocalCluster) -> Iterator[str]:
    """Yield a user who may create maintenances but may not read pods."""
    with grant_temporary_permissions(
        served_cluster,
        "maintainer",
        *(f"{verb} {resource}" for resource in MAINTAINER_RESOURCES for verb in ("get", "list", "create")),
    ):
        yield UNPRIVILEGED


@contextmanager
def grant_temporary_permissions(cluster: LocalCluster, name: str, *cluster_rules: str) -> Iterator[None]:
    """Grant the unprivileged user these permissions while the `with` block runs; then wait until they are revoked."""
    user_subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": UNPRIVILEGED}
    grant_permissions(cluster.get_client(), name, cluster_rules, user_subject, UNPRIVILEGED)
    yield
    cluster.kubectl("delete", f"clusterrole/{name}", f"clusterrolebinding/{name}")
    for rule in cluster_rules:
        verb, resource = rule.split()
        wait_until_ready(f"no right to {rule}", partial(lacks_permission, cluster, verb, resource), [])


def lacks_permission(cluster: LocalCluster, verb: str, resource: str) -> bool:
    """Return whether the unprivileged user lacks this permission."""
    return not has_permission(cluster.get_client(), UNPRIVILEGED, verb, resource)


@proves("X-6")
def test_dry_run_without_permission_to_read_daemonsets_or_budgets_prints_warnings(
    served_cluster: LocalCluster, run_command: RunCommand, node_name: str, maintainer_without_pod_access: str
) -> None:
    """Check the dry run of a user who may not read DaemonSets, and of one who may not list PodDisruptionBudgets either.

    Without DaemonSets, the dry run adds a warning. Without PDBs, it prints only a warning, as its result would be
    wrong.
    """
    create_pods(served_cluster, node_name)

    with grant_temporary_permissions(served_cluster, "lister", "list pods"):
        result = run_command("start", node_name, "--dry-run", user=maintainer_without_pod_access)
        with grant_temporary_permissions(served_cluster, "budget-lister", "list poddisruptionbudgets"):
            budget_result = run_command("start", node_name, "--dry-run", user=maintainer_without_pod_access)

    assert "Warning: cannot preview the maintenance: poddisruptionbudgets.policy is forbidden" in result.stderr
    assert result.stdout == f"nodemaintenance.nodemaintenance.medik8s.io/{node_name} would be created\n"
    assert "Warning: cannot read DaemonSets, so the preview assumes that all of them exist: " in budget_result.stderr
    pod_lines = filter(is_pod_line, budget_result.stdout.splitlines())
    assert [" ".join(line.split()[1:3]) for line in pod_lines] == (
        ["evict pod"] * 2 + ["not evict"] * 2 + ["ignore pod"] * 2
    )


@proves("X-6")
def test_dry_run_without_permission_to_list_pods_prints_warning(
    run_command: RunCommand, node_name: str, maintainer_without_pod_access: str
) -> None:
    """Check that the dry run prints the API server's error as a warning if the user may not list pods."""
    result = run_command("start", node_name, "--dry-run", user=maintainer_without_pod_access)

    assert result.exit_code == 0, result.output
    assert "Warning: cannot preview the maintenance: " in result.stderr
    assert 'cannot list resource "pods"' in result.stderr
    assert result.stdout == f"nodemaintenance.nodemaintenance.medik8s.io/{node_name} would be created\n"
