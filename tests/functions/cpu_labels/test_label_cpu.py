"""Tests for `label-cpu` on a real API server: node labels, patch requests, and changes that must have no effect."""

from __future__ import annotations

import base64
import json
from datetime import datetime, timezone

import pytest

from chaos.api_fault_proxy import NO_RESPONSE, Fault, FaultProxy
from eventing import events
from functions import installs
from functions.cpu_labels import label_cpu
from functions.event_data import require_data
from kube import install_lease
from kube.client.api_errors import Rejected
from kube.cpu_labels import hyperconverged, lookup
from kube.cpu_labels.capabilities import get_model_features
from kube.cpu_labels.node_patch import FEATURE_LABEL_PREFIX, MANAGED_LABEL, MODEL_LABEL_PREFIX, SKIP_ANNOTATION
from kube.cpu_labels.problems import (
    HYPERCONVERGED_IGNORED,
    ILLEGAL_NAME,
    MALFORMED_INPUT,
    SKIP_NODE_IGNORED,
    UNKNOWN_MODEL,
    UNKNOWN_NODE,
)
from kube.install_lease import ServiceAccount
from kube.nodes import NODES_PATH
from kube.paths import DEFAULT_NAMESPACE, LEASES_PATH
from localcluster.audit_log import OWN_USER_PREFIX, AuditLog
from tests.functions.conftest import Functions
from tests.functions.cpu_labels.conftest import (
    HASWELL_CAPABILITIES,
    CpuLabelScenario,
    build_reference_event,
    list_patched_nodes,
)
from tests.functions.event_builders import build_tick
from tests.kube.cpu_labels.test_models import HASWELL_FEATURES_ABOVE_PENRYN
from tests.proofs import proves
from tests.workload import Workload, build_pod, summarize_writes

FEATURES_ABOVE_PENRYN = {FEATURE_LABEL_PREFIX + name for name in (*HASWELL_FEATURES_ABOVE_PENRYN.split(), "smep")}
LEGACY_FEATURE_LABEL = "feature.node.kubernetes.io/cpu-feature-avx"
FOREIGN_LABEL = "host-model-cpu.node.kubevirt.io/Haswell"


def split_nodes_into_two_pages(
    scenario: CpuLabelScenario, monkeypatch: pytest.MonkeyPatch, second_page_size: int = 1
) -> list[str]:
    """Set the page size so that `second_page_size` nodes are on the second page; return the names of all nodes."""
    nodes = [node["metadata"]["name"] for node in scenario.administrator_client.list(NODES_PATH)["items"]]
    monkeypatch.setattr(lookup, "PAGE_SIZE", len(nodes) - second_page_size)
    return nodes


@proves("OSV-30", "OSV-33", "OSV-35", "OSV-36", "OSV-38", "C13")
def test_node_gets_labels_of_its_capabilities(scenario: CpuLabelScenario, workload: Workload, audit: AuditLog) -> None:
    """Check that a node gets its labels with a single patch, and that another pass over all nodes patches nothing.

    Models that are always obsolete and features of the minimum model get no label.
    """
    node, other_node = workload.take_node(), workload.take_node()
    scenario.patch_node_labels(node, {LEGACY_FEATURE_LABEL: "true", FOREIGN_LABEL: "true"})
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})

    scenario.run_round()
    scenario.run_round()

    assert scenario.list_cpu_labels(node) == {
        f"{MODEL_LABEL_PREFIX}Haswell",
        f"{MODEL_LABEL_PREFIX}Penryn",
        *FEATURES_ABOVE_PENRYN,
    }
    labels = workload.read_node(node)["metadata"]["labels"]
    assert (labels[FOREIGN_LABEL], labels[f"{MODEL_LABEL_PREFIX}Haswell"], labels[MANAGED_LABEL]) == (
        "true",
        "true",
        "true",
    )
    assert scenario.list_cpu_labels(other_node) == set()
    assert list_patched_nodes(audit) == [node]


@proves("OSV-30", "OSV-31")
def test_cpu_model_listed_as_obsolete_in_hyperconverged_has_no_label(
    scenario: CpuLabelScenario, workload: Workload
) -> None:
    """Check that a CPU model has no label while the HyperConverged lists it as obsolete, and gets the label again.

    Models that are always obsolete get no label, and `label-cpu` never writes them to HyperConverged.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    label_sets = []
    for obsolete_models in (["Haswell", "Nobody", "Conroe"], ["Penryn"], []):
        hyperconverged_object = scenario.set_obsolete_cpus({"cpuModels": obsolete_models})
        scenario.run_round("HyperConverged")
        assert hyperconverged_object["spec"]["obsoleteCPUs"]["cpuModels"] == obsolete_models
        label_sets.append(
            {
                name.removeprefix(MODEL_LABEL_PREFIX)
                for name in scenario.list_cpu_labels(node)
                if name.startswith(MODEL_LABEL_PREFIX)
            }
        )

    assert label_sets == [{"Penryn"}, {"Haswell"}, {"Haswell", "Penryn"}]


@proves("OSV-31")
def test_unquoted_numeric_cpu_model_is_rejected_by_crd(scenario: CpuLabelScenario) -> None:
    """Check that the CRD rejects the model `486` without quotes, which YAML reads as a number."""
    with pytest.raises(Rejected, match="must be of type string"):
        scenario.set_obsolete_cpus({"cpuModels": [486]})


@proves("OSV-32", "C12")
@pytest.mark.parametrize("field", ["minCPUModel", "minCPU"])
def test_features_of_minimum_model_get_no_label(scenario: CpuLabelScenario, workload: Workload, field: str) -> None:
    """Check that features of the minimum CPU model get no label, with either name of its field and by default."""
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    feature_label_sets = []
    for obsolete_cpus in (None, {field: "Penryn"}, {field: "Nehalem"}, {field: ""}):
        scenario.set_obsolete_cpus(obsolete_cpus)
        scenario.run_round("HyperConverged")
        feature_label_sets.append(
            {name for name in scenario.list_cpu_labels(node) if name.startswith(FEATURE_LABEL_PREFIX)}
        )
    features_above_nehalem = {
        FEATURE_LABEL_PREFIX + name
        for name in (get_model_features("Haswell") or set()) - (get_model_features("Nehalem") or set())
    }

    assert feature_label_sets == [
        FEATURES_ABOVE_PENRYN,
        FEATURES_ABOVE_PENRYN,
        features_above_nehalem,
        FEATURES_ABOVE_PENRYN,
    ]


@proves("OSV-32")
def test_unknown_minimum_model_is_reported_and_changes_nothing(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog
) -> None:
    """Check that an unknown minimum CPU model changes no label and causes one Event on the HyperConverged."""
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.set_obsolete_cpus({"minCPUModel": "Unheard"})

    scenario.run_round("HyperConverged")
    scenario.tick_through_all_pages()

    assert scenario.list_cpu_labels(node) == set()
    [message] = scenario.list_event_messages(workload.namespace, UNKNOWN_MODEL)
    assert 'spec.obsoleteCPUs.minCPUModel "Unheard" is unknown: use a model name of libvirt' in message
    assert [entry[:2] for entry in summarize_writes(audit.list_writes_by())] == [("create", "events")]


@proves("OSV-31", "OSV-38")
def test_unknown_cpu_model_and_unknown_node_are_reported(scenario: CpuLabelScenario, workload: Workload) -> None:
    """Check that Events report an unknown CPU model and an unknown node, while valid entries still apply."""
    node = workload.take_node()
    configmap = scenario.replace_capabilities({node: HASWELL_CAPABILITIES, "nodee-1": HASWELL_CAPABILITIES})
    scenario.set_obsolete_cpus({"cpuModels": ["haswell", "Haswell"]})

    scenario.run_round()
    scenario.run_round("HyperConverged")

    assert f"{MODEL_LABEL_PREFIX}Haswell" not in scenario.list_cpu_labels(node)
    assert f"{MODEL_LABEL_PREFIX}Penryn" in scenario.list_cpu_labels(node)
    [model_message] = scenario.list_event_messages(workload.namespace, UNKNOWN_MODEL)
    assert "spec.obsoleteCPUs.cpuModels contains unknown models (haswell)" in model_message
    expected_message = f'{configmap["metadata"]["name"]} data["nodee-1"] names nodes that do not exist (nodee-1)'
    assert any(
        message.startswith(expected_message)
        for message in scenario.list_event_messages(DEFAULT_NAMESPACE, UNKNOWN_NODE)
    )


@proves("OSV-33")
def test_cpu_name_not_valid_in_label_is_skipped_and_reported(scenario: CpuLabelScenario, workload: Workload) -> None:
    """Check that model and feature names that are not valid in a label are skipped and reported in an Event.

    The API server would reject the whole patch because of a single invalid name.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: {"models": ["My CPU", "486x"], "features": ["sse4.1", "a b", "sse4.2"]}})

    scenario.run_round()

    assert scenario.list_cpu_labels(node) == {f"{MODEL_LABEL_PREFIX}486x", f"{FEATURE_LABEL_PREFIX}sse4.2"}
    [message] = scenario.list_event_messages(DEFAULT_NAMESPACE, ILLEGAL_NAME)[-1:]
    assert f'data["{node}"] contains names that are invalid in a label ("My CPU", "a b")' in message


@proves("OSV-33", "OSV-38")
def test_outdated_cpu_labels_are_removed(scenario: CpuLabelScenario, workload: Workload, audit: AuditLog) -> None:
    """Check that outdated CPU labels are removed, and that all are removed once no ConfigMap names the node.

    The label that marks the node as managed is then removed, too. Labels of other products stay.
    """
    node = workload.take_node()
    scenario.patch_node_labels(node, {FOREIGN_LABEL: "true"})
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.run_round()
    scenario.replace_capabilities({node: {"models": ["Penryn"], "features": ["avx"]}})
    scenario.run_round()
    assert scenario.list_cpu_labels(node) == {f"{MODEL_LABEL_PREFIX}Penryn", f"{FEATURE_LABEL_PREFIX}avx"}

    scenario.delete_capabilities()
    scenario.functions.invoke("label-cpu", build_reference_event(event_type=events.REFERENCE_DELETED))

    assert scenario.list_cpu_labels(node) == set()
    labels = workload.read_node(node)["metadata"]["labels"]
    assert MANAGED_LABEL not in labels
    assert FOREIGN_LABEL in labels
    assert list_patched_nodes(audit) == [node] * 3


@proves("OSV-38")
@pytest.mark.parametrize("entry", ["{", '{"models": [486], "features": []}', '{"models": [], "cpu": "Unheard"}'])
def test_malformed_entry_is_reported_and_removes_no_labels(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog, entry: str
) -> None:
    """Check that a malformed entry is reported in one Event and removes no labels, while valid entries apply.

    A malformed entry might name any node, so no node loses its labels.
    """
    node, other_node = workload.take_node(), workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.run_round()
    initial_labels = scenario.list_cpu_labels(node)

    configmap = scenario.replace_capabilities({node: entry, other_node: HASWELL_CAPABILITIES})
    scenario.run_round()

    assert scenario.list_cpu_labels(node) == scenario.list_cpu_labels(other_node) == initial_labels
    assert list_patched_nodes(audit) == [node, other_node]
    reasons = (MALFORMED_INPUT, UNKNOWN_MODEL)
    all_events = scenario.administrator_client.list(f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/events")["items"]
    recorded_events = [
        event for event in all_events if event["involvedObject"].get("uid") == configmap["metadata"]["uid"]
    ]
    assert len(recorded_events) == 1
    assert recorded_events[0]["reason"] in reasons
    assert f'data["{node}"]' in recorded_events[0]["message"]


def test_node_in_two_configmaps_is_not_labelled(scenario: CpuLabelScenario, workload: Workload) -> None:
    """Check that a node named by two ConfigMaps gets no labels until one of them no longer names it.

    An Event names both ConfigMaps.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES}, "one")
    scenario.replace_capabilities({node: {"models": ["Penryn"], "features": []}}, "two")
    scenario.run_round()
    assert scenario.list_cpu_labels(node) == set()
    assert any(
        f'one data["{node}"] and two data["{node}"] name the same nodes ({node})' in message
        for message in scenario.list_event_messages(DEFAULT_NAMESPACE, MALFORMED_INPUT)
    )

    scenario.delete_capabilities("one")
    scenario.run_round()

    assert scenario.list_cpu_labels(node) == {f"{MODEL_LABEL_PREFIX}Penryn"}


@proves("C18")
def test_oldest_hyperconverged_of_all_namespaces_takes_precedence(
    scenario: CpuLabelScenario, workload: Workload
) -> None:
    """Check that the oldest HyperConverged of all namespaces takes precedence.

    An Event on the other HyperConverged reports that it is ignored.
    """
    node, other_namespace = workload.take_node(), workload.create_namespace()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    first = scenario.set_obsolete_cpus({"cpuModels": ["Haswell"]})["metadata"]
    second = scenario.set_obsolete_cpus({"cpuModels": ["Penryn"]}, namespace=other_namespace)["metadata"]
    older, younger = sorted((first, second), key=lambda metadata: (metadata["creationTimestamp"], metadata["uid"]))

    scenario.run_round("HyperConverged")

    obsolete_model = {first["uid"]: "Haswell", second["uid"]: "Penryn"}[older["uid"]]
    assert f"{MODEL_LABEL_PREFIX}{obsolete_model}" not in scenario.list_cpu_labels(node)
    assert len(scenario.list_event_messages(younger["namespace"], HYPERCONVERGED_IGNORED)) == 1


@proves("OSV-39", "C29")
def test_skipped_node_is_labelled_after_skip_annotation_is_removed(
    scenario: CpuLabelScenario, workload: Workload
) -> None:
    """Check that a skipped node keeps its labels, and that the first tick after the annotation's removal relabels it.

    The value `false` has the same effect as the removal.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.run_round()
    for annotation_value in ("false", None):
        scenario.patch_node_annotations(node, {SKIP_ANNOTATION: "true"})
        labels_before_skip = scenario.list_cpu_labels(node)
        scenario.set_obsolete_cpus(
            {"cpuModels": ["Haswell"] if annotation_value else [], "minCPUModel": "Nehalem" if annotation_value else ""}
        )
        scenario.run_round("HyperConverged")
        scenario.tick_through_all_pages()
        assert scenario.list_cpu_labels(node) == labels_before_skip

        scenario.patch_node_annotations(node, {SKIP_ANNOTATION: annotation_value})
        scenario.tick_through_all_pages()

        assert (f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)) is (annotation_value is None)
        assert (f"{FEATURE_LABEL_PREFIX}sse4.2" in scenario.list_cpu_labels(node)) is (annotation_value is None)


@proves("OSV-39")
@pytest.mark.parametrize("value", ["", "yes"])
def test_invalid_skip_annotation_is_ignored_and_reported(
    scenario: CpuLabelScenario, workload: Workload, value: str
) -> None:
    """Check that an invalid value of the skip annotation is ignored and causes one Event.

    `kubectl describe node` shows that Event.
    """
    node = workload.take_node()
    scenario.patch_node_annotations(node, {SKIP_ANNOTATION: value})
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})

    scenario.run_round()
    scenario.tick_through_all_pages()

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)
    events = scenario.administrator_client.list(
        "/api/v1/namespaces/default/events", field_selector=f"reason={SKIP_NODE_IGNORED}"
    )["items"]
    [event] = [event for event in events if event["involvedObject"]["name"] == node]
    assert f'is "{value}" instead of "true" or "false", so the node is labelled: set "true"' in event["message"]


@proves("OSV-37")
def test_pod_with_model_selector_waits_for_labelled_node(scenario: CpuLabelScenario, workload: Workload) -> None:
    """Check that a pod with a node selector for a CPU model is scheduled once a node has that label."""
    node = workload.take_node()
    pod = build_pod("", "asks")
    del pod["spec"]["nodeName"]
    pod["spec"]["nodeSelector"] = {f"{MODEL_LABEL_PREFIX}Haswell": "true"}
    collection = f"/api/v1/namespaces/{workload.namespace}/pods"
    workload.client.create(collection, pod)

    def is_unschedulable(current_pod: dict[str, object] | None) -> bool:
        status = (current_pod or {}).get("status")
        conditions = status.get("conditions") if isinstance(status, dict) else None
        return any(
            condition["type"] == "PodScheduled" and condition["status"] == "False" for condition in conditions or []
        )

    workload.wait_for_object(f"{collection}/asks", is_unschedulable)
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.run_round()

    bound_pod = workload.wait_for_object(
        f"{collection}/asks", lambda current_pod: bool(current_pod and current_pod["spec"].get("nodeName"))
    )
    assert bound_pod["spec"]["nodeName"] == node


@proves("DRN-10")
def test_nothing_is_labelled_while_kubevirt_is_installed(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog, kubevirt_path: str
) -> None:
    """Check that `label-cpu` writes nothing while KubeVirt is installed, and labels nodes at the next tick afterwards.

    KubeVirt's own node-labeller writes these labels.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})

    scenario.run_round()
    scenario.tick_through_all_pages()
    assert scenario.list_cpu_labels(node) == set()
    assert audit.list_writes_by() == []

    workload.delete(kubevirt_path)
    scenario.tick_through_all_pages()

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)


@proves("DRN-15")
def test_nothing_is_labelled_while_other_install_holds_lease(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `label-cpu` writes nothing while another install holds the install lease.

    The other install may have different ConfigMaps for the same nodes.
    """
    node, other_account = workload.take_node(), ServiceAccount("kubevirt-hyperconverged", "functions")
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    # The cache still contains the previous holder of the install lease.
    monkeypatch.setattr(installs, "INSTALL_LEASE_CACHE", installs.InstallLeaseCache())
    workload.client.create(LEASES_PATH, install_lease.build_lease(other_account, datetime.now(timezone.utc)))

    scenario.run_round()
    assert audit.list_writes_by() == []

    workload.delete(install_lease.LEASE_PATH)
    scenario.run_round()
    assert list_patched_nodes(audit) == [node]


@proves("X-3", "OSV-38")
def test_tick_restores_labels_and_next_tick_writes_nothing(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog
) -> None:
    """Check that a tick labels a node after a lost event or a removed label, and that the next tick writes nothing."""
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.tick_through_all_pages()
    scenario.patch_node_labels(node, {f"{MODEL_LABEL_PREFIX}Haswell": None})
    scenario.tick_through_all_pages()
    assert list_patched_nodes(audit) == [node] * 2

    scenario.tick_through_all_pages()

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)
    assert len(audit.list_writes_by(f"{OWN_USER_PREFIX}label-cpu")) == 2


@proves("X-3a", "OSV-31")
def test_tick_applies_hyperconverged_change_whose_event_was_lost(
    scenario: CpuLabelScenario, workload: Workload
) -> None:
    """Check that a tick removes the label of a model that HyperConverged now lists, even if the event was lost."""
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.tick_through_all_pages()
    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)
    scenario.set_obsolete_cpus({"cpuModels": ["Haswell"]})

    scenario.tick_through_all_pages()

    assert f"{MODEL_LABEL_PREFIX}Haswell" not in scenario.list_cpu_labels(node)


def test_hyperconverged_status_update_starts_no_round(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog
) -> None:
    """Check that an update of only the HyperConverged's status starts no round.

    An object's generation changes only with its spec. Ticks repair labels that another client has changed.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.set_obsolete_cpus({})
    scenario.run_round("HyperConverged")
    scenario.patch_node_labels(node, {f"{MODEL_LABEL_PREFIX}Haswell": None})

    scenario.run_round("HyperConverged")
    assert list_patched_nodes(audit) == [node]

    scenario.set_obsolete_cpus({"cpuModels": ["Penryn"]})
    scenario.run_round("HyperConverged")
    assert scenario.list_cpu_labels(node) == {f"{MODEL_LABEL_PREFIX}Haswell", *FEATURES_ABOVE_PENRYN}


@proves("X-2")
def test_redelivered_event_restarts_round_after_lost_reply(
    scenario: CpuLabelScenario, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a redelivered event starts the round again if the first reply was lost.

    The round also starts again if a status update of the HyperConverged arrived in between. After the end of the
    round, a status update starts no round.
    """
    split_nodes_into_two_pages(scenario, monkeypatch)
    scenario.replace_capabilities({scenario.workload.take_node(): HASWELL_CAPABILITIES})
    scenario.set_obsolete_cpus({})
    spec_event, status_event = build_reference_event(hyperconverged.KIND), build_reference_event(hyperconverged.KIND)

    assert all(scenario.functions.invoke("label-cpu", event) for event in (spec_event, status_event, spec_event))
    assert scenario.post_with_replies(spec_event) == 2

    assert scenario.functions.invoke("label-cpu", status_event) is None


@proves("X-6")
def test_node_is_read_again_after_patch_conflict(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy
) -> None:
    """Check that a node whose patch got a conflict is read again when the broker redelivers the event.

    A node that got the skip annotation between the two reads keeps its labels.
    """
    scenario, workload = scenario_with_faults, scenario_with_faults.workload
    skipped_node, labelled_node = workload.take_node(), workload.take_node()
    scenario.replace_capabilities({"kind": {**HASWELL_CAPABILITIES, "nodes": [skipped_node, labelled_node]}})

    def write_before_patch(request: str) -> None:
        if request == "patch nodes 1":
            scenario.patch_node_annotations(skipped_node, {SKIP_ANNOTATION: "true"})
            scenario.patch_node_labels(labelled_node, {LEGACY_FEATURE_LABEL: "true"})

    fault_proxy.inject(write_before_patch)
    response = scenario.functions.post("label-cpu", build_reference_event())
    assert (response.status_code, response.text) == (503, "another client changed the node at the same time\n")
    scenario.run_round()

    assert scenario.list_cpu_labels(skipped_node) == set()
    assert scenario.list_cpu_labels(labelled_node) == {
        f"{MODEL_LABEL_PREFIX}Haswell",
        f"{MODEL_LABEL_PREFIX}Penryn",
        *FEATURES_ABOVE_PENRYN,
    }
    assert fault_proxy.request_counts["patch nodes"] == 3


@proves("X-6", "OSV-38")
def test_node_changed_after_first_page_is_labelled_without_conflict(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a node on the second page is patched from its current state, not from its state at the first page."""
    assert all(workload.take_node() for _ in range(2))
    node = split_nodes_into_two_pages(scenario, monkeypatch)[-1]
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    second_page = scenario.functions.invoke("label-cpu", build_reference_event())
    assert second_page is not None

    scenario.patch_node_labels(node, {FOREIGN_LABEL: "true"})
    first_response = scenario.functions.post("label-cpu", second_page)
    second_response = scenario.functions.post("label-cpu", second_page)

    assert (first_response.status_code, second_response.status_code) == (204, 204)
    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)
    assert list_patched_nodes(audit) == [node]


@proves("X-6", "OSV-38")
def test_round_labels_all_nodes_of_second_page_if_each_request_has_time_for_one(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a repeated page continues at its first unpatched node, so that all its nodes are labelled."""
    assert all(workload.take_node() for _ in range(4))
    *_first_page, first, second, third = split_nodes_into_two_pages(scenario, monkeypatch, second_page_size=3)
    scenario.replace_capabilities({"kind": {**HASWELL_CAPABILITIES, "nodes": [first, second, third]}})
    monkeypatch.setattr(label_cpu, "BATCH_SIZE", 1)
    monkeypatch.setattr(label_cpu, "MIN_BATCH_SECONDS", 60.0)

    scenario.run_round()

    assert all(scenario.list_cpu_labels(node) for node in (first, second, third))
    assert list_patched_nodes(audit) == [first, second, third]


@proves("X-3", "OSV-38")
def test_ticks_remove_labels_on_first_page_if_last_configmap_is_deleted(
    scenario: CpuLabelScenario, workload: Workload, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that the ticks return to the first page if only that page has labelled nodes and no ConfigMap is left.

    The event about the ConfigMap's deletion is lost while the ticks are at the second page.
    """
    assert all(workload.take_node() for _ in range(2))
    node, *_ = split_nodes_into_two_pages(scenario, monkeypatch)
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.run_round()
    scenario.functions.invoke("label-cpu", build_tick())
    assert label_cpu.TICK_POSITIONS[scenario.client]

    scenario.delete_capabilities()
    for _ in range(2):
        scenario.functions.invoke("label-cpu", build_tick())

    assert scenario.list_cpu_labels(node) == set()


@proves("X-6")
def test_labels_after_patch_conflict_come_from_latest_configmaps(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy
) -> None:
    """Check that the labels after a conflict come from the latest ConfigMaps.

    The client that caused the conflict, for example another replica of `label-cpu`, may have used a newer ConfigMap.
    """
    scenario, (first_node, second_node) = (
        scenario_with_faults,
        sorted(scenario_with_faults.workload.take_node() for _ in range(2)),
    )
    scenario.replace_capabilities({"kind": {**HASWELL_CAPABILITIES, "nodes": [first_node, second_node]}})

    def write_before_patch(request: str) -> None:
        if request == "patch nodes 1":
            scenario.replace_capabilities(
                {"kind": {"models": ["Penryn"], "features": [], "nodes": [first_node, second_node]}}
            )
            scenario.patch_node_labels(first_node, {f"{MODEL_LABEL_PREFIX}Penryn": "true", MANAGED_LABEL: "true"})

    fault_proxy.inject(write_before_patch)
    scenario.run_round()

    assert (
        scenario.list_cpu_labels(first_node) == scenario.list_cpu_labels(second_node) == {f"{MODEL_LABEL_PREFIX}Penryn"}
    )


@proves("OSV-38")
def test_hanging_search_for_unknown_nodes_delays_no_label(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy
) -> None:
    """Check that a hanging search for unknown node names delays no labels, because the search follows the patches."""
    scenario, node = scenario_with_faults, scenario_with_faults.workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    fault_proxy.inject(lambda request: NO_RESPONSE if request == "list nodes 2" else None)

    scenario.run_round()

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)


@pytest.mark.slow
@proves("X-6")
def test_round_ends_even_if_every_patch_hangs(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a round ends even if every patch hangs, for example because of an admission webhook.

    No page is repeated, and the event of the last page fails, so the broker retries it.
    """
    scenario = scenario_with_faults
    assert all(scenario.workload.take_node() for _ in range(30))
    nodes = split_nodes_into_two_pages(scenario, monkeypatch)
    scenario.replace_capabilities({"kind": {**HASWELL_CAPABILITIES, "nodes": nodes}})
    fault_proxy.inject(lambda request: NO_RESPONSE if request.startswith("patch nodes") else None)

    next_page_event = scenario.functions.invoke("label-cpu", build_reference_event())
    assert next_page_event is not None
    last_response = scenario.functions.post("label-cpu", next_page_event)

    assert require_data(next_page_event)["after"]
    assert last_response.status_code == 503
    assert last_response.text.startswith("no response from the API server")


@proves("X-6")
def test_round_with_unwritable_last_page_counts_as_finished(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that a round counts as finished even if its last page cannot be written.

    An update of the HyperConverged's status starts no new round, and the event of the last page is still retried.
    """
    scenario, workload = scenario_with_faults, scenario_with_faults.workload
    assert workload.take_node()
    nodes = split_nodes_into_two_pages(scenario, monkeypatch)
    scenario.replace_capabilities({nodes[-1]: HASWELL_CAPABILITIES})
    scenario.set_obsolete_cpus({})
    fault_proxy.inject(lambda request: Fault(500, "broken") if request.startswith("patch nodes") else None)

    last_reply = scenario.functions.invoke("label-cpu", build_reference_event(hyperconverged.KIND))
    assert last_reply is not None
    assert scenario.functions.post("label-cpu", last_reply).status_code == 503

    assert scenario.functions.invoke("label-cpu", build_reference_event(hyperconverged.KIND)) is None
    fault_proxy.stop_faults()
    assert scenario.functions.invoke("label-cpu", last_reply) is None
    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(nodes[-1])


@proves("X-6")
def test_redelivered_event_restarts_round_after_failed_single_page(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy
) -> None:
    """Check that a redelivered HyperConverged event starts its round again if its only page could not be written."""
    scenario, node = scenario_with_faults, scenario_with_faults.workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    scenario.set_obsolete_cpus({})
    fault_proxy.inject(lambda request: Fault(500, "broken") if request == "patch nodes 1" else None)

    assert scenario.functions.post("label-cpu", build_reference_event(hyperconverged.KIND)).status_code == 503
    scenario.run_round(hyperconverged.KIND)

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)


@proves("X-6")
def test_unwritable_node_does_not_block_other_nodes(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy
) -> None:
    """Check that a node that cannot be patched does not block other nodes.

    The next tick repeats a patch that the API server rejected, and the round repeats a patch that failed otherwise. If
    every patch of a page fails, the event is retried.
    """
    scenario, workload = scenario_with_faults, scenario_with_faults.workload
    nodes = [workload.take_node(), workload.take_node()]
    scenario.replace_capabilities({"kind": {**HASWELL_CAPABILITIES, "nodes": nodes}})

    fault_proxy.inject(lambda request: Fault(500, "broken") if request.startswith("patch nodes") else None)
    response = scenario.functions.post("label-cpu", build_reference_event())
    assert (response.status_code, response.text) == (503, "broken\n")
    fault_proxy.inject(lambda request: Fault(403, "not you") if request == "patch nodes 1" else None)
    scenario.run_round()
    assert sorted(map(bool, map(scenario.list_cpu_labels, nodes))) == [False, True]
    fault_proxy.stop_faults()
    scenario.tick_through_all_pages()
    assert all(map(scenario.list_cpu_labels, nodes))

    scenario.set_obsolete_cpus({"cpuModels": ["Haswell"]})
    fault_proxy.inject(lambda request: Fault(500, "broken") if request == "patch nodes 1" else None)
    scenario.run_round("HyperConverged")
    assert not any(f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node) for node in nodes)


@proves("X-1")
@pytest.mark.parametrize("field", ["after", "from"])
@pytest.mark.parametrize("position", [7, ["a"], {"a": 1}, True])
def test_invalid_page_position_in_event_is_rejected(functions: Functions, field: str, position: object) -> None:
    """Check that an invalid page position in the event data is rejected with 400 and causes no API request."""
    reference = events.ObjectReference("v1", "cpu-labels", "a-round", kind="Round")
    response = functions.post(
        "label-cpu", events.build_event(events.LABELS_DUE, "test", reference, data={field: position})
    )

    assert (response.status_code, response.text) == (400, f"data.{field} is not a string\n")


def test_round_restarts_at_first_page_after_rejected_continue_token(
    scenario: CpuLabelScenario, workload: Workload
) -> None:
    """Check that a round starts at the first page if the API server no longer accepts the continue token.

    Continue tokens expire after a few minutes.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    reference = events.ObjectReference("v1", "cpu-labels", "a-round", kind="Round")

    scenario.post_with_replies(events.build_event(events.LABELS_DUE, "test", reference, data={"after": "forgotten"}))

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(node)


@proves("X-3")
def test_ticks_reach_last_page_after_continue_token_expired(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that ticks reach the last page even if the API server rejects an expired continue token.

    With thousands of nodes, etcd is compacted between ticks. The API server's 410 response contains a fresh token, as
    in this test.
    """
    scenario = scenario_with_faults
    assert all(scenario.workload.take_node() for _ in range(2))
    nodes = split_nodes_into_two_pages(scenario, monkeypatch)
    continue_token = json.dumps({"v": "meta.k8s.io/v1", "rv": -1, "start": f"{nodes[-2]}\0"}).encode()
    expired_status = {
        "reason": "Expired",
        "metadata": {"continue": base64.urlsafe_b64encode(continue_token).decode().rstrip("=")},
    }
    scenario.replace_capabilities({nodes[-1]: HASWELL_CAPABILITIES})
    fault_proxy.inject(
        lambda request: Fault(410, "too old", body=expired_status) if request == "list nodes 2" else None
    )

    for _ in range(2):
        scenario.functions.invoke("label-cpu", build_tick())

    assert f"{MODEL_LABEL_PREFIX}Haswell" in scenario.list_cpu_labels(nodes[-1])


def test_event_about_object_of_other_kind_is_ignored(
    scenario: CpuLabelScenario, workload: Workload, audit: AuditLog
) -> None:
    """Check that an event about an object of another kind is ignored, even if the event type is the same."""
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})

    scenario.run_round("Secret")

    assert audit.list_writes_by() == []


def test_tick_without_capabilities_sends_two_requests(
    scenario_with_faults: CpuLabelScenario, fault_proxy: FaultProxy
) -> None:
    """Check that a tick sends only two list requests, for ConfigMaps and managed nodes, if none of them exist.

    If ConfigMaps or managed nodes exist, the tick sends two more list requests, and reads the install lease.
    """
    scenario, workload = scenario_with_faults, scenario_with_faults.workload
    fault_proxy.inject(lambda _request: None)
    scenario.functions.invoke("label-cpu", build_tick())
    assert fault_proxy.request_counts == {"list configmaps": 1, "list nodes": 1}

    scenario.replace_capabilities({workload.take_node(): HASWELL_CAPABILITIES})
    scenario.tick_through_all_pages()
    fault_proxy.inject(lambda _request: None)
    scenario.functions.invoke("label-cpu", build_tick())

    requests = ("list configmaps", "list nodes", "list hyperconvergeds", "list kubevirts")
    # The number of Lease requests varies, because the install lease is read only about once a minute.
    del fault_proxy.request_counts["get leases"]
    assert fault_proxy.request_counts == dict.fromkeys(requests, 1)


@proves("OSV-38")
def test_lone_surrogate_in_entry_affects_no_other_node(scenario: CpuLabelScenario, workload: Workload) -> None:
    """Check that an entry with a lone surrogate is malformed and does not affect other nodes.

    JSON can contain a lone surrogate, but it has no UTF-8 encoding.
    """
    node = workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES, "other": '{"models": ["\\ud800"], "features": []}'})
    scenario.run_round()
    assert scenario.list_cpu_labels(node)
