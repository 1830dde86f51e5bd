"""`WINGS` and `ACTORS` of `make up`: installed components, simulated projects, and option checks before the start."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import NAMESPACE
from kube.mutex.versions import VERSION_LABEL, WORKER
from localcluster.functions import SERVED, served
from localcluster.programs import build
from localcluster.up import state_directory
from localcluster.up.cluster_spec import Wish, read
from localcluster.components import selection, overlay
from localcluster.components.fakes import PARTS
from tests.fakes import next_state
from tests.localcluster.commands import ROOT, kubectl, living, run, soon
from tests.manifests.rendering import of_kind, pod_specs, rendered
from tests.sources import OPT_IN
from tests.fake_kubevirt_base import BOOTED, phase

pytestmark = pytest.mark.slow

BESIDE_KUBEVIRT = {"virt-controller", "virt-api", "fake-virt-handler"}
MAINTENANCES = "nodemaintenances.nodemaintenance.medik8s.io"
SAMPLES = ROOT / "config" / "samples"
OVERLAYS = ROOT / "manifests" / "overlays"
NEW = "4.16.4"
ALL = {
    "compact": ("node-maintenance", "functions"),
    "hyperconverged": ("kubevirt-hyperconverged", "node-maintenance-operator"),
}
"""Overlay → namespace and name of the process that serves all functions."""


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            ("--wings", "maintenance,pigeons,doves"),
            "WINGS=maintenance,pigeons,doves: doves, pigeons is not known; "
            "allowed: maintenance, admission, certificates, mutex, virtualization, cpu-labels",
        ),
        (("--wings", "mutex"), "WINGS=mutex leaves out maintenance, on which all others stand: add it"),
        (("--wings", ""), "WINGS= leaves out maintenance, on which all others stand: add it"),
        (
            ("--wings", "maintenance,admission"),
            "WINGS=maintenance,admission: admission needs certificates, which issues and renews its certificate: "
            "add it, or leave out admission",
        ),
        (
            ("--actors", "on"),
            "ACTORS=on plays OpenShift, for mutex or KubeVirt, for virtualization, which "
            "WINGS=maintenance,admission,certificates leaves out: add it to WINGS",
        ),
        (
            ("--actors", "kubevirt", "--wings", "maintenance,mutex"),
            "ACTORS=kubevirt runs KubeVirt itself, for virtualization, "
            "which WINGS=maintenance,mutex leaves out: add it to WINGS",
        ),
    ],
    ids=["unknown", "alone", "none", "half", "nobody to play for", "nothing for KubeVirt to do"],
)
def test_what_does_not_go_together_is_refused(directory: Path, options: tuple[str, ...], message: str) -> None:
    """Check that invalid combinations are rejected with one line that names the remedy, before anything starts."""
    refused = run(directory, "up", *options)

    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == f"error: {message}\n"
    assert not directory.exists()


def test_wings_are_named_in_any_order_and_once() -> None:
    """Check that components can be given in any order, with spaces and duplicates; the defaults match make's."""
    assert selection.chosen("mutex, maintenance,mutex") == ("maintenance", "mutex")
    assert selection.chosen("maintenance,admission,certificates") == selection.DEFAULT
    assert f"WINGS ?= {','.join(selection.DEFAULT)}\n" in (ROOT / "Makefile").read_text()


def test_a_wish_reaches_the_supervisor_whole() -> None:
    """Check that a cluster's spec survives the supervisor's command line unchanged."""
    wish = Wish(5, 1, "knative", ("maintenance", "mutex"), actors="on")

    assert (
        read(wish.text()).title()
        == wish.title()
        == "NODES=5 CONTROL_PLANES=1 DELIVERY=knative WINGS=maintenance,mutex ACTORS=on"
    )
    assert Wish().title() == "NODES=3 DELIVERY=local"


def test_the_functions_of_a_wing_are_served_with_it_alone() -> None:
    """Check that a component's functions are served only with it, and that `record` is always served."""
    assert set(served(selection.KNOWN)) - set(SERVED) == OPT_IN
    assert "renew-certificates" not in served(("maintenance",))
    assert "record" in served(("maintenance",))


def test_the_shipped_overlay_is_used_where_it_is_what_is_wanted(tmp_path: Path) -> None:
    """Check that a shipped overlay with the selected components is used unchanged, and that nothing is written."""
    assert overlay.folder_of(OVERLAYS / "plain", selection.DEFAULT, tmp_path / "made") == OVERLAYS / "plain"
    assert not (tmp_path / "made").exists()


@pytest.mark.parametrize("shipped", ["plain", "rabbitmq", "knative", "compact"])
def test_an_overlay_is_made_with_other_wings(tmp_path: Path, shipped: str) -> None:
    """Check that an overlay with other components has the Triggers of the selected components only.

    The Triggers refer to existing Services.
    """
    made = rendered(overlay.folder_of(OVERLAYS / shipped, ("maintenance", "mutex"), tmp_path))

    triggers = {item["metadata"]["name"]: item["spec"]["subscriber"]["ref"] for item in of_kind(made, "Trigger")}
    kind = "v1" if shipped == "plain" else "serving.knative.dev/v1"
    assert {ref["apiVersion"] for ref in triggers.values()} == {kind}
    services = {item["metadata"]["name"] for item in of_kind(made, "Service") if item["apiVersion"] == kind}
    assert {ref["name"] for ref in triggers.values()} == services
    assert any(name.startswith("run-job-on-") for name in triggers)
    assert not any(name.startswith("renew-certificates-on-") for name in triggers)
    assert of_kind(made, "ValidatingWebhookConfiguration") == []


@pytest.mark.parametrize("shipped", ["plain", "rabbitmq", "knative"])
def test_labels_of_cpus_have_a_process_and_an_account_of_their_own(tmp_path: Path, shipped: str) -> None:
    """Check that `label-cpu` gets a separate process and ServiceAccount, as every function does in these overlays."""
    made = rendered(overlay.folder_of(OVERLAYS / shipped, (*selection.DEFAULT, selection.CPU_LABELS), tmp_path))

    calling = [
        item["spec"] for item in of_kind(made, "Trigger") if item["metadata"]["name"].startswith("label-cpu-on-")
    ]
    assert {(spec["subscriber"]["ref"]["name"], "deadLetterSink" in spec["delivery"]) for spec in calling} == {
        ("label-cpu", False)
    }
    assert pod_specs(made)["label-cpu"]["spec"]["serviceAccountName"] == "label-cpu"


@pytest.mark.parametrize("shipped", ["compact", "hyperconverged"])
def test_one_process_for_all_serves_opt_in_wings_too(tmp_path: Path, shipped: str) -> None:
    """Check that a process for all functions also serves optional components.

    Their Triggers and dead letter sinks refer to existing Services in its namespace.
    """
    made = rendered(overlay.folder_of(OVERLAYS / shipped, selection.KNOWN, tmp_path))

    triggers = {item["metadata"]["name"]: item["spec"] for item in of_kind(made, "Trigger")}
    there = {place(item["metadata"]) for item in of_kind(made, "Service")}
    dead = [spec["delivery"]["deadLetterSink"] for spec in triggers.values() if "deadLetterSink" in spec["delivery"]]
    called = [spec["subscriber"] for spec in triggers.values()]
    assert {place(sink["ref"]) for sink in (*called, *dead)} <= there
    assert {f"{name}-on-tick" for name in ("label-cpu", "migrate", "protect", "resync-runs")} <= triggers.keys()
    assert {place(triggers[f"{name}-on-tick"]["subscriber"]["ref"]) for name in ("migrate", "label-cpu")} == {
        ALL[shipped]
    }


def test_beside_hyperconverged_machines_migrate_and_cpus_are_labelled() -> None:
    """Check that the overlay `hyperconverged` contains `virtualization` and `cpu-labels` by default.

    They use its namespace and the rights of its account.
    """
    made = rendered(OVERLAYS / "hyperconverged")
    named = {(item["kind"], item["metadata"]["name"]): item for item in made}
    home = "kubevirt-hyperconverged"

    assert {item["metadata"]["namespace"] for item in of_kind(made, "Trigger", "ApiServerSource")} == {home}
    assert list(pod_specs(made)) == ["node-maintenance-operator", "podsource"]
    for function in ("label-cpu", "migrate", "protect"):
        bound = named["ClusterRoleBinding", f"nodemaintenance-{function}:{home}"]["subjects"]
        assert {(each["name"], each["namespace"]) for each in bound} == {(function, home), ("functions", home)}


def place(named: Mapping[str, Any]) -> tuple[str, str]:
    """Return namespace and name of an object's metadata or of a reference."""
    return named["namespace"], named["name"]


@pytest.mark.parametrize("shipped", ["plain", "knative"])
def test_who_emits_several_events_is_bound_to_the_broker(tmp_path: Path, shipped: str) -> None:
    """Check that functions with several response events are bound to the Broker; a reply contains only one event.

    `resync-runs` can emit events for many runs, `protect` for many nodes.
    """
    made = rendered(overlay.folder_of(OVERLAYS / shipped, selection.KNOWN, tmp_path))

    bound = ("nodemaintenance.dev/binds", "broker")
    workloads = [item for item in of_kind(made, "Deployment", "Service") if "template" in item["spec"]]
    found = {item["metadata"]["name"] for item in workloads if bound in item["metadata"]["labels"].items()}
    assert found == {"guard", "resync", "resync-runs", "protect"}


@pytest.mark.parametrize(
    ("wanted", "history", "expected"),
    [
        ("", None, ("4.15.9", "Completed")),
        ("", [("4.15.9", "Completed")], None),
        (NEW, [("4.15.9", "Completed")], (NEW, "Partial")),
        (NEW, [(NEW, "Partial")], (NEW, "Completed")),
        (NEW, [(NEW, "Completed")], None),
        ("", [(NEW, "Partial")], (NEW, "Completed")),
    ],
)
def test_the_control_plane_follows_what_is_wanted(
    wanted: str, history: list[tuple[str, str]] | None, expected: tuple[str, str] | None
) -> None:
    """Check that fake-cvo's next state depends only on the ClusterVersion, so that it may be killed at any time."""
    spec = {"desiredUpdate": {"version": wanted}} if wanted else {}
    told = [{"version": version, "state": state} for version, state in history or []]

    assert next_state({"spec": spec, "status": {"history": told}}) == expected


def test_an_upgrade_can_be_tried_with_kubectl(directory: Path) -> None:
    """Check that an upgrade with real CRDs, both fakes and the unchanged samples upgrades every worker.

    `down` also stops the fakes.
    """
    wings = ("--wings", "maintenance,mutex", "--actors", "on")
    up = run(directory, "up", "--nodes", "3", "--control-planes", "1", *wings)
    assert up.returncode == 0, up.stdout + up.stderr
    groups, names = state_directory.groups(directory), {record.name for record in state_directory.records(directory)}

    assert {*PARTS[selection.MUTEX], "functions", "delivery"} <= names
    assert "validate" not in names
    assert versions(directory) == {"node-2": "4.15.9", "node-3": "4.15.9"}
    status = run(directory, "status").stdout
    assert all(name in status for name in PARTS[selection.MUTEX])
    upgrade(directory)
    assert versions(directory) == {"node-2": NEW, "node-3": NEW}
    again = run(directory, "up")
    assert again.returncode == 1
    assert (
        "error: another cluster is up, with NODES=3 CONTROL_PLANES=1 DELIVERY=local WINGS=maintenance,mutex ACTORS=on;"
        in again.stderr
    )
    assert run(directory, "down").stdout == "down\n"
    assert soon(lambda: living(groups) == [])


@pytest.mark.parametrize(("actors", "played"), [("on", {"fake-virt"}), ("kubevirt", BESIDE_KUBEVIRT)])
def test_drains_of_virtual_machines_can_be_tried_with_kubectl(directory: Path, actors: str, played: set[str]) -> None:
    """Check that the sample VMs move without a reboot, or reboot on the other node, in a drain.

    `fake-virt` runs them, or KubeVirt's own control plane with `fake-virt-handler`.
    """
    build.servers(build.KUBEVIRT)
    up = run(directory, "up", "--nodes", "2", "--wings", "maintenance,virtualization", "--actors", actors)
    assert up.returncode == 0, up.stdout + up.stderr
    assert {record.name for record in state_directory.records(directory)} & {"fake-virt", *BESIDE_KUBEVIRT} == played
    kubectl(directory, "apply", "-f", str(SAMPLES / "virtual_machines.yaml"))
    assert soon(lambda: machines(directory).keys() == {"live", "plain"}, 60)
    before = machines(directory)
    home = before["live"][0]

    drain(directory, home)
    (other,) = {"node-1", "node-2"} - {home}
    assert soon(lambda: nodes(directory) == [other, other], 60)
    kubectl(directory, "delete", f"{MAINTENANCES}/{home}")
    drain(directory, other)
    assert soon(lambda: nodes(directory) == [home, home], 60)

    assert machines(directory)["live"] == before["live"]
    assert machines(directory)["plain"][1] != before["plain"][1]
    assert makers(directory) == {actors == "kubevirt"}
    groups = state_directory.groups(directory)
    assert run(directory, "down").stdout == "down\n"
    assert soon(lambda: living(groups) == [])


def drain(directory: Path, node: str) -> None:
    """Create a maintenance of a node and wait until it succeeds."""
    kind = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance"}
    body = {**kind, "metadata": {"name": node}, "spec": {"nodeName": node}}
    (directory / "maintenance.json").write_text(json.dumps(body))
    kubectl(directory, "create", "-f", str(directory / "maintenance.json"))
    done = ("--for=jsonpath={.status.phase}=Succeeded", "--timeout=60s")
    kubectl(directory, "wait", f"{MAINTENANCES}/{node}", *done)


def makers(directory: Path) -> set[bool]:
    """Return whether KubeVirt created the existing migrations and budgets of virt-launcher pods."""
    words = ("-o", "jsonpath={.items[*].metadata.name}")
    kinds = ("virtualmachineinstancemigrations", "poddisruptionbudgets")
    names = [name for kind in kinds for name in kubectl(directory, "get", kind, *words).split()]
    return {name.startswith("kubevirt-") for name in names}


def machines(directory: Path) -> dict[str, tuple[str, str]]:
    """Return each running VMI → its node and the time of its guest's boot."""
    found: list[dict[str, Any]] = json.loads(kubectl(directory, "get", "vmi", "-o", "json"))["items"]
    return {
        item["metadata"]["name"]: (item["status"]["nodeName"], item["metadata"]["annotations"][BOOTED])
        for item in found
        if phase(item) == "Running"
    }


def nodes(directory: Path) -> list[str]:
    """Return the nodes of the running VMIs."""
    return [node for node, _ in machines(directory).values()]


def upgrade(directory: Path) -> None:
    """Apply the samples, set another desired version, and wait until the run is finished."""
    for name in ("rule", "target", "runconfig"):
        kubectl(directory, "apply", "-n", NAMESPACE, "-f", str(SAMPLES / f"mutex_v1alpha1_mutex{name}.yaml"))
    kubectl(directory, "apply", "-f", str(SAMPLES / "mutex_canary.yaml"))
    wanted = json.dumps({"spec": {"desiredUpdate": {"version": NEW}}})
    kubectl(directory, "patch", "clusterversion", "version", "--type=merge", "-p", wanted)
    finished = ("--for=jsonpath={.status.step}=Finished", "--timeout=90s")
    kubectl(directory, "wait", "mutexrunconfig/example", "-n", NAMESPACE, *finished)


def versions(directory: Path) -> dict[str, str]:
    """Return each worker → the version in its label."""
    nodes: list[dict[str, Any]] = json.loads(kubectl(directory, "get", "nodes", "-l", WORKER, "-o", "json"))["items"]
    return {node["metadata"]["name"]: node["metadata"]["labels"][VERSION_LABEL] for node in nodes}
