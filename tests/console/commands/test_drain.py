"""Tests for `kubectl maintenance drain`: a comparison with `kubectl drain`, and messages about blocked pods."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from console.operations import manual_drain
from kube.budgets import CREATED_BY_LABEL
from kube.client.api import JSON_PATCH
from kube.evictions import executor
from kube.maintenance.groups import MEDIK8S
from kube.nodes import build_cordon_patch, build_node_path, build_taint_patch, has_maintenance_label, is_tainted
from kube.virtualization.virt_launcher_budgets import VMI_UID_LABEL
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import ReceivedRequest, Response
from tests.console.commands.workload_objects import (
    build_budget,
    build_controller,
    build_pod,
    create_and_wait,
    is_cordoned,
    list_pods,
)
from tests.console.conftest import CreateNode, RunCommand
from tests.eviction_webhook import build_review_response, is_probe, serve_webhook
from tests.proofs import proves

LAUNCHER_LABELS = {"kubevirt.io": "virt-launcher"}
CURRENT_FLAGS = ["--delete-emptydir-data", "--ignore-daemonsets", "--force"]
LEGACY_FLAGS = ["--delete-local-data", "--ignore-daemonsets=true", "--force"]


def create_pods(cluster: LocalCluster, node: str, *kinds: str) -> None:
    """Create one pod of each of these kinds on the node."""
    objects_by_kind = {
        "managed": build_controller("ReplicaSet", node),
        "daemon": build_controller("DaemonSet", node),
        "bare": build_pod(f"bare-{node}", node),
        "launcher": build_pod(f"launcher-{node}", node, labels=LAUNCHER_LABELS),
        "local": build_pod(f"local-{node}", node, volumes=[{"name": "scratch", "emptyDir": {}}]),
        "mirror": build_pod(f"mirror-{node}", node, annotations={"kubernetes.io/config.mirror": "here"}),
    }
    create_and_wait(cluster, *(objects_by_kind[kind] for kind in kinds))


def get_node_outcome(cluster: LocalCluster, node: str) -> tuple[bool, list[str]]:
    """Return whether the node is cordoned, and the name prefixes of the pods that are still on the node."""
    return is_cordoned(cluster, node), sorted(pod["metadata"]["name"].split("-")[0] for pod in list_pods(cluster, node))


ALL_POD_KINDS = ("managed", "daemon", "bare", "launcher", "local", "mirror")
ALL_NAME_PREFIXES = ("replicaset", "daemonset", "bare", "launcher", "local", "mirror")
DRAIN_CASES = {
    "DRN-1: all flags": (ALL_POD_KINDS, CURRENT_FLAGS, LEGACY_FLAGS, ["daemonset", "mirror"]),
    "C11: the current flag names": (("daemon", "bare", "local"), CURRENT_FLAGS, CURRENT_FLAGS, ["daemonset"]),
    "DRN-2: emptyDir without its flag": (("managed", "local"), ["--force"], ["--force"], ["local", "replicaset"]),
    "DRN-2: emptyDir with flag false": (("local",), ["--force"], ["--force", "--delete-local-data=false"], ["local"]),
    "DRN-3: a DaemonSet without its flag": (("managed", "daemon"), [], [], ["daemonset", "replicaset"]),
    "DRN-3: a DaemonSet with flag false": (
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
@pytest.mark.parametrize(
    ("kinds", "kubectl_flags", "flags", "remaining_pods"), DRAIN_CASES.values(), ids=DRAIN_CASES.keys()
)
def test_drain_matches_kubectl_drain(
    installed_cluster: LocalCluster,
    run_command: RunCommand,
    create_node: CreateNode,
    kinds: tuple[str, ...],
    kubectl_flags: list[str],
    flags: list[str],
    remaining_pods: list[str],
) -> None:
    """DRN-1 to DRN-5, OSV-1, OSV-10, KNM-6: `drain` has the same result and exit status as `kubectl drain`."""
    kubectl_node, node = create_node(), create_node()
    create_pods(installed_cluster, kubectl_node, *kinds)
    create_pods(installed_cluster, node, *kinds)

    with ThreadPoolExecutor() as executor:
        kubectl_future = executor.submit(installed_cluster.kubectl, "drain", kubectl_node, *kubectl_flags, check=False)
        result = run_command("drain", node, *flags)
        kubectl_result = kubectl_future.result()

    assert (
        get_node_outcome(installed_cluster, node)
        == get_node_outcome(installed_cluster, kubectl_node)
        == (True, remaining_pods)
    )
    assert result.exit_code == kubectl_result.returncode, result.output


@proves("DRN-2", "DRN-3", "DRN-4")
@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("local", "cannot delete Pods with local storage (use --delete-emptydir-data to override): default/local-"),
        ("daemon", "cannot delete DaemonSet-managed Pods (use --ignore-daemonsets to ignore): default/daemonset-"),
        ("bare", "cannot delete Pods that declare no controller (use --force to override): default/bare-"),
    ],
)
def test_error_of_refused_drain_names_pods_and_flag(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str, kind: str, message: str
) -> None:
    """DRN-2 to DRN-4: a refused drain leaves the node cordoned, and one line names the pods and the missing flag."""
    create_pods(installed_cluster, node_name, kind)

    result = run_command("drain", node_name, *(["--force"] if kind == "local" else []))

    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert result.stderr.startswith(f'Error: unable to drain node "{node_name}", which stays cordoned: ')
    assert message in result.stderr


@proves("DRN-5")
@pytest.mark.parametrize("selector", ["!!", "a=b=c", "a in (b"])
def test_invalid_pod_selector_is_usage_error_and_node_is_not_cordoned(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str, selector: str
) -> None:
    """DRN-5: an invalid pod selector is a usage error, and the node is not cordoned."""
    result = run_command("drain", node_name, f"--pod-selector={selector}")

    assert result.exit_code == 2
    assert not is_cordoned(installed_cluster, node_name)


def test_dry_run_of_drain_lists_pods_and_changes_nothing(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """DRN-1: `drain --dry-run` lists the pods that a drain would evict, and changes nothing."""
    create_pods(installed_cluster, node_name, "bare", "managed")

    result = run_command("drain", node_name, "--force", "--dry-run")

    assert result.exit_code == 0
    assert f"would evict pod default/bare-{node_name}" in result.stdout
    assert get_node_outcome(installed_cluster, node_name) == (False, ["bare", "replicaset"])


def test_json_output_of_drain_lists_evicted_and_ignored_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """DRN-1: `drain -o json` prints one object to stdout and warnings to stderr."""
    create_pods(installed_cluster, node_name, "bare", "daemon")

    result = run_command("drain", node_name, "--force", "--ignore-daemonsets", "-o", "json")

    report: dict[str, Any] = json.loads(result.stdout)
    assert report["drained"] is True
    assert report["evicted"] == [{"namespace": "default", "name": f"bare-{node_name}"}]
    assert [pod["name"].split("-")[0] for pod in report["ignored"]] == ["daemonset"]
    assert "ignoring DaemonSet-managed Pods" in result.stderr


def test_blocked_drain_times_out_and_names_blocked_pods(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """DRN-6: `drain` fails after its timeout if a PodDisruptionBudget blocks it; the error names the pods.

    The node stays cordoned.
    """
    create_and_wait(installed_cluster, build_controller("ReplicaSet", node_name, replicas=2))
    create_and_wait(installed_cluster, build_budget(f"keep-{node_name}", node_name, minAvailable=2))

    result = run_command("drain", node_name, "--timeout=1s")

    assert result.exit_code == 1
    assert f"2 pods left: default/replicaset-{node_name}" in result.stderr
    assert f"budget keep-{node_name} needs 2 healthy pods and has 2" in result.stderr
    assert is_cordoned(installed_cluster, node_name)


@pytest.fixture
def blocked_drain_process(
    installed_cluster: LocalCluster, plugin_environment: dict[str, str], node_name: str
) -> Iterator[subprocess.Popen[str]]:
    """Yield the process of a `drain` command that a PodDisruptionBudget blocks."""
    create_and_wait(installed_cluster, build_controller("ReplicaSet", node_name, replicas=2))
    create_and_wait(installed_cluster, build_budget(f"keep-{node_name}", node_name, minAvailable=2))
    command = ["kubectl", "maintenance", "drain", node_name]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=plugin_environment
    ) as process:
        assert process.stdout
        assert any(line.startswith("waiting to evict pod ") for line in process.stdout)
        yield process
        process.kill()


def test_blocked_pods_are_evicted_after_their_budget_is_deleted(
    installed_cluster: LocalCluster, node_name: str, blocked_drain_process: subprocess.Popen[str]
) -> None:
    """NMO-6: `drain` watches the PodDisruptionBudget, and evicts the blocked pods after the PDB was deleted."""
    installed_cluster.kubectl("delete", "poddisruptionbudget", f"keep-{node_name}")

    output, errors = blocked_drain_process.communicate(timeout=10)

    assert blocked_drain_process.returncode == 0, errors
    assert output.endswith(f"node/{node_name} drained\n")
    assert list_pods(installed_cluster, node_name) == []


def test_ctrl_c_ends_blocked_drain_without_traceback(
    installed_cluster: LocalCluster, node_name: str, blocked_drain_process: subprocess.Popen[str]
) -> None:
    """DRN-6: Ctrl-C ends `drain` with a message that names the remaining pods, and leaves the node cordoned."""
    blocked_drain_process.send_signal(2)

    _, errors = blocked_drain_process.communicate(timeout=10)

    assert blocked_drain_process.returncode == 130
    expected_state = f'no more pods are evicted, node "{node_name}" stays cordoned, 2 pods left: '
    assert errors.startswith(f"\nInterrupted: {expected_state}")
    assert errors.endswith(f"; to uncordon it, run kubectl maintenance uncordon {node_name}\n")
    assert is_cordoned(installed_cluster, node_name)


def test_pod_with_two_budgets_is_reported_after_other_pods_are_evicted(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """NMO-6: `drain` fails for a pod with two PodDisruptionBudgets, as the Eviction API supports only one per pod."""
    create_and_wait(
        installed_cluster, build_controller("ReplicaSet", node_name), build_pod(f"bare-{node_name}", node_name)
    )
    for name in ("first", "second"):
        create_and_wait(
            installed_cluster, build_budget(f"{name}-{node_name}", node_name, {"by": "replicaset"}, maxUnavailable=1)
        )

    result = run_command("drain", node_name, "--force")

    assert result.exit_code == 1
    assert f"cannot evict these pods: default/replicaset-{node_name}" in result.stderr
    assert get_node_outcome(installed_cluster, node_name) == (True, ["replicaset"])


@pytest.mark.slow
def test_eviction_denied_after_end_of_batch_is_reported_and_retried(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """NMO-6: `drain` retries an eviction that a webhook denies only after the batch has ended.

    No watch event follows such a denial, because no pod has changed. The output has one line for each eviction.
    """
    monkeypatch.setattr(executor, "RESPONSE_WAIT_SECONDS", 0.0)
    monkeypatch.setattr(manual_drain, "RETRY_SECONDS", 0.1)
    create_pods(installed_cluster, node_name, "bare")
    never_set, webhook_requests = threading.Event(), list[ReceivedRequest]()

    def deny_first_eviction(request: ReceivedRequest) -> Response:
        if not is_probe(request):
            webhook_requests.append(request)
            never_set.wait(0.3)
        return build_review_response(request, "not today" if len(webhook_requests) == 1 else "")

    with serve_webhook(installed_cluster, "default", deny_first_eviction, 10):
        result = run_command("drain", node_name, "--force", "--timeout=10s")

    assert result.exit_code == 0, result.stderr
    (message,) = [line for line in result.stdout.splitlines() if line.startswith("waiting to evict pod ")]
    assert message.endswith("denied the request: not today")
    assert result.stdout.count(f"evicting pod default/bare-{node_name}") == len(webhook_requests) == 2


@proves("OSV-10")
def test_drain_without_kubevirt_reports_vms_that_it_does_not_migrate(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """Check that `drain` evicts all other pods, and fails because of a VM that only a NodeMaintenance migrates.

    The VM has the PodDisruptionBudget that `protect` creates on clusters without KubeVirt's controllers.
    """
    create_pods(installed_cluster, node_name, "bare")
    labels = {CREATED_BY_LABEL: f"uid-{node_name}", "kubevirt.io": "virt-launcher"}
    create_and_wait(installed_cluster, build_pod(f"launcher-{node_name}", node_name, labels=labels))
    budget = build_budget(f"launcher-uid-{node_name}", node_name, None, minAvailable=100)
    budget["metadata"]["labels"] |= {VMI_UID_LABEL: f"uid-{node_name}"}
    budget["spec"]["selector"] = {"matchLabels": {CREATED_BY_LABEL: f"uid-{node_name}"}}
    create_and_wait(installed_cluster, budget)

    result = run_command("drain", node_name, "--force", "--timeout=20s")

    assert result.exit_code == 1
    assert f"pod default/bare-{node_name} is gone" in result.stdout
    assert f"cannot evict these pods: default/launcher-{node_name}: " in result.stderr
    assert "this command cannot migrate virtual machines, because the cluster has no KubeVirt" in result.stderr
    assert f"run kubectl maintenance start {node_name}" in result.stderr
    assert [pod["metadata"]["name"] for pod in list_pods(installed_cluster, node_name)] == [f"launcher-{node_name}"]


def test_drain_waits_until_evicted_pods_are_gone(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """NMO-6: `drain` waits until evicted pods no longer exist."""
    create_and_wait(
        installed_cluster,
        build_pod(f"slow-{node_name}", node_name, annotations={"pod-delete.stage.kwok.x-k8s.io/delay": "1s"}),
    )

    result = run_command("drain", node_name, "--force")

    assert result.exit_code == 0
    assert list_pods(installed_cluster, node_name) == []


@proves("DRN-6", "OSV-10")
def test_drained_node_stays_cordoned_until_uncordon(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str
) -> None:
    """DRN-6, OSV-10: a node stays cordoned after `drain` until `uncordon`, and a second `uncordon` changes nothing."""
    run_command("drain", node_name)
    assert is_cordoned(installed_cluster, node_name)

    first_uncordon, second_uncordon = run_command("uncordon", node_name), run_command("uncordon", node_name)

    assert [first_uncordon.stdout, second_uncordon.stdout] == [
        f"node/{node_name} uncordoned\n",
        f"node/{node_name} already uncordoned\n",
    ]
    assert not is_cordoned(installed_cluster, node_name)


@pytest.mark.parametrize("has_label", [True, False], ids=["tainted by a maintenance", "tainted by hand"])
def test_uncordon_removes_drain_taint_of_deleted_maintenance(
    installed_cluster: LocalCluster, run_command: RunCommand, node_name: str, has_label: bool
) -> None:
    """X-5: `uncordon` removes the label and the drain taint that a deleted maintenance has left on the node.

    Without the label, another client may have set the taint, so `uncordon` keeps and reports it.
    """
    client, taint = installed_cluster.get_client(), MEDIK8S.drain_taint
    node = client.get(build_node_path(node_name))
    patch = [*build_cordon_patch(node, "gone" if has_label else ""), *build_taint_patch(node, taint, "gone")[-2:]]
    client.run(client.api.patch(build_node_path(node_name), patch, JSON_PATCH))

    report = json.loads(run_command("uncordon", node_name, "-o", "json").stdout)

    node_after = client.get(build_node_path(node_name))
    state = "schedulable" if has_label else f"schedulable, except for the taint {taint}"
    assert report == {"node": node_name, "schedulable": True, "state": state, "changed": True}
    assert is_tainted(node_after, taint) is not has_label
    assert not is_cordoned(installed_cluster, node_name)
    assert not has_maintenance_label(node_after)
    assert f"{node_name} already uncordoned" in (second_output := run_command("uncordon", node_name).stdout)
    assert (f"Node {node_name}: {state}" in second_output) is not has_label


@proves("OSV-10a")
def test_documented_command_sequence_has_same_result_as_kubectl(
    installed_cluster: LocalCluster, run_command: RunCommand, create_node: CreateNode
) -> None:
    """OSV-10a: the documented sequence of `cordon`, `drain` and `uncordon` has the same results as in kubectl."""
    plugin_node, kubectl_node = create_node(), create_node()
    for node in (plugin_node, kubectl_node):
        create_pods(installed_cluster, node, *ALL_POD_KINDS)

    cordon_output = run_command("cordon", plugin_node).stdout
    installed_cluster.kubectl("cordon", kubectl_node)
    assert (
        get_node_outcome(installed_cluster, plugin_node)
        == get_node_outcome(installed_cluster, kubectl_node)
        == (True, sorted(ALL_NAME_PREFIXES))
    )
    drain_result = run_command("drain", plugin_node, *LEGACY_FLAGS)
    installed_cluster.kubectl("drain", kubectl_node, *CURRENT_FLAGS)
    assert (
        get_node_outcome(installed_cluster, plugin_node)
        == get_node_outcome(installed_cluster, kubectl_node)
        == (True, ["daemonset", "mirror"])
    )
    uncordon_result = run_command("uncordon", plugin_node)
    installed_cluster.kubectl("uncordon", kubectl_node)
    assert is_cordoned(installed_cluster, plugin_node) is is_cordoned(installed_cluster, kubectl_node) is False

    assert cordon_output == f"node/{plugin_node} cordoned\n"
    assert f"node/{plugin_node} already cordoned" in drain_result.stdout
    assert (drain_result.exit_code, uncordon_result.stdout) == (0, f"node/{plugin_node} uncordoned\n")


def test_second_cordon_changes_nothing(run_command: RunCommand, node_name: str) -> None:
    """Check that `cordon -o json` reports a change at first, and that a second `cordon` changes nothing."""
    assert json.loads(run_command("cordon", node_name, "-o", "json").stdout) == {
        "node": node_name,
        "schedulable": False,
        "changed": True,
    }
    assert run_command("cordon", node_name).stdout == f"node/{node_name} already cordoned\n"
