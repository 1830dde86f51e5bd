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
from tests.console.commands.workload_objects import apply, budget, controlled, is_cordoned, pod, pods_on
from tests.console.conftest import Nodes, Run
from tests.console.permissions import allow, may
from tests.proofs import proves
from tests.waiting import until

KINDS = ("nodes", "nodemaintenances")


def furnish(cluster: LocalCluster, node: str) -> None:
    """Create pods for each outcome of a drain on the node.

    Two pods wait for a budget, one has emptyDir data, two are ignored (DaemonSet and static), and one can be evicted.
    """
    labels = {"kept": "yes"}
    scratch = [{"name": "scratch", "emptyDir": {}}]
    static = pod(f"static-{node}", node, annotations={MIRROR_ANNOTATION: "here"})
    apply(cluster, pod(f"bare-{node}", node), pod(f"local-{node}", node, volumes=scratch), static)
    apply(cluster, controlled("DaemonSet", node), controlled("ReplicaSet", node, labels, replicas=2))
    apply(cluster, budget(f"keep-{node}", node, labels, minAvailable=2))


@proves("DRN-1a")
def test_it_says_who_goes_who_waits_and_for_what(installed: LocalCluster, run: Run, node: str) -> None:
    """NMO-6, NMO-7: The dry run lists evictable, blocked and ignored pods with their reasons, and changes nothing."""
    furnish(installed, node)

    result = run("start", node, "--dry-run", "--delete-emptydir-data=false")

    assert result.exit_code == 0, result.output
    goes, *wait, daemon, static, made = result.stdout.splitlines()
    assert goes == f"would evict pod default/bare-{node}"
    assert wait[0].startswith(f"would wait with pod default/local-{node}: its emptyDir data would be lost: ")
    for line in wait[1:]:
        assert line.startswith(f"would wait with pod default/replicaset-{node}-")
        assert f"budget keep-{node} needs 2 healthy pods and has 2" in line
    assert len(wait) == 3
    assert daemon.startswith(f"would leave pod default/daemonset-{node}-")
    assert daemon.endswith(": of a DaemonSet")
    assert static == f"would leave pod default/static-{node}: static"
    assert made == f"nodemaintenance.nodemaintenance.medik8s.io/{node} would be created"
    assert len(pods_on(installed, node)) == 6
    assert not is_cordoned(installed, node)
    assert installed.door().list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"] == []


def test_as_json_it_is_the_object_and_its_pods(installed: LocalCluster, run: Run, node: str) -> None:
    furnish(installed, node)

    found = json.loads(run("start", node, "--dry-run", "-o", "json").stdout)

    assert found["spec"] == {"nodeName": node}
    assert [item["name"] for item in found["evicted"]] == [f"bare-{node}", f"local-{node}"]
    assert {(item["reason"], item["budget"]) for item in found["blockedPods"]} == {("DisruptionBudget", f"keep-{node}")}
    assert [(item["name"].split("-")[0], item["reason"]) for item in found["ignored"]] == [
        ("daemonset", "of a DaemonSet"),
        ("static", "static"),
    ]


def test_who_goes_in_it_is_who_goes(installed: LocalCluster, run: Run, new_node: Nodes) -> None:
    """Check that the dry run names the same pods that `drain` evicts from an identical node."""
    node, twin = new_node(), new_node()
    for each in (node, twin):
        furnish(installed, each)

    found = json.loads(run("start", node, "--dry-run", "-o", "json").stdout)
    run("drain", twin, "--force", "--ignore-daemonsets", "--delete-emptydir-data", "--timeout=3s")

    gone = {item["name"].removesuffix(f"-{node}") for item in found["evicted"]}
    assert gone == {"bare", "local"}
    left = {"daemonset", "replicaset", "static"}
    until(installed.door(), "/api/v1/pods", lambda pods: kinds(pods) == left, fields=f"spec.nodeName={twin}")


def kinds(names: Iterable[str]) -> set[str]:
    """Return the kinds of pods, which are the first words of the names."""
    return {name.split("-")[0] for name in names}


@pytest.mark.parametrize("written", ["--dry-run=server", "--dry-run=client", "--dry-run=true"])
@pytest.mark.parametrize("command", ["start", "drain"])
def test_kubectls_way_of_writing_it_is_understood(
    installed: LocalCluster, run: Run, node: str, command: str, written: str
) -> None:
    alone, as_kubectl = run(command, "--dry-run", node), run(command, node, written)

    assert as_kubectl.exit_code == 0, as_kubectl.output
    assert as_kubectl.stdout == alone.stdout
    assert not is_cordoned(installed, node)


def test_a_dry_drain_says_the_same_of_the_same_pods(installed: LocalCluster, run: Run, node: str) -> None:
    """Check that the dry runs of `start` and `drain` print the same lines.

    Static pods are an exception: `drain` does not mention them, as `kubectl drain` does not either.
    """
    furnish(installed, node)

    begun = run("start", node, "--dry-run").stdout.splitlines()[:-1]
    drained = run("drain", node, "--dry-run", "--force", "--ignore-daemonsets", "--delete-emptydir-data")

    *lines, end = drained.stdout.splitlines()
    assert lines == [line for line in begun if "static" not in line]
    assert end == f"node/{node} would be drained"
    assert not is_cordoned(installed, node)


def test_who_is_not_selected_stays_and_who_selects_nobody_is_warned(
    installed: LocalCluster, run: Run, node: str
) -> None:
    """Check that pods outside the selector stay, and that a selector that matches no pod causes a warning.

    A drain that selects no pod succeeds at once, so its result looks like that of an emptied node.
    """
    furnish(installed, node)

    some = run("start", node, "--dry-run", "--pod-selector=kept=yes")
    nobody = run("start", node, "--dry-run", "--pod-selector=kept=no")
    begun = run("start", node, "--pod-selector=kept=no")
    run("stop", node, "--no-wait")

    assert f"would leave pod default/bare-{node}: not selected" in some.stdout.splitlines()
    assert "selected by" not in some.stderr
    for result in (nobody, begun):
        assert f"Warning: no pod that would leave {node} is selected by kept=no" in result.stderr


def test_without_evictions_pods_are_deleted_past_their_budgets(installed: LocalCluster, run: Run, node: str) -> None:
    """Check that `--disable-eviction` would delete blocked pods, and warns that the default RBAC does not allow it."""
    furnish(installed, node)

    result = run("start", node, "--dry-run", "--disable-eviction")

    lines = result.stdout.splitlines()
    assert len([line for line in lines if line.startswith(f"would delete pod default/replicaset-{node}-")]) == 2
    assert not [line for line in lines if "would wait" in line or "would evict" in line]
    assert "where the component deleting is installed: else they stay" in result.stderr


def test_a_pod_on_its_way_is_waited_for(installed: LocalCluster, run: Run, node: str) -> None:
    apply(installed, pod(f"slow-{node}", node, annotations={"pod-delete.stage.kwok.x-k8s.io/delay": "20s"}))
    installed.kubectl("delete", "pod", f"slow-{node}", "--wait=false")

    result = run("start", node, "--dry-run")

    assert f"would wait for pod default/slow-{node}, which is ending" in result.stdout.splitlines()


@pytest.fixture
def maintainer(served: LocalCluster) -> Iterator[str]:
    """Yield a user who may create maintenances and may not read pods."""
    with allowed(served, "maintainer", *(f"{verb} {kind}" for kind in KINDS for verb in ("get", "list", "create"))):
        yield UNPRIVILEGED


@contextmanager
def allowed(cluster: LocalCluster, name: str, *rules: str) -> Iterator[None]:
    """Grant the unprivileged user these permissions in the block, and wait until the API server has revoked them."""
    subject = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": UNPRIVILEGED}
    allow(cluster.door(), name, rules, subject, UNPRIVILEGED)
    yield
    cluster.kubectl("delete", f"clusterrole/{name}", f"clusterrolebinding/{name}")
    for rule in rules:
        verb, kind = rule.split()
        await_ready(f"no right to {rule}", partial(may_not, cluster, verb, kind), [])


def may_not(cluster: LocalCluster, verb: str, kind: str) -> bool:
    """Return whether the unprivileged user lacks this permission."""
    return not may(cluster.door(), UNPRIVILEGED, verb, kind)


@proves("X-6")
def test_who_may_list_pods_alone_sees_them_and_what_is_not_known(
    served: LocalCluster, run: Run, node: str, maintainer: str
) -> None:
    """Check that a user who may list pods but not DaemonSets and budgets sees the pods and two warnings."""
    furnish(served, node)

    with allowed(served, "lister", "list pods"):
        result = run("start", node, "--dry-run", user=maintainer)

    assert "Warning: DaemonSets could not be read, so none is thought to be gone: " in result.stderr
    assert "Warning: disruption budgets could not be read, so none is thought of: " in result.stderr
    assert [line.split()[1] for line in result.stdout.splitlines()[:-1]] == ["evict"] * 4 + ["leave"] * 2


@proves("X-6")
def test_who_may_not_list_pods_is_told_so_and_sees_all_else(run: Run, node: str, maintainer: str) -> None:
    """Check that a user who may not list pods gets the API server's error as a warning, and the rest of the output."""
    result = run("start", node, "--dry-run", user=maintainer)

    assert result.exit_code == 0, result.output
    assert f"Warning: the pods of {node} could not be read: " in result.stderr
    assert 'cannot list resource "pods"' in result.stderr
    assert result.stdout == f"nodemaintenance.nodemaintenance.medik8s.io/{node} would be created\n"
