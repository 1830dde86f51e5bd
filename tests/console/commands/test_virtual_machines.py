"""Tests for what `status` and `start` print about virtual machines, on a real API server with KubeVirt's CRDs."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator

import pytest

from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from kube.virtualization.vmis import API_VERSION, build_vmi_path
from localcluster import access
from localcluster.cluster import LocalCluster
from tests.console.commands import virtual_machines
from tests.console.conftest import CreateNode, RunCommand
from tests.kubevirt import MIGRATABLE
from tests.proofs import proves

NODE_READER = access.make_username("begin")
"""ServiceAccount that may get nodes and list maintenances, but may not read KubeVirt's objects."""


@pytest.fixture(scope="module")
def kubevirt_cluster(served_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster with KubeVirt's CRDs."""
    with virtual_machines.install_kubevirt_crds(served_cluster):
        yield served_cluster


@pytest.fixture
def client_with_vms(kubevirt_cluster: LocalCluster, node_name: str) -> Iterator[SyncClient]:
    """Create four different virtual machines on the node, and yield the API client."""
    client = kubevirt_cluster.get_client()
    virtual_machines.create_vms(client, node_name)
    yield client
    virtual_machines.delete_vms(client)


@proves("X-3")
def test_status_without_kubevirt_crds_omits_vms(run_command: RunCommand, node_name: str) -> None:
    """Check that `status` prints nothing about virtual machines if KubeVirt's CRDs are not installed.

    This test must run first, before another test installs the CRDs. Its user may not read VMIs, so the test also shows
    that the command does not request VMIs.
    """
    report = json.loads(run_command("status", node_name, "-o", "json", user=NODE_READER).stdout)
    assert report["virtualMachines"] == []
    assert "VIRTUAL MACHINE" not in run_command("status", node_name).stdout


@proves("OSV-2", "OSV-3")
def test_status_lists_vms_of_node(client_with_vms: SyncClient, run_command: RunCommand, node_name: str) -> None:
    """Check that `status` lists each VM's strategies, migratability, drain effect and migration."""
    result = run_command("status", node_name)
    assert result.exit_code == 0, result.output
    assert result.stdout.split("VIRTUAL MACHINES\n")[1].partition("\n\n")[0].splitlines() == [
        "  machines/live  Running  moves: to another node, without interruption",
        "    eviction LiveMigrate, run strategy Always, migratable",
        f"    migration Running to node-3: {virtual_machines.MIGRATION_NAME}",
        "  machines/manual  Running  stops: shut down, and not started again",
        "    eviction –, run strategy Manual, migratable",
        "  machines/plain  Running  restarts: shut down, and started on another node",
        "    eviction –, run strategy RerunOnFailure, migratable",
        "  machines/stuck  Running  blocks: until it can be migrated, or is shut down",
        "    eviction LiveMigrate, run strategy Always, not migratable: no disk",
    ]
    vms = json.loads(run_command("status", node_name, "-o", "json").stdout)["virtualMachines"]
    assert {vm["name"]: vm["drain"] for vm in vms} == {
        **{"live": "moves", "manual": "stops"},
        **{"plain": "restarts", "stuck": "blocks"},
    }


@proves("OSV-2")
def test_status_of_node_omits_vmi_that_migrates_to_it(
    client_with_vms: SyncClient, run_command: RunCommand, create_node: CreateNode
) -> None:
    """Check that `status` omits a VMI that is migrating to the node, where its target virt-launcher pod runs."""
    target_node = create_node()
    virtual_machines.create_launcher_pod(
        client_with_vms,
        target_node,
        client_with_vms.get(build_vmi_path(virtual_machines.VM_NAMESPACE, "live")),
        "virt-launcher-live-target",
    )
    assert json.loads(run_command("status", target_node, "-o", "json").stdout)["virtualMachines"] == []


@proves("OSV-14")
def test_status_without_permission_to_read_vmis_shows_error_instead(
    client_with_vms: SyncClient, run_command: RunCommand, node_name: str
) -> None:
    """Check that `status` shows the API server's error instead of the VMs if the user may not read VMIs."""
    report = json.loads(run_command("status", node_name, "-o", "json", user=NODE_READER).stdout)
    assert report["state"] == "schedulable"
    assert "virtualMachines" not in report
    assert report["virtualMachinesUnknown"].startswith(f'cannot read the virtual machines of node "{node_name}": ')
    assert (
        f'cannot read the virtual machines of node "{node_name}"'
        in run_command("status", node_name, user=NODE_READER).stdout
    )


@proves("OSV-3")
@pytest.mark.parametrize("is_dry_run", [True, False])
def test_start_prints_drain_effect_on_vms(
    client_with_vms: SyncClient, run_command: RunCommand, node_name: str, is_dry_run: bool
) -> None:
    """Check that `start` prints what the drain will do with each VM, before it creates the maintenance.

    With `--dry-run`, `start` prints the same lines and creates nothing.
    """
    start_result = run_command("start", node_name, *(["--dry-run"] if is_dry_run else []))
    assert start_result.exit_code == 0, start_result.output
    assert [line for line in start_result.stderr.splitlines() if "virtual machine" in line] == [
        "Warning: 1 virtual machine will block the drain: machines/stuck (no disk)",
        "Warning: 1 virtual machine will be shut down and not started again: machines/manual (runStrategy Manual)",
        "Warning: 1 virtual machine will be shut down and started on another node: machines/plain",
    ]
    lines = start_result.stdout.splitlines()
    moves, name = (
        "1 virtual machine will move to another node without interruption: machines/live",
        f"nodemaintenance.nodemaintenance.medik8s.io/{node_name}",
    )
    assert lines[:2] == [moves, f"{name} {'would be created' if is_dry_run else 'created'}"]
    maintenances = client_with_vms.list(MEDIK8S.path, field_selector=f"spec.nodeName={node_name}")["items"]
    assert len(maintenances) == (0 if is_dry_run else 1)
    for maintenance in maintenances:
        client_with_vms.delete(f"{MEDIK8S.path}/{node_name}", uid=maintenance["metadata"]["uid"])


@proves("DRN-10")
def test_start_warns_if_kubevirt_ignores_drain_taint(
    client_with_vms: SyncClient, run_command: RunCommand, node_name: str
) -> None:
    """Check that `start` warns if KubeVirt does not react to the drain taint of the chosen API group.

    KubeVirt evacuates VMs if a node has its configured taint, by default that of the `kubevirt` API group.
    """
    path = f"/apis/{API_VERSION}/namespaces/{virtual_machines.VM_NAMESPACE}/kubevirts"
    body = {"apiVersion": API_VERSION, "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    created = client_with_vms.create(path, body)
    medik8s_result, kubevirt_result = (
        run_command("start", node_name, "--dry-run", "--group", group) for group in ("medik8s", "kubevirt")
    )
    client_with_vms.delete(f"{path}/kubevirt", uid=created["metadata"]["uid"])

    assert (
        "Warning: KubeVirt migrates virtual machines from nodes with the taint kubevirt.io/drain, but"
        in medik8s_result.stderr
    )
    assert "without interruption" not in medik8s_result.stdout
    assert "with the taint" not in kubevirt_result.stderr
    assert "1 virtual machine will move to another node without interruption" in kubevirt_result.stdout


@pytest.mark.slow
def test_status_watch_rereads_vmis_on_each_change_of_maintenance(
    client_with_vms: SyncClient, plugin_environment: dict[str, str], run_command: RunCommand, node_name: str
) -> None:
    """Check that `status --watch` reads the VMIs again on each change of the maintenance.

    The maintenance's status contains the reason why a VM blocks the drain, and is updated when this reason changes.
    """
    command = ["kubectl", "maintenance", "status", node_name, "--watch", "-o", "json"]
    path = build_vmi_path(virtual_machines.VM_NAMESPACE, "stuck")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=plugin_environment) as process:
        assert process.stdout
        assert get_drain_effects(process.stdout.readline())["stuck"] == "blocks"
        client_with_vms.patch(path, {"status": {"conditions": [MIGRATABLE]}})
        run_command("start", node_name)
        assert any(get_drain_effects(line)["stuck"] == "moves" for line in process.stdout)
        process.send_signal(signal.SIGINT)
    run_command("stop", node_name, "--no-wait")


def get_drain_effects(line: str) -> dict[str, str]:
    """Return a map from VM name to the drain's effect on the VM, from a JSON line of output."""
    return {vm["name"]: vm["drain"] for vm in json.loads(line)["virtualMachines"]}


def test_json_output_of_dry_run_lists_vms(client_with_vms: SyncClient, run_command: RunCommand, node_name: str) -> None:
    report = json.loads(run_command("start", node_name, "--dry-run", "-o", "json").stdout)
    assert report["spec"] == {"nodeName": node_name}
    assert [vm["name"] for vm in report["virtualMachines"]] == ["live", "manual", "plain", "stuck"]


@proves("OSV-3", "DRN-5")
def test_dry_run_lists_selected_virt_launcher_pods_as_vms(
    client_with_vms: SyncClient, run_command: RunCommand, node_name: str
) -> None:
    """Check that a dry run with a selector for virt-launcher pods lists VMs, and does not warn that no pod matches."""
    result = run_command("start", node_name, "--dry-run", "--pod-selector=kubevirt.io=virt-launcher")

    assert "1 virtual machine will move to another node without interruption: machines/live" in result.stdout
    assert "virt-launcher" not in result.stdout
    assert "selected by" not in result.stderr


@proves("OSV-3", "DRN-5")
def test_dry_run_omits_vms_of_unselected_virt_launcher_pods(
    client_with_vms: SyncClient, run_command: RunCommand, node_name: str
) -> None:
    result = run_command("start", node_name, "--dry-run", "--pod-selector=app=web")

    names = ("live", "manual", "plain", "stuck")
    lines = [f"would ignore pod machines/virt-launcher-{name}: not selected" for name in names]
    assert result.stdout.splitlines()[:4] == lines
    assert "virtual machine" not in result.stderr
    assert f'pod selector app=web matches no pod that would leave node "{node_name}"' in result.stderr


def test_dry_run_with_wait_is_usage_error(run_command: RunCommand, node_name: str) -> None:
    result = run_command("start", node_name, "--dry-run", "--wait")
    assert result.exit_code == 2
    assert "--dry-run starts no drain that --wait could wait for: omit one of them" in result.stderr
