"""Tests of `start --dry-run`, which predicts what a maintenance would do with each pod, by the rules of the drain."""

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
from localcluster.processes import await_ready
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
from tests.waiting import wait_for_collection

MAINTAINER_RESOURCES = ("nodes", "nodemaintenances")


def create_pods(cluster: LocalCluster, node: str) -> None:
    """Create pods for each outcome of a drain on the node.

    Two pods wait for a budget, one has emptyDir data, two are ignored (DaemonSet and static), and one can be evicted.
    """
    labels = {"kept": "yes"}
    scratch = [{"name": "scratch", "emptyDir": {}}]
    static = build_pod(f"static-{node}", node, annotations={MIRROR_ANNOTATION: "here"})
    create_and_wait(cluster, build_pod(f"bare-{node}", node), build_pod(f"local-{node}", node, volumes=scratch), static)
    create_and_wait(
        cluster, build_controller("DaemonSet", node), build_controller("ReplicaSet", node, labels, replicas=2)
    )
    create_and_wait(cluster, build_budget(f"keep-{node}", node, labels, minAvailable=2))


@proves("DRN-1a")
def test_dry_run_lists_evictable_blocked_and_ignored_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """NMO-6, NMO-7: The dry run lists evictable, blocked and ignored pods with their reasons, and changes nothing."""
    create_pods(installed_cluster, node_name)

    result = run_command("start", node_name, "--dry-run", "--delete-emptydir-data=false")

    assert result.exit_code == 0, result.output
    evicted, *wait, daemon, static, summary = result.stdout.splitlines()
    assert evicted == f"would evict pod default/bare-{node_name}"
    assert wait[0].startswith(f"would not evict pod default/local-{node_name} now: its emptyDir data would be lost: ")
    for line in wait[1:]:
        assert line.startswith(f"would not evict pod default/replicaset-{node_name}-")
        assert f"budget keep-{node_name} needs 2 healthy pods and has 2" in line
    assert len(wait) == 3
    assert daemon.startswith(f"would ignore pod default/daemonset-{node_name}-")
    assert daemon.endswith(": pod of a DaemonSet")
    assert static == f"would ignore pod default/static-{node_name}: static pod"
    assert summary == f"nodemaintenance.nodemaintenance.medik8s.io/{node_name} would be created"
    assert len(list_pods(installed_cluster, node_name)) == 6
    assert not is_cordoned(installed_cluster, node_name)
    assert installed_cluster.get_client().list(MEDIK8S.path, field_selector=f"spec.nodeName={node_name}")["items"] == []


def test_json_has_the_object_and_its_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    create_pods(installed_cluster, node_name)

    report = json.loads(run_command("start", node_name, "--dry-run", "-o", "json").stdout)

    assert report["spec"] == {"nodeName": node_name}
    assert [item["name"] for item in report["evicted"]] == [f"bare-{node_name}", f"local-{node_name}"]
    assert {(item["reason"], item["budget"]) for item in report["blockedPods"]} == {
        ("DisruptionBudget", f"keep-{node_name}")
    }
    assert [(item["name"].split("-")[0], item["reason"]) for item in report["ignored"]] == [
        ("daemonset", "pod of a DaemonSet"),
        ("static", "static pod"),
    ]


def test_dry_run_predicts_what_drain_evicts(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """Check that the dry run names the same pods that `drain` evicts from an identical node."""
    node, other_node = create_node(), create_node()
    for name in (node, other_node):
        create_pods(installed_cluster, name)

    report = json.loads(run_command("start", node, "--dry-run", "-o", "json").stdout)
    run_command("drain", other_node, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3s")

    evicted_names = {item["name"].removesuffix(f"-{node}") for item in report["evicted"]}
    assert evicted_names == {"bare", "local"}
    remaining = {"daemonset", "replicaset", "static"}
    wait_for_collection(
        installed_cluster.get_client(),
        "/api/v1/pods",
        lambda pods: get_pod_kinds(pods) == remaining,
        fields=f"spec.nodeName={other_node}",
    )


def get_pod_kinds(names: Iterable[str]) -> set[str]:
    """Return the kinds of pods, which are the first words of the names."""
    return {name.split("-")[0] for name in names}


@pytest.mark.parametrize("dry_run_flag", ["--dry-run=server", "--dry-run=client", "--dry-run=true"])
@pytest.mark.parametrize("command", ["start", "drain"])
def test_kubectl_values_of_dry_run_are_accepted(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str, command: str, dry_run_flag: str
) -> None:
    result, flag_result = run_command(command, "--dry-run", node_name), run_command(command, node_name, dry_run_flag)

    assert flag_result.exit_code == 0, flag_result.output
    assert flag_result.stdout == result.stdout
    assert not is_cordoned(installed_cluster, node_name)


def test_dry_runs_of_drain_and_start_agree(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that the dry runs of `start` and `drain` print the same lines.

    Static pods are an exception: `drain` does not mention them, as `kubectl drain` does not either.
    """
    create_pods(installed_cluster, node_name)

    start_lines = run_command("start", node_name, "--dry-run").stdout.splitlines()[:-1]
    drained = run_command("drain", node_name, "--dry-run", "--force", "--ignore-daemonsets", "--delete-emptydir-data")

    *lines, end = drained.stdout.splitlines()
    assert lines == [line for line in start_lines if "static" not in line]
    assert end == f"node/{node_name} would be drained"
    assert not is_cordoned(installed_cluster, node_name)


def test_unselected_pods_stay_and_empty_selection_gives_warning(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that pods outside the selector stay, and that a selector that matches no pod causes a warning.

    A drain that selects no pod succeeds at once, so its result looks like that of an emptied node.
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


def test_disable_eviction_deletes_blocked_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that `--disable-eviction` would delete blocked pods, and warns that the default RBAC does not allow it."""
    create_pods(installed_cluster, node_name)

    result = run_command("start", node_name, "--dry-run", "--disable-eviction")

    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith(f"would delete pod default/replicaset-{node_name}-")]) == 2
    assert not [line for line in lines if "would not evict" in line or "would evict" in line]
    assert "if the component deleting is installed; otherwise they stay" in result.stderr


def test_terminating_pod_is_waited_for(
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
    """Yield a user who may create maintenances and may not read pods."""
    with grant_temporary_permissions(
        served_cluster,
        "maintainer",
        *(f"{verb} {kind}" for kind in MAINTAINER_RESOURCES for verb in ("get", "list", "create")),
    ):
        yield UNPRIVILEGED


@contextmanager
def grant_temporary_permissions(cluster: LocalCluster, name: str, *rules: str) -> Iterator[None]:
    """Grant the unprivileged user these permissions in the block, and wait until the API server has revoked them."""
    user_subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": UNPRIVILEGED}
    grant_permissions(cluster.get_client(), name, rules, user_subject, UNPRIVILEGED)
    yield
    cluster.kubectl("delete", f"clusterrole/{name}", f"clusterrolebinding/{name}")
    for rule in rules:
        verb, kind = rule.split()
        await_ready(f"no right to {rule}", partial(lacks_permission, cluster, verb, kind), [])


def lacks_permission(cluster: LocalCluster, verb: str, kind: str) -> bool:
    """Return whether the unprivileged user lacks this permission."""
    return not has_permission(cluster.get_client(), UNPRIVILEGED, verb, kind)


@proves("X-6")
def test_user_without_daemonset_and_budget_access_sees_pods_and_warnings(
    served_cluster: LocalCluster, run_command: RunCommand, node_name: str, maintainer_without_pod_access: str
) -> None:
    """Check that a user who may list pods but not DaemonSets and budgets sees the pods and two warnings."""
    create_pods(served_cluster, node_name)

    with grant_temporary_permissions(served_cluster, "lister", "list pods"):
        result = run_command("start", node_name, "--dry-run", user=maintainer_without_pod_access)

    assert "Warning: cannot read DaemonSets, so the preview assumes that all of them exist: " in result.stderr
    assert "Warning: cannot list disruption budgets, so the preview ignores them: " in result.stderr
    assert [line.split()[1] for line in result.stdout.splitlines()[:-1]] == ["evict"] * 4 + ["ignore"] * 2


@proves("X-6")
def test_user_without_pod_access_gets_a_warning_and_the_rest(
    run_command: RunCommand, node_name: str, maintainer_without_pod_access: str
) -> None:
    """Check that a user who may not list pods gets the API server's error as a warning, and the rest of the output."""
    result = run_command("start", node_name, "--dry-run", user=maintainer_without_pod_access)

    assert result.exit_code == 0, result.output
    assert f'Warning: cannot list the pods of node "{node_name}": ' in result.stderr
    assert 'cannot list resource "pods"' in result.stderr
    assert result.stdout == f"nodemaintenance.nodemaintenance.medik8s.io/{node_name} would be created\n"
