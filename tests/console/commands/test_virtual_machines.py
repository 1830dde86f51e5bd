"""Tests of what `status` and `start` print about virtual machines, on a real API server with KubeVirt's CRDs."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from kube.virtualization.vmis import API_VERSION, instance_path
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.console.commands import virtual_machines
from tests.console.conftest import Nodes, Run
from tests.kubevirt import ABLE
from tests.proofs import proves

READER = access.service_account("begin")
"""ServiceAccount that may get nodes and list maintenances, and may read no KubeVirt objects."""


@pytest.fixture(scope="module")
def kinds(served: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster with KubeVirt's CRDs."""
    with virtual_machines.kinds(served):
        yield served


@pytest.fixture
def admin(kinds: LocalCluster, node: str) -> Iterator[Cluster]:
    """Yield the API client, after creating four different virtual machines on the node."""
    door = kinds.door()
    virtual_machines.each_kind(door, node)
    yield door
    virtual_machines.clear(door)


@proves("X-3")
def test_a_cluster_without_virtual_machines_says_nothing_of_them(run: Run, node: str) -> None:
    """Check that `status` prints nothing about virtual machines if KubeVirt's CRDs are not installed.

    This test must run first, before the CRDs are installed. It also shows that the missing permission causes no
    request.
    """
    report = json.loads(run("status", node, "-o", "json", user=READER).stdout)
    assert report["virtualMachines"] == []
    assert "VIRTUAL MACHINE" not in run("status", node).stdout


@proves("OSV-2", "OSV-3")
def test_status_lists_the_machines_of_a_node(admin: Cluster, run: Run, node: str) -> None:
    """Check that `status` lists each VM's strategies, migratability, drain effect and migration."""
    shown = run("status", node)
    assert shown.exit_code == 0, shown.output
    rows = {
        line.split()[0]: " ".join(line.split()) for line in shown.stdout.splitlines() if line.startswith("machines/")
    }
    assert rows == {
        "machines/live": "machines/live Running LiveMigrate Always yes moves: to another node, without a break "
        f"Running to node-3: {virtual_machines.MOVING}",
        "machines/manual": "machines/manual Running – Manual yes stops: shut down, and not started again",
        "machines/plain": "machines/plain Running – RerunOnFailure yes restarts: shut down, and started on another "
        "node",
        "machines/stuck": "machines/stuck Running LiveMigrate Always no: no disk blocks: until it can be migrated, "
        "or is shut down",
    }
    found = json.loads(run("status", node, "-o", "json").stdout)["virtualMachines"]
    assert {each["name"]: each["drain"] for each in found} == {
        **{"live": "moves", "manual": "stops"},
        **{"plain": "restarts", "stuck": "blocks"},
    }


@proves("OSV-2")
def test_only_the_nodes_own_machines_are_listed(admin: Cluster, run: Run, new_node: Nodes) -> None:
    """Check that `status` leaves out a VMI that migrates to the node and already has a second launcher pod there."""
    other = new_node()
    virtual_machines.launch(admin, other, admin.get(instance_path(virtual_machines.SPACE, "live")), "virt-launcher-live-target")
    assert json.loads(run("status", other, "-o", "json").stdout)["virtualMachines"] == []


@proves("OSV-14")
def test_who_may_not_read_machines_sees_all_else(admin: Cluster, run: Run, node: str) -> None:
    """Check that a user who may not read VMIs sees the API server's error instead of them, and the rest."""
    report = json.loads(run("status", node, "-o", "json", user=READER).stdout)
    assert report["state"] == "schedulable"
    assert "virtualMachines" not in report
    assert report["virtualMachinesUnknown"].startswith(f"the virtual machines of {node} could not be read: ")
    assert f"the virtual machines of {node} could not be read" in run("status", node, user=READER).stdout


@proves("OSV-3")
@pytest.mark.parametrize("dry", [True, False])
def test_start_says_before_what_becomes_of_machines(admin: Cluster, run: Run, node: str, dry: bool) -> None:
    """Check that `start` prints what the drain will do with each VM before it creates the maintenance.

    With `--dry-run`, `start` prints the same lines and creates nothing.
    """
    started = run("start", node, *(["--dry-run"] if dry else []))
    assert started.exit_code == 0, started.output
    assert started.stderr.splitlines() == [
        "Warning: 1 virtual machine will hold the drain up: machines/stuck (no disk)",
        "Warning: 1 virtual machine will be shut down and not started again: machines/manual (runStrategy Manual)",
        "Warning: 1 virtual machine will be shut down and started on another node: machines/plain",
    ]
    moved, made, *_ = started.stdout.splitlines()
    assert moved == "1 virtual machine will move to another node without a break: machines/live"
    assert made == f"nodemaintenance.nodemaintenance.medik8s.io/{node} {'would be created' if dry else 'created'}"
    left = admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"]
    assert len(left) == (0 if dry else 1)
    for item in left:
        admin.delete(f"{MEDIK8S.path}/{node}", uid=item["metadata"]["uid"])


@proves("DRN-10")
def test_start_says_before_that_kubevirt_does_not_see_the_drain(admin: Cluster, run: Run, node: str) -> None:
    """Check that `start` warns if KubeVirt does not react to the drain taint of the chosen API group.

    KubeVirt evacuates VMs at one configured taint, which is by default that of the `kubevirt` group.
    """
    where = f"/apis/{API_VERSION}/namespaces/{virtual_machines.SPACE}/kubevirts"
    body = {"apiVersion": API_VERSION, "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    made = admin.create(where, body)
    unseen, seen = (run("start", node, "--dry-run", "--group", group) for group in ("medik8s", "kubevirt"))
    admin.delete(f"{where}/kubevirt", uid=made["metadata"]["uid"])

    assert "Warning: KubeVirt moves virtual machines at the taint kubevirt.io/drain, and" in unseen.stderr
    assert "without a break" not in unseen.stdout
    assert "at the taint" not in seen.stderr
    assert "1 virtual machine will move to another node without a break" in seen.stdout


@pytest.mark.slow
def test_watching_reads_machines_anew_with_each_change(
    admin: Cluster, plugin: dict[str, str], run: Run, node: str
) -> None:
    """Check that `status --watch` reads the VMIs again at each change of the maintenance.

    The maintenance's status changes whenever a VM waits for something else.
    """
    words = ["kubectl", "maintenance", "status", node, "--watch", "-o", "json"]
    path = instance_path(virtual_machines.SPACE, "stuck")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=plugin) as process:
        assert process.stdout
        assert drains(process.stdout.readline())["stuck"] == "blocks"
        admin.patch(path, {"status": {"conditions": [ABLE]}})
        run("start", node)
        assert any(drains(line)["stuck"] == "moves" for line in process.stdout)
        process.send_signal(signal.SIGINT)
    run("stop", node, "--no-wait")


def drains(line: str) -> dict[str, str]:
    """Return the drain effect of each VM, from one line of the watch's output."""
    return {each["name"]: each["drain"] for each in json.loads(line)["virtualMachines"]}


def test_a_dry_run_as_json_has_the_machines(admin: Cluster, run: Run, node: str) -> None:
    made = json.loads(run("start", node, "--dry-run", "-o", "json").stdout)
    assert made["spec"] == {"nodeName": node}
    assert [each["name"] for each in made["virtualMachines"]] == ["live", "manual", "plain", "stuck"]


@proves("OSV-3", "DRN-5")
def test_launchers_that_are_selected_alone_are_told_of_by_their_machines(admin: Cluster, run: Run, node: str) -> None:
    """Check that selecting only virt-launcher pods lists their VMs, without a warning about an empty selection."""
    result = run("start", node, "--dry-run", "--pod-selector=kubevirt.io=virt-launcher")

    assert "1 virtual machine will move to another node without a break: machines/live" in result.stdout
    assert "virt-launcher" not in result.stdout
    assert "selected by" not in result.stderr


@proves("OSV-3", "DRN-5")
def test_machines_whose_launchers_stay_are_not_said_to_move_or_end(admin: Cluster, run: Run, node: str) -> None:
    result = run("start", node, "--dry-run", "--pod-selector=app=web")

    names = ("live", "manual", "plain", "stuck")
    lines = [f"would leave pod machines/virt-launcher-{name}: not selected" for name in names]
    assert result.stdout.splitlines()[:-1] == lines
    assert "virtual machine" not in result.stderr
    assert f"no pod that would leave {node} is selected by app=web" in result.stderr


def test_a_dry_run_has_nothing_to_wait_for(run: Run, node: str) -> None:
    refused = run("start", node, "--dry-run", "--wait")
    assert refused.exit_code == 2
    assert "--dry-run changes nothing that --wait could wait for: leave one of them out" in refused.stderr
