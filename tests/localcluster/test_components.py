"""Tests for the variables `COMPONENTS` and `SIMULATORS` of `make up`: installed components and option checks."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import DEFAULT_NAMESPACE
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from localcluster.components import overlay, selection
from localcluster.components.fakes import FAKE_NAMES
from localcluster.functions import DEFAULT_FUNCTIONS, list_functions
from localcluster.programs import build
from localcluster.simulators.__main__ import get_next_version_and_state
from localcluster.simulators.kubevirt import BOOT_ANNOTATION, get_phase
from localcluster.up import state_directory
from localcluster.up.state_directory import ClusterSpec, parse_spec
from tests.localcluster.commands import ROOT, list_running_process_groups, run_command, run_kubectl, wait_until
from tests.manifests.rendering import filter_by_kind, get_pod_templates, render
from tests.sources import OPT_IN_STEPS

pytestmark = pytest.mark.slow

KUBEVIRT_PROCESSES = {"virt-controller", "virt-api", "fake-virt-handler"}
MAINTENANCES_RESOURCE = "nodemaintenances.nodemaintenance.medik8s.io"
SAMPLES_DIR = ROOT / "config" / "samples"
OVERLAYS_DIR = ROOT / "manifests" / "overlays"
NEW_VERSION = "4.16.4"
SHARED_PROCESSES = {
    "compact": ("node-maintenance", "functions"),
    "hyperconverged": ("kubevirt-hyperconverged", "node-maintenance-operator"),
}
"""Map from overlay to namespace and name of the Service that serves all functions."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--components", "maintenance,pigeons,doves"),
            "COMPONENTS=maintenance,pigeons,doves: unsupported values doves, pigeons: "
            "use any of maintenance, admission, certificates, mutex, virtualization, cpu-labels, "
            "node-conditions, notifications",
        ),
        (("--components", "mutex"), "COMPONENTS=mutex: component maintenance is required: add it"),
        (("--components", ""), "COMPONENTS=: component maintenance is required: add it"),
        (
            ("--components", "maintenance,admission"),
            "COMPONENTS=maintenance,admission: component admission requires certificates, which issues its serving "
            "certificate: add certificates, or remove admission",
        ),
        (
            ("--simulators", "on"),
            "SIMULATORS=on requires the component mutex or virtualization, which "
            "COMPONENTS=maintenance,admission,certificates does not contain: add it to COMPONENTS",
        ),
        (
            ("--simulators", "kubevirt", "--components", "maintenance,mutex"),
            "SIMULATORS=kubevirt requires the component virtualization, "
            "which COMPONENTS=maintenance,mutex does not contain: add it to COMPONENTS",
        ),
    ],
    ids=["unknown", "alone", "none", "half", "no component to simulate", "no component for KubeVirt"],
)
def test_invalid_combination_of_options_is_rejected(state_dir: Path, options: tuple[str, ...], message: str) -> None:
    """Check that an invalid combination of options is rejected with one line before anything is started."""
    result = run_command(state_dir, "up", *options)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {message}\n"
    assert not state_dir.exists()


def test_components_may_be_given_in_any_order() -> None:
    """Check that components may be in any order, with spaces and duplicates; the default is the Makefile's."""
    assert selection.parse_components("mutex, maintenance,mutex") == ("maintenance", "mutex")
    assert selection.parse_components("maintenance,admission,certificates") == selection.DEFAULT_COMPONENTS
    assert f"COMPONENTS ?= {','.join(selection.DEFAULT_COMPONENTS)}\n" in (ROOT / "Makefile").read_text()


def test_cluster_spec_can_be_passed_on_command_line() -> None:
    """Check that a cluster spec is unchanged by its serialization for the supervisor's command line."""
    spec = ClusterSpec(5, 1, "knative", ("maintenance", "mutex"), fakes="on")

    assert (
        parse_spec(spec.to_json()).format_title()
        == spec.format_title()
        == "NODES=5 CONTROL_PLANES=1 DELIVERY=knative COMPONENTS=maintenance,mutex SIMULATORS=on"
    )
    assert ClusterSpec().format_title() == "NODES=3 DELIVERY=local"


def test_functions_of_unselected_components_are_not_served() -> None:
    """Check that only the functions of selected components are served, and that `record` is always served."""
    assert set(list_functions(selection.ALL_COMPONENTS)) - set(DEFAULT_FUNCTIONS) == OPT_IN_STEPS
    assert "renew-certificates" not in list_functions(("maintenance",))
    assert "record" in list_functions(("maintenance",))


def test_shipped_overlay_with_exactly_the_selected_components_is_used(tmp_path: Path) -> None:
    """Check that a shipped overlay with exactly the selected components is used, and that none is generated."""
    assert (
        overlay.ensure_overlay(OVERLAYS_DIR / "plain", selection.DEFAULT_COMPONENTS, tmp_path / "made")
        == OVERLAYS_DIR / "plain"
    )
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("overlay_name", ["plain", "rabbitmq", "knative", "compact"])
def test_overlay_is_generated_for_other_set_of_components(tmp_path: Path, overlay_name: str) -> None:
    """Check that a generated overlay for other components contains exactly their Triggers.

    The Triggers' subscribers are existing Services.
    """
    objects = render(overlay.ensure_overlay(OVERLAYS_DIR / overlay_name, ("maintenance", "mutex"), tmp_path))

    triggers = {
        trigger["metadata"]["name"]: trigger["spec"]["subscriber"]["ref"]
        for trigger in filter_by_kind(objects, "Trigger")
    }
    services = {(service["apiVersion"], service["metadata"]["name"]) for service in filter_by_kind(objects, "Service")}
    assert {(ref["apiVersion"], ref["name"]) for ref in triggers.values()} == services
    assert any(name.startswith("run-job-on-") for name in triggers)
    assert not any(name.startswith("renew-certificates-on-") for name in triggers)
    assert filter_by_kind(objects, "ValidatingWebhookConfiguration") == []


@pytest.mark.parametrize("overlay_name", ["plain", "rabbitmq", "knative"])
@pytest.mark.parametrize(
    ("component", "function"),
    [
        (selection.CPU_LABELS, "label-cpu"),
        (selection.NODE_CONDITIONS, "publish-conditions"),
        (selection.NOTIFICATIONS, "notify-owners"),
    ],
)
def test_function_of_opt_in_component_has_own_process_and_account(
    tmp_path: Path, overlay_name: str, component: str, function: str
) -> None:
    """Check that each function of an opt-in component has its own process and ServiceAccount in these overlays."""
    objects = render(
        overlay.ensure_overlay(OVERLAYS_DIR / overlay_name, (*selection.DEFAULT_COMPONENTS, component), tmp_path)
    )

    trigger_specs = [
        trigger["spec"]
        for trigger in filter_by_kind(objects, "Trigger")
        if trigger["metadata"]["name"].startswith(f"{function}-on-")
    ]
    assert {(spec["subscriber"]["ref"]["name"], "deadLetterSink" in spec["delivery"]) for spec in trigger_specs} == {
        (function, False)
    }
    assert get_pod_templates(objects)[function]["spec"]["serviceAccountName"] == function


@pytest.mark.parametrize("overlay_name", ["compact", "hyperconverged"])
def test_shared_process_serves_optional_components(tmp_path: Path, overlay_name: str) -> None:
    """Check that a process that serves all functions also serves the functions of optional components.

    The Triggers and their dead letter sinks refer to existing Services in this process's namespace.
    """
    objects = render(overlay.ensure_overlay(OVERLAYS_DIR / overlay_name, selection.ALL_COMPONENTS, tmp_path))

    triggers = {trigger["metadata"]["name"]: trigger["spec"] for trigger in filter_by_kind(objects, "Trigger")}
    services = {get_identity(service["metadata"]) for service in filter_by_kind(objects, "Service")}
    dead_letter_sinks = [
        spec["delivery"]["deadLetterSink"] for spec in triggers.values() if "deadLetterSink" in spec["delivery"]
    ]
    subscribers = [spec["subscriber"] for spec in triggers.values()]
    assert {get_identity(sink["ref"]) for sink in (*subscribers, *dead_letter_sinks)} <= services
    assert {
        f"{name}-on-tick"
        for name in ("label-cpu", "migrate", "protect", "publish-conditions", "notify-owners", "resync-runs")
    } <= triggers.keys()
    assert {get_identity(triggers[f"{name}-on-tick"]["subscriber"]["ref"]) for name in ("migrate", "label-cpu")} == {
        SHARED_PROCESSES[overlay_name]
    }


def test_hyperconverged_overlay_contains_virtualization_and_cpu_labels() -> None:
    """Check that the overlay `hyperconverged` contains `virtualization` and `cpu-labels` by default.

    Both components use the overlay's namespace and the permissions of its ServiceAccount.
    """
    objects = render(OVERLAYS_DIR / "hyperconverged")
    objects_by_name = {(manifest["kind"], manifest["metadata"]["name"]): manifest for manifest in objects}
    namespace = "kubevirt-hyperconverged"

    assert {
        manifest["metadata"]["namespace"] for manifest in filter_by_kind(objects, "Trigger", "ApiServerSource")
    } == {namespace}
    assert list(get_pod_templates(objects)) == ["node-maintenance-operator", "podsource"]
    for function in ("label-cpu", "migrate", "protect"):
        subjects = objects_by_name["ClusterRoleBinding", f"nodemaintenance-{function}:{namespace}"]["subjects"]
        assert {(subject["name"], subject["namespace"]) for subject in subjects} == {
            (function, namespace),
            ("functions", namespace),
        }


def get_identity(reference: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name in a reference, or in an object's metadata."""
    return reference["namespace"], reference["name"]


@pytest.mark.parametrize("overlay_name", ["plain", "knative"])
def test_functions_that_emit_several_events_have_broker_binding(tmp_path: Path, overlay_name: str) -> None:
    """Check that functions that may emit several events have a SinkBinding to the Broker.

    A reply contains only one event, but `resync-runs` can emit events for many runs, and `protect` for many nodes.
    """
    objects = render(overlay.ensure_overlay(OVERLAYS_DIR / overlay_name, selection.ALL_COMPONENTS, tmp_path))

    binding_label = ("nodemaintenance.dev/binds", "broker")
    workloads = [
        workload for workload in filter_by_kind(objects, "Deployment", "Service") if "template" in workload["spec"]
    ]
    bound_names = {
        workload["metadata"]["name"]
        for workload in workloads
        if binding_label in workload["metadata"]["labels"].items()
    }
    assert bound_names == {"guard", "resync", "resync-runs", "protect"}


@pytest.mark.parametrize(
    ("desired_version", "history", "expected"),
    [
        ("", None, ("4.15.9", "Completed")),
        ("", [("4.15.9", "Completed")], None),
        (NEW_VERSION, [("4.15.9", "Completed")], (NEW_VERSION, "Partial")),
        (NEW_VERSION, [(NEW_VERSION, "Partial")], (NEW_VERSION, "Completed")),
        (NEW_VERSION, [(NEW_VERSION, "Completed")], None),
        ("", [(NEW_VERSION, "Partial")], (NEW_VERSION, "Completed")),
    ],
)
def test_next_state_of_fake_cvo_follows_desired_version(
    desired_version: str, history: list[tuple[str, str]] | None, expected: tuple[str, str] | None
) -> None:
    """Check that fake-cvo's next state depends only on the ClusterVersion, so that it may be killed at any time."""
    spec = {"desiredUpdate": {"version": desired_version}} if desired_version else {}
    history_entries = [{"version": version, "state": state} for version, state in history or []]

    assert get_next_version_and_state({"spec": spec, "status": {"history": history_entries}}) == expected


def test_upgrade_run_with_simulators_upgrades_every_worker(state_dir: Path) -> None:
    """Check that an upgrade run with OpenShift's CRDs, both simulators and the samples upgrades every worker.

    `make down` also stops the simulators.
    """
    options = ("--components", "maintenance,mutex", "--simulators", "on")
    up_result = run_command(state_dir, "up", "--nodes", "3", "--control-planes", "1", *options)
    assert up_result.returncode == 0, up_result.stdout + up_result.stderr
    groups, names = (
        state_directory.list_process_groups(state_dir),
        {record.name for record in state_directory.read_records(state_dir)},
    )

    assert {*FAKE_NAMES[selection.MUTEX], "functions", "delivery"} <= names
    assert "validate" not in names
    assert read_worker_versions(state_dir) == {"node-2": "4.15.9", "node-3": "4.15.9"}
    status = run_command(state_dir, "status").stdout
    assert all(name in status for name in FAKE_NAMES[selection.MUTEX])
    run_upgrade(state_dir)
    assert read_worker_versions(state_dir) == {"node-2": NEW_VERSION, "node-3": NEW_VERSION}
    second_result = run_command(state_dir, "up")
    assert second_result.returncode == 1
    assert (
        "error: another cluster is running, with NODES=3 CONTROL_PLANES=1 DELIVERY=local "
        "COMPONENTS=maintenance,mutex SIMULATORS=on:" in second_result.stderr
    )
    assert run_command(state_dir, "down").stdout == "down\n"
    assert wait_until(lambda: list_running_process_groups(groups) == [])


@pytest.mark.parametrize(("fakes", "expected_processes"), [("on", {"fake-virt"}), ("kubevirt", KUBEVIRT_PROCESSES)])
def test_drain_with_simulator_migrates_or_restarts_sample_vms(
    state_dir: Path, fakes: str, expected_processes: set[str]
) -> None:
    """Check that a drain migrates the sample VMs without a reboot, or reboots them on the other node.

    Either `fake-virt` or KubeVirt's control plane with `fake-virt-handler` runs the VMs.
    """
    build.ensure_programs(build.KUBEVIRT)
    up_result = run_command(
        state_dir, "up", "--nodes", "2", "--components", "maintenance,virtualization", "--simulators", fakes
    )
    assert up_result.returncode == 0, up_result.stdout + up_result.stderr
    assert {record.name for record in state_directory.read_records(state_dir)} & {
        "fake-virt",
        *KUBEVIRT_PROCESSES,
    } == expected_processes
    run_kubectl(state_dir, "apply", "-f", str(SAMPLES_DIR / "virtual_machines.yaml"))
    assert wait_until(lambda: list_running_vmis(state_dir).keys() == {"live", "plain"}, 60)
    initial_vmis = list_running_vmis(state_dir)
    first_node = initial_vmis["live"][0]

    drain_node(state_dir, first_node)
    (second_node,) = {"node-1", "node-2"} - {first_node}
    assert wait_until(lambda: list_vmi_nodes(state_dir) == [second_node, second_node], 60)
    run_kubectl(state_dir, "delete", f"{MAINTENANCES_RESOURCE}/{first_node}")
    drain_node(state_dir, second_node)
    assert wait_until(lambda: list_vmi_nodes(state_dir) == [first_node, first_node], 60)

    assert list_running_vmis(state_dir)["live"] == initial_vmis["live"]
    assert list_running_vmis(state_dir)["plain"][1] != initial_vmis["plain"][1]
    assert get_kubevirt_creation_flags(state_dir) == {fakes == "kubevirt"}
    groups = state_directory.list_process_groups(state_dir)
    assert run_command(state_dir, "down").stdout == "down\n"
    assert wait_until(lambda: list_running_process_groups(groups) == [])


def drain_node(directory: Path, node: str) -> None:
    """Create a NodeMaintenance for the node, and wait until it has succeeded."""
    type_fields = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    body = {**type_fields, "metadata": {"name": node}, "spec": {"nodeName": node}}
    (directory / "maintenance.json").write_text(json.dumps(body))
    run_kubectl(directory, "create", "-f", str(directory / "maintenance.json"))
    wait_options = ("--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    run_kubectl(directory, "wait", f"{MAINTENANCES_RESOURCE}/{node}", *wait_options)


def get_kubevirt_creation_flags(directory: Path) -> set[bool]:
    """Return {True} if KubeVirt created all migrations and PDBs of VMs, and {False} if it created none of them."""
    output_options = ("-o", "jsonpath={.items[*].metadata.name}")
    kinds = ("virtualmachineinstancemigrations", "poddisruptionbudgets")
    names = [name for kind in kinds for name in run_kubectl(directory, "get", kind, *output_options).split()]
    return {name.startswith("kubevirt-") for name in names}


def list_running_vmis(directory: Path) -> dict[str, tuple[str, str]]:
    """Return a map from VMI name to node and boot annotation of each running VMI."""
    vmis: list[dict[str, Any]] = json.loads(run_kubectl(directory, "get", "vmi", "-o", "json"))["items"]
    return {
        vmi["metadata"]["name"]: (vmi["status"]["nodeName"], vmi["metadata"]["annotations"][BOOT_ANNOTATION])
        for vmi in vmis
        if get_phase(vmi) == "Running"
    }


def list_vmi_nodes(directory: Path) -> list[str]:
    """Return the nodes of the running VMIs."""
    return [node for node, _ in list_running_vmis(directory).values()]


def run_upgrade(directory: Path) -> None:
    """Apply the samples, set a new desired version, and wait until the upgrade run is finished."""
    for name in ("rule", "target", "runconfig"):
        run_kubectl(
            directory, "apply", "-n", DEFAULT_NAMESPACE, "-f", str(SAMPLES_DIR / f"mutex_v1alpha1_mutex{name}.yaml")
        )
    run_kubectl(directory, "apply", "-f", str(SAMPLES_DIR / "mutex_canary.yaml"))
    patch = json.dumps({"spec": {"desiredUpdate": {"version": NEW_VERSION}}})
    run_kubectl(directory, "patch", "clusterversion", "version", "--type=merge", "-p", patch)
    wait_options = ("--for=jsonpath={.status.step}=Finished", "--timeout=90s")
    run_kubectl(directory, "wait", "mutexrunconfig/example", "-n", DEFAULT_NAMESPACE, *wait_options)


def read_worker_versions(directory: Path) -> dict[str, str]:
    """Return a map from node name to version in the label of each worker node."""
    nodes: list[dict[str, Any]] = json.loads(run_kubectl(directory, "get", "nodes", "-l", WORKER_LABEL, "-o", "json"))[
        "items"
    ]
    return {node["metadata"]["name"]: node["metadata"]["labels"][VERSION_LABEL] for node in nodes}
