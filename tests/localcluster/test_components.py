"""`COMPONENTS` and `SIMULATORS` of `make up`: installed components, simulated projects, and option checks."""

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
from localcluster.up import state_directory
from localcluster.up.cluster_spec import ClusterSpec, parse_spec
from tests.fake_kubevirt_base import BOOT_ANNOTATION, get_phase
from tests.fakes import get_next_state
from tests.localcluster.commands import ROOT, list_living_groups, run_command, run_kubectl, wait_until
from tests.manifests.rendering import filter_by_kind, get_pod_specs, render
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
"""Overlay → namespace and name of the process that serves all functions."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--components", "maintenance,pigeons,doves"),
            "COMPONENTS=maintenance,pigeons,doves: unsupported values doves, pigeons: "
            "use any of maintenance, admission, certificates, mutex, virtualization, cpu-labels",
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
            "COMPONENTS=maintenance,admission,certificates lacks: add it to COMPONENTS",
        ),
        (
            ("--simulators", "kubevirt", "--components", "maintenance,mutex"),
            "SIMULATORS=kubevirt requires the component virtualization, "
            "which COMPONENTS=maintenance,mutex lacks: add it to COMPONENTS",
        ),
    ],
    ids=["unknown", "alone", "none", "half", "no component to simulate", "no component for KubeVirt"],
)
def test_invalid_combination_is_rejected(state_dir: Path, options: tuple[str, ...], message: str) -> None:
    """Check that invalid combinations are rejected with one line that names the remedy, before anything starts."""
    result = run_command(state_dir, "up", *options)

    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr == f"error: {message}\n"
    assert not state_dir.exists()


def test_components_are_parsed_in_any_order() -> None:
    """Check that components can be given in any order, with spaces and duplicates; the defaults match make's."""
    assert selection.parse_components("mutex, maintenance,mutex") == ("maintenance", "mutex")
    assert selection.parse_components("maintenance,admission,certificates") == selection.DEFAULT_COMPONENTS
    assert f"COMPONENTS ?= {','.join(selection.DEFAULT_COMPONENTS)}\n" in (ROOT / "Makefile").read_text()


def test_spec_survives_the_command_line() -> None:
    """Check that a cluster's spec survives the supervisor's command line unchanged."""
    spec = ClusterSpec(5, 1, "knative", ("maintenance", "mutex"), fakes="on")

    assert (
        parse_spec(spec.to_json()).format_title()
        == spec.format_title()
        == "NODES=5 CONTROL_PLANES=1 DELIVERY=knative COMPONENTS=maintenance,mutex SIMULATORS=on"
    )
    assert ClusterSpec().format_title() == "NODES=3 DELIVERY=local"


def test_functions_are_served_only_with_their_component() -> None:
    """Check that a component's functions are served only with it, and that `record` is always served."""
    assert set(list_functions(selection.ALL_COMPONENTS)) - set(DEFAULT_FUNCTIONS) == OPT_IN_STEPS
    assert "renew-certificates" not in list_functions(("maintenance",))
    assert "record" in list_functions(("maintenance",))


def test_shipped_overlay_is_used_for_its_components(tmp_path: Path) -> None:
    """Check that a shipped overlay with the selected components is used unchanged, and that nothing is written."""
    assert (
        overlay.ensure_overlay(OVERLAYS_DIR / "plain", selection.DEFAULT_COMPONENTS, tmp_path / "made")
        == OVERLAYS_DIR / "plain"
    )
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("shipped", ["plain", "rabbitmq", "knative", "compact"])
def test_overlay_with_other_components_is_written(tmp_path: Path, shipped: str) -> None:
    """Check that an overlay with other components has the Triggers of the selected components only.

    The Triggers refer to existing Services.
    """
    objects = render(overlay.ensure_overlay(OVERLAYS_DIR / shipped, ("maintenance", "mutex"), tmp_path))

    triggers = {
        item["metadata"]["name"]: item["spec"]["subscriber"]["ref"] for item in filter_by_kind(objects, "Trigger")
    }
    kind = "v1" if shipped == "plain" else "serving.knative.dev/v1"
    assert {ref["apiVersion"] for ref in triggers.values()} == {kind}
    services = {item["metadata"]["name"] for item in filter_by_kind(objects, "Service") if item["apiVersion"] == kind}
    assert {ref["name"] for ref in triggers.values()} == services
    assert any(name.startswith("run-job-on-") for name in triggers)
    assert not any(name.startswith("renew-certificates-on-") for name in triggers)
    assert filter_by_kind(objects, "ValidatingWebhookConfiguration") == []


@pytest.mark.parametrize("shipped", ["plain", "rabbitmq", "knative"])
def test_label_cpu_has_separate_process_and_account(tmp_path: Path, shipped: str) -> None:
    """Check that `label-cpu` gets a separate process and ServiceAccount, as every function does in these overlays."""
    objects = render(
        overlay.ensure_overlay(OVERLAYS_DIR / shipped, (*selection.DEFAULT_COMPONENTS, selection.CPU_LABELS), tmp_path)
    )

    calling = [
        item["spec"]
        for item in filter_by_kind(objects, "Trigger")
        if item["metadata"]["name"].startswith("label-cpu-on-")
    ]
    assert {(spec["subscriber"]["ref"]["name"], "deadLetterSink" in spec["delivery"]) for spec in calling} == {
        ("label-cpu", False)
    }
    assert get_pod_specs(objects)["label-cpu"]["spec"]["serviceAccountName"] == "label-cpu"


@pytest.mark.parametrize("shipped", ["compact", "hyperconverged"])
def test_shared_process_serves_optional_components(tmp_path: Path, shipped: str) -> None:
    """Check that a process for all functions also serves optional components.

    Their Triggers and dead letter sinks refer to existing Services in its namespace.
    """
    objects = render(overlay.ensure_overlay(OVERLAYS_DIR / shipped, selection.ALL_COMPONENTS, tmp_path))

    triggers = {item["metadata"]["name"]: item["spec"] for item in filter_by_kind(objects, "Trigger")}
    services = {get_identity(item["metadata"]) for item in filter_by_kind(objects, "Service")}
    dead = [spec["delivery"]["deadLetterSink"] for spec in triggers.values() if "deadLetterSink" in spec["delivery"]]
    called = [spec["subscriber"] for spec in triggers.values()]
    assert {get_identity(sink["ref"]) for sink in (*called, *dead)} <= services
    assert {f"{name}-on-tick" for name in ("label-cpu", "migrate", "protect", "resync-runs")} <= triggers.keys()
    assert {get_identity(triggers[f"{name}-on-tick"]["subscriber"]["ref"]) for name in ("migrate", "label-cpu")} == {
        SHARED_PROCESSES[shipped]
    }


def test_hyperconverged_overlay_has_virtualization_and_cpu_labels() -> None:
    """Check that the overlay `hyperconverged` contains `virtualization` and `cpu-labels` by default.

    They use its namespace and the rights of its account.
    """
    objects = render(OVERLAYS_DIR / "hyperconverged")
    objects_by_name = {(item["kind"], item["metadata"]["name"]): item for item in objects}
    home = "kubevirt-hyperconverged"

    assert {item["metadata"]["namespace"] for item in filter_by_kind(objects, "Trigger", "ApiServerSource")} == {home}
    assert list(get_pod_specs(objects)) == ["node-maintenance-operator", "podsource"]
    for function in ("label-cpu", "migrate", "protect"):
        subjects = objects_by_name["ClusterRoleBinding", f"nodemaintenance-{function}:{home}"]["subjects"]
        assert {(subject["name"], subject["namespace"]) for subject in subjects} == {
            (function, home),
            ("functions", home),
        }


def get_identity(reference: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of an object's metadata or of a reference."""
    return reference["namespace"], reference["name"]


@pytest.mark.parametrize("shipped", ["plain", "knative"])
def test_functions_with_several_reply_events_are_bound_to_the_broker(tmp_path: Path, shipped: str) -> None:
    """Check that functions with several response events are bound to the Broker; a reply contains only one event.

    `resync-runs` can emit events for many runs, `protect` for many nodes.
    """
    objects = render(overlay.ensure_overlay(OVERLAYS_DIR / shipped, selection.ALL_COMPONENTS, tmp_path))

    binding_label = ("nodemaintenance.dev/binds", "broker")
    workloads = [item for item in filter_by_kind(objects, "Deployment", "Service") if "template" in item["spec"]]
    bound_names = {
        item["metadata"]["name"] for item in workloads if binding_label in item["metadata"]["labels"].items()
    }
    assert bound_names == {"guard", "resync", "resync-runs", "protect"}


@pytest.mark.parametrize(
    ("wanted", "history", "expected"),
    [
        ("", None, ("4.15.9", "Completed")),
        ("", [("4.15.9", "Completed")], None),
        (NEW_VERSION, [("4.15.9", "Completed")], (NEW_VERSION, "Partial")),
        (NEW_VERSION, [(NEW_VERSION, "Partial")], (NEW_VERSION, "Completed")),
        (NEW_VERSION, [(NEW_VERSION, "Completed")], None),
        ("", [(NEW_VERSION, "Partial")], (NEW_VERSION, "Completed")),
    ],
)
def test_fake_cvo_follows_the_desired_version(
    wanted: str, history: list[tuple[str, str]] | None, expected: tuple[str, str] | None
) -> None:
    """Check that fake-cvo's next state depends only on the ClusterVersion, so that it may be killed at any time."""
    spec = {"desiredUpdate": {"version": wanted}} if wanted else {}
    entries = [{"version": version, "state": state} for version, state in history or []]

    assert get_next_state({"spec": spec, "status": {"history": entries}}) == expected


def test_an_upgrade_can_be_tried_with_kubectl(state_dir: Path) -> None:
    """Check that an upgrade with real CRDs, both fakes and the unchanged samples upgrades every worker.

    `down` also stops the fakes.
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
    assert wait_until(lambda: list_living_groups(groups) == [])


@pytest.mark.parametrize(("fakes", "expected_processes"), [("on", {"fake-virt"}), ("kubevirt", KUBEVIRT_PROCESSES)])
def test_drains_of_virtual_machines_can_be_tried_with_kubectl(
    state_dir: Path, fakes: str, expected_processes: set[str]
) -> None:
    """Check that the sample VMs move without a reboot, or reboot on the other node, in a drain.

    `fake-virt` runs them, or KubeVirt's own control plane with `fake-virt-handler`.
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
    before = list_running_vmis(state_dir)
    home = before["live"][0]

    drain_node(state_dir, home)
    (other,) = {"node-1", "node-2"} - {home}
    assert wait_until(lambda: list_vmi_nodes(state_dir) == [other, other], 60)
    run_kubectl(state_dir, "delete", f"{MAINTENANCES_RESOURCE}/{home}")
    drain_node(state_dir, other)
    assert wait_until(lambda: list_vmi_nodes(state_dir) == [home, home], 60)

    assert list_running_vmis(state_dir)["live"] == before["live"]
    assert list_running_vmis(state_dir)["plain"][1] != before["plain"][1]
    assert list_migration_creators(state_dir) == {fakes == "kubevirt"}
    groups = state_directory.list_process_groups(state_dir)
    assert run_command(state_dir, "down").stdout == "down\n"
    assert wait_until(lambda: list_living_groups(groups) == [])


def drain_node(directory: Path, node: str) -> None:
    """Create a maintenance of a node and wait until it succeeds."""
    kind = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    body = {**kind, "metadata": {"name": node}, "spec": {"nodeName": node}}
    (directory / "maintenance.json").write_text(json.dumps(body))
    run_kubectl(directory, "create", "-f", str(directory / "maintenance.json"))
    wait_options = ("--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    run_kubectl(directory, "wait", f"{MAINTENANCES_RESOURCE}/{node}", *wait_options)


def list_migration_creators(directory: Path) -> set[bool]:
    """Return whether KubeVirt created the existing migrations and budgets of virt-launcher pods."""
    output_options = ("-o", "jsonpath={.items[*].metadata.name}")
    kinds = ("virtualmachineinstancemigrations", "poddisruptionbudgets")
    names = [name for kind in kinds for name in run_kubectl(directory, "get", kind, *output_options).split()]
    return {name.startswith("kubevirt-") for name in names}


def list_running_vmis(directory: Path) -> dict[str, tuple[str, str]]:
    """Return each running VMI → its node and the time of its guest's boot."""
    vmis: list[dict[str, Any]] = json.loads(run_kubectl(directory, "get", "vmi", "-o", "json"))["items"]
    return {
        item["metadata"]["name"]: (item["status"]["nodeName"], item["metadata"]["annotations"][BOOT_ANNOTATION])
        for item in vmis
        if get_phase(item) == "Running"
    }


def list_vmi_nodes(directory: Path) -> list[str]:
    """Return the nodes of the running VMIs."""
    return [node for node, _ in list_running_vmis(directory).values()]


def run_upgrade(directory: Path) -> None:
    """Apply the samples, set another desired version, and wait until the run is finished."""
    for name in ("rule", "target", "runconfig"):
        run_kubectl(
            directory, "apply", "-n", DEFAULT_NAMESPACE, "-f", str(SAMPLES_DIR / f"mutex_v1alpha1_mutex{name}.yaml")
        )
    run_kubectl(directory, "apply", "-f", str(SAMPLES_DIR / "mutex_canary.yaml"))
    patch = json.dumps({"spec": {"desiredUpdate": {"version": NEW_VERSION}}})
    run_kubectl(directory, "patch", "clusterversion", "version", "--type=merge", "-p", patch)
    finished = ("--for=jsonpath={.status.step}=Finished", "--timeout=90s")
    run_kubectl(directory, "wait", "mutexrunconfig/example", "-n", DEFAULT_NAMESPACE, *finished)


def read_worker_versions(directory: Path) -> dict[str, str]:
    """Return each worker → the version in its label."""
    nodes: list[dict[str, Any]] = json.loads(run_kubectl(directory, "get", "nodes", "-l", WORKER_LABEL, "-o", "json"))[
        "items"
    ]
    return {node["metadata"]["name"]: node["metadata"]["labels"][VERSION_LABEL] for node in nodes}
