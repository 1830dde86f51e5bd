"""Tests of `drain`: a comparison with `kubectl drain` on identical nodes, and the messages about blocked pods."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from console.operations import manual_drain
from kube.client import eviction_batch
from kube.client.api import JSON_PATCH
from kube.maintenance.groups import MEDIK8S
from kube.nodes import cordon_patch, is_labelled, is_tainted, node_path, taint_patch
from localcluster.cluster import LocalCluster
from tests.console.commands.workload_objects import apply, budget, controlled, is_cordoned, pod, pods_on
from tests.console.conftest import Nodes, Run
from tests.proofs import proves
from tests.receiver import Answer, Received
from tests.eviction_webhook import admission, is_of_nobody, webhook

LAUNCHER = {"kubevirt.io": "virt-launcher"}
MODERN = ["--delete-emptydir-data", "--ignore-daemonsets", "--force"]
SPELLED_AS_THEN = ["--delete-local-data", "--ignore-daemonsets=true", "--force"]


def furnish(cluster: LocalCluster, node: str, *kinds: str) -> None:
    """Create one pod of each of these kinds on the node."""
    made = {
        "managed": controlled("ReplicaSet", node),
        "daemon": controlled("DaemonSet", node),
        "bare": pod(f"bare-{node}", node),
        "launcher": pod(f"launcher-{node}", node, labels=LAUNCHER),
        "local": pod(f"local-{node}", node, volumes=[{"name": "scratch", "emptyDir": {}}]),
        "mirror": pod(f"mirror-{node}", node, annotations={"kubernetes.io/config.mirror": "here"}),
    }
    apply(cluster, *(made[kind] for kind in kinds))


def outcome(cluster: LocalCluster, node: str) -> tuple[bool, list[str]]:
    """Return whether the node is cordoned, and the kinds of the pods that remain on it."""
    return is_cordoned(cluster, node), sorted(item["metadata"]["name"].split("-")[0] for item in pods_on(cluster, node))


EVERYTHING = ("managed", "daemon", "bare", "launcher", "local", "mirror")
EVERYTHING_BY_NAME = ("replicaset", "daemonset", "bare", "launcher", "local", "mirror")
TWINS = {
    "DRN-1: all flags": (EVERYTHING, MODERN, SPELLED_AS_THEN, ["daemonset", "mirror"]),
    "C11: the modern spelling": (("daemon", "bare", "local"), MODERN, MODERN, ["daemonset"]),
    "DRN-2: emptyDir without its flag": (("managed", "local"), ["--force"], ["--force"], ["local", "replicaset"]),
    "DRN-2: emptyDir with false": (("local",), ["--force"], ["--force", "--delete-local-data=false"], ["local"]),
    "DRN-3: a DaemonSet without its flag": (("managed", "daemon"), [], [], ["daemonset", "replicaset"]),
    "DRN-3: a DaemonSet with false": (
        ("managed", "daemon"),
        ["--ignore-daemonsets=false"],
        ["--ignore-daemonsets=false"],
        ["daemonset", "replicaset"],
    ),
    "DRN-4: a bare pod without force": (("managed", "bare"), [], [], ["bare", "replicaset"]),
    "DRN-4: a bare pod with force": (("managed", "bare"), ["--force"], ["--force=true"], []),
    "DRN-5: only the pods with a label": (
        ("launcher", "bare", "managed", "daemon"),
        ["--force", "--pod-selector=kubevirt.io=virt-launcher"],
        ["--force", "--pod-selector=kubevirt.io=virt-launcher"],
        ["bare", "daemonset", "replicaset"],
    ),
    "only managed pods": (("managed",), [], [], []),
}


@proves("DRN-1", "DRN-2", "DRN-3", "DRN-4", "DRN-5", "OSV-10", "C11")
@pytest.mark.parametrize(("kinds", "theirs", "ours", "left"), TWINS.values(), ids=TWINS.keys())
def test_a_drain_ends_as_that_of_kubectl_does(
    installed: LocalCluster,
    run: Run,
    new_node: Nodes,
    kinds: tuple[str, ...],
    theirs: list[str],
    ours: list[str],
    left: list[str],
) -> None:
    """DRN-1 to DRN-5, OSV-1, OSV-10, KNM-6: `drain` leaves the same pods, cordon and exit status as `kubectl drain`."""
    twin, node = new_node(), new_node()
    furnish(installed, twin, *kinds)
    furnish(installed, node, *kinds)

    with ThreadPoolExecutor() as beside:
        kubectl = beside.submit(installed.kubectl, "drain", twin, *theirs, check=False)
        result = run("drain", node, *ours)
        expected = kubectl.result()

    assert outcome(installed, node) == outcome(installed, twin) == (True, left)
    assert result.exit_code == expected.returncode, result.output


@proves("DRN-2", "DRN-3", "DRN-4")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("local", "cannot delete Pods with local storage (use --delete-emptydir-data to override): default/local-"),
        ("daemon", "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): default/daemonset-"),
        ("bare", "cannot delete Pods that declare no controller (use --force to override): default/bare-"),
    ],
)
def test_a_refusal_names_pods_and_flag_in_one_line(
    installed: LocalCluster, run: Run, node: str, kind: str, message: str
) -> None:
    """DRN-2 to DRN-4: A refused drain evicts no pod, leaves the node cordoned, and names pods and flag in one line."""
    furnish(installed, node, kind)

    result = run("drain", node, *(["--force"] if kind == "local" else []))

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f"Error: nothing was evicted from {node}, which stays cordoned: ")
    assert message in result.stderr


@proves("DRN-5")
@pytest.mark.parametrize("selector", ["!!", "a=b=c", "a in (b"])
def test_a_selector_that_cannot_be_read_is_a_usage_error_before_any_cordon(
    installed: LocalCluster, run: Run, node: str, selector: str
) -> None:
    """DRN-5: An invalid pod selector is a usage error, and the node is not cordoned."""
    result = run("drain", node, f"--pod-selector={selector}")

    assert result.exit_code == 2
    assert not is_cordoned(installed, node)


def test_a_dry_run_tells_and_changes_nothing(installed: LocalCluster, run: Run, node: str) -> None:
    """DRN-1: `drain --dry-run` lists the pods that a drain would evict, and changes nothing."""
    furnish(installed, node, "bare", "managed")

    result = run("drain", node, "--force", "--dry-run")

    assert result.exit_code == 0
    assert f"would evict pod default/bare-{node}" in result.stdout
    assert outcome(installed, node) == (False, ["bare", "replicaset"])


def test_json_is_one_object_with_the_pods_that_went(installed: LocalCluster, run: Run, node: str) -> None:
    """DRN-1: `drain -o json` prints one object to stdout and its warnings to stderr."""
    furnish(installed, node, "bare", "daemon")

    result = run("drain", node, "--force", "--ignore-daemonsets", "-o", "json")

    report: dict[str, Any] = json.loads(result.stdout)
    assert report["drained"] is True
    assert report["evicted"] == [{"namespace": "default", "name": f"bare-{node}"}]
    assert [item["name"].split("-")[0] for item in report["ignored"]] == ["daemonset"]
    assert "ignoring DaemonSet-managed Pods" in result.stderr


def test_a_drain_that_a_budget_stops_ends_at_its_timeout_and_says_who_waits(
    installed: LocalCluster, run: Run, node: str
) -> None:
    """DRN-6: A drain that a budget blocks fails at its timeout, names the blocked pods and leaves the node cordoned."""
    apply(installed, controlled("ReplicaSet", node, replicas=2))
    apply(installed, budget(f"keep-{node}", node, minAvailable=2))

    result = run("drain", node, "--timeout=1s")

    assert result.exit_code == 1
    assert f"2 pods left: default/replicaset-{node}" in result.stderr
    assert f"budget keep-{node} needs 2 healthy pods and has 2" in result.stderr
    assert is_cordoned(installed, node)


@pytest.fixture
def waiting_drain(installed: LocalCluster, plugin: dict[str, str], node: str) -> Iterator[subprocess.Popen[str]]:
    """Yield the process of a drain that waits for a budget."""
    apply(installed, controlled("ReplicaSet", node, replicas=2))
    apply(installed, budget(f"keep-{node}", node, minAvailable=2))
    words = ["kubectl", "maintenance", "drain", node]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plugin) as process:
        assert process.stdout
        assert any(line.startswith("waiting with pod ") for line in process.stdout)
        yield process
        process.kill()


def test_a_blocked_pod_goes_when_its_budget_opens(
    installed: LocalCluster, node: str, waiting_drain: subprocess.Popen[str]
) -> None:
    """NMO-6: `drain` watches the budget and evicts the blocked pods after the budget is deleted."""
    installed.kubectl("delete", "poddisruptionbudget", f"keep-{node}")

    out, errors = waiting_drain.communicate(timeout=10)

    assert waiting_drain.returncode == 0, errors
    assert out.endswith(f"node/{node} drained\n")
    assert pods_on(installed, node) == []


def test_ctrl_c_ends_a_waiting_drain_without_a_traceback(
    installed: LocalCluster, node: str, waiting_drain: subprocess.Popen[str]
) -> None:
    """DRN-6: Ctrl-C ends `drain` with a message that names the remaining pods, and leaves the node cordoned."""
    waiting_drain.send_signal(2)

    _, errors = waiting_drain.communicate(timeout=10)

    assert waiting_drain.returncode == 130
    assert errors.startswith(f"\nInterrupted: nothing more is evicted, {node} stays cordoned, 2 pods left: ")
    assert errors.endswith(f"; kubectl maintenance uncordon {node} ends that\n")
    assert is_cordoned(installed, node)


def test_a_pod_behind_two_budgets_is_named_after_the_others_went(installed: LocalCluster, run: Run, node: str) -> None:
    """NMO-6: `drain` fails on a pod with two budgets, because the Eviction API supports one budget per pod."""
    apply(installed, controlled("ReplicaSet", node), pod(f"bare-{node}", node))
    for name in ("first", "second"):
        apply(installed, budget(f"{name}-{node}", node, {"by": "replicaset"}, maxUnavailable=1))

    result = run("drain", node, "--force")

    assert result.exit_code == 1
    assert f"these pods cannot be evicted: default/replicaset-{node}" in result.stderr
    assert outcome(installed, node) == (True, ["replicaset"])


@pytest.mark.slow
def test_a_refusal_that_comes_behind_its_batch_is_said(
    installed: LocalCluster, run: Run, node: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NMO-6: `drain` retries an eviction that a webhook denies after the batch has ended.

    No event follows such a denial, since it changes no pod. The output has one line for each eviction.
    """
    monkeypatch.setattr(eviction_batch, "OVERSLEPT_SECONDS", 0.0)
    monkeypatch.setattr(manual_drain, "RETRY_SECONDS", 0.1)
    furnish(installed, node, "bare")
    never, asked = threading.Event(), list[Received]()

    def refuse_once(request: Received) -> Answer:
        if not is_of_nobody(request):
            asked.append(request)
            never.wait(0.3)
        return admission(request, "not today" if len(asked) == 1 else "")

    with webhook(installed, "default", refuse_once, 10):
        result = run("drain", node, "--force", "--timeout=10s")

    assert result.exit_code == 0, result.stderr
    (said,) = [line for line in result.stdout.splitlines() if line.startswith("waiting with pod ")]
    assert said.endswith("denied the request: not today")
    assert result.stdout.count(f"evicting pod default/bare-{node}") == len(asked) == 2


def test_a_drain_waits_until_terminating_pods_are_gone(installed: LocalCluster, run: Run, node: str) -> None:
    """NMO-6: `drain` waits until evicted pods no longer exist."""
    apply(installed, pod(f"slow-{node}", node, annotations={"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}))

    result = run("drain", node, "--force")

    assert result.exit_code == 0
    assert pods_on(installed, node) == []


@proves("DRN-6", "OSV-10")
def test_a_drained_node_stays_cordoned_until_it_is_uncordoned(installed: LocalCluster, run: Run, node: str) -> None:
    """DRN-6, OSV-10: A node stays cordoned after `drain` until `uncordon`, and a second `uncordon` changes nothing."""
    run("drain", node)
    assert is_cordoned(installed, node)

    first, second = run("uncordon", node), run("uncordon", node)

    assert [first.stdout, second.stdout] == [f"node/{node} uncordoned\n", f"node/{node} already uncordoned\n"]
    assert not is_cordoned(installed, node)


@pytest.mark.parametrize("labelled", [True, False], ids=["left by a maintenance", "tainted by hand"])
def test_uncordon_takes_the_drain_taint_of_a_maintenance_that_is_gone(
    installed: LocalCluster, run: Run, node: str, labelled: bool
) -> None:
    """X-5: `uncordon` removes the label and the drain taint of a deleted maintenance.

    Without the label, the taint may belong to another writer, so `uncordon` keeps the taint and reports it.
    """
    door, taint = installed.door(), MEDIK8S.drain_taint
    found = door.get(node_path(node))
    patch = [*cordon_patch(found, "gone" if labelled else ""), *taint_patch(found, taint, "gone")[-2:]]
    door.run(door.api.patch(node_path(node), patch, JSON_PATCH))

    freed = json.loads(run("uncordon", node, "-o", "json").stdout)

    after = door.get(node_path(node))
    state = "schedulable" if labelled else f"schedulable, but for the taint {taint}"
    assert freed == {"node": node, "schedulable": True, "state": state, "changed": True}
    assert is_tainted(after, taint) is not labelled
    assert not is_cordoned(installed, node)
    assert not is_labelled(after)
    assert f"{node} already uncordoned" in (again := run("uncordon", node).stdout)
    assert (f"Node {node}: {state}" in again) is not labelled


@proves("OSV-10a")
def test_the_sequence_of_the_document_ends_as_that_of_kubectl_does(
    installed: LocalCluster, run: Run, new_node: Nodes
) -> None:
    """OSV-10a: The documented `cordon`, `drain` and `uncordon` give the same node states as kubectl's commands."""
    ours, theirs = new_node(), new_node()
    for node in (ours, theirs):
        furnish(installed, node, *EVERYTHING)

    said = run("cordon", ours).stdout
    installed.kubectl("cordon", theirs)
    assert outcome(installed, ours) == outcome(installed, theirs) == (True, sorted(EVERYTHING_BY_NAME))
    drained = run("drain", ours, *SPELLED_AS_THEN)
    installed.kubectl("drain", theirs, *MODERN)
    assert outcome(installed, ours) == outcome(installed, theirs) == (True, ["daemonset", "mirror"])
    freed = run("uncordon", ours)
    installed.kubectl("uncordon", theirs)
    assert is_cordoned(installed, ours) is is_cordoned(installed, theirs) is False

    assert said == f"node/{ours} cordoned\n"
    assert f"node/{ours} already cordoned" in drained.stdout
    assert (drained.exit_code, freed.stdout) == (0, f"node/{ours} uncordoned\n")


def test_to_cordon_again_changes_nothing(run: Run, node: str) -> None:
    """Check that a second `cordon` reports that nothing changed, also in its JSON output."""
    assert json.loads(run("cordon", node, "-o", "json").stdout) == {"node": node, "schedulable": False, "changed": True}
    assert run("cordon", node).stdout == f"node/{node} already cordoned\n"
