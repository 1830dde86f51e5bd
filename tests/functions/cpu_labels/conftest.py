"""Fixtures and helpers for the tests of `label-cpu`, which start without ConfigMaps, HyperConvergeds and CPU labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from chaos.api_fault_proxy import FaultProxy
from eventing import events
from functions.cpu_labels import label_cpu
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.cpu_labels import capabilities, hyperconverged
from kube.cpu_labels.node_patch import MANAGED_LABEL, OWN_LABEL_PREFIXES
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import DEFAULT_NAMESPACE, Object
from localcluster.audit_log import AuditLog
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_resource_event, build_tick
from tests.workload import Workload

CONFIG_MAPS_PATH = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/configmaps"
HASWELL_CAPABILITIES = {"models": ["Conroe", "Haswell", "Penryn"], "cpu": "Haswell"}


class CpuLabelScenario:
    """Fixture object that writes the test's ConfigMaps and HyperConverged and posts events to `label-cpu`.

    Events have the form in which an event source emits them.
    """

    def __init__(self, administrator_client: SyncClient, workload: Workload, functions: Functions) -> None:
        self.administrator_client, self.workload, self.functions = administrator_client, workload, functions

    @property
    def client(self) -> SyncClient:
        """Return the API client of `label-cpu`."""
        return self.functions.clusters["label-cpu"]

    def replace_capabilities(self, entries: Mapping[str, Any], name: str = "offered") -> Object:
        """Replace a ConfigMap with CPU capabilities; each key of `entries` is a node or the name of a shared entry."""
        data = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
        body = {"metadata": {"name": name, "labels": {capabilities.CAPABILITIES_LABEL: ""}}, "data": data}
        self.delete_capabilities(name)
        return self.administrator_client.create(CONFIG_MAPS_PATH, body)

    def delete_capabilities(self, name: str = "offered") -> None:
        """Delete a ConfigMap with CPU capabilities if it exists."""
        self.administrator_client.run(
            get_or_none(self.administrator_client.api.request("DELETE", f"{CONFIG_MAPS_PATH}/{name}"))
        )

    def set_obsolete_cpus(self, obsolete_cpus: Object | None, *, namespace: str = "") -> Object:
        """Create or update the HyperConverged with these `spec.obsoleteCPUs`; None means an empty spec."""
        collection = (
            f"/apis/{hyperconverged.API_VERSION}/namespaces/{namespace or self.workload.namespace}/hyperconvergeds"
        )
        spec = {} if obsolete_cpus is None else {"obsoleteCPUs": obsolete_cpus}
        body = {"apiVersion": hyperconverged.API_VERSION, "kind": hyperconverged.KIND, "spec": spec}
        metadata = {"metadata": {"name": hyperconverged.HYPERCONVERGED_NAME}}
        existing = self.administrator_client.run(
            get_or_none(self.administrator_client.api.get(f"{collection}/{hyperconverged.HYPERCONVERGED_NAME}"))
        )
        if existing is None:
            return self.administrator_client.create(collection, {**body, **metadata})
        patch = [{"op": "replace", "path": "/spec", "value": spec}]
        return self.administrator_client.patch(
            f"{collection}/{hyperconverged.HYPERCONVERGED_NAME}", patch, "application/json-patch+json"
        )

    def run_round(self, kind: str = "ConfigMap") -> int:
        """Post an update event for an object of this kind, and return the number of events that label all nodes."""
        return self.post_with_replies(build_reference_event(kind))

    def post_with_replies(self, event: BaseCloudEvent) -> int:
        """Post an event and then each reply, until the function replies with no event; return the number of posts."""
        count, response = 1, self.functions.invoke("label-cpu", event)
        while response is not None:
            count, response = count + 1, self.functions.invoke("label-cpu", response)
        return count

    def tick_through_all_pages(self) -> None:
        """Post ticks until each page of nodes has been checked once."""
        self.post_with_replies(build_tick())
        while label_cpu.TICK_POSITIONS.get(self.client):
            self.post_with_replies(build_tick())

    def list_cpu_labels(self, node: str) -> set[str]:
        """Return the names of a node's CPU labels from the product, except the label that marks the node as managed."""
        labels = self.workload.read_node(node)["metadata"]["labels"]
        return {name for name in labels if name.startswith(OWN_LABEL_PREFIXES)}

    def patch_node_labels(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Patch a node's labels as the administrator."""
        self.administrator_client.patch(build_node_path(node), {"metadata": {"labels": dict(labels)}})

    def patch_node_annotations(self, node: str, annotations: Mapping[str, str | None]) -> None:
        """Patch a node's annotations as the administrator."""
        self.administrator_client.patch(build_node_path(node), {"metadata": {"annotations": dict(annotations)}})

    def list_event_messages(self, namespace: str, reason: str) -> list[str]:
        """Return the messages of the Kubernetes Events with this reason in a namespace."""
        events = self.administrator_client.list(
            f"/api/v1/namespaces/{namespace}/events", field_selector=f"reason={reason}"
        )["items"]
        return [event["message"] for event in events]

    def delete_all(self) -> None:
        """Delete the ConfigMaps and HyperConvergeds, and remove the CPU labels from all nodes."""
        api = self.administrator_client.api
        configmaps = self.administrator_client.list(CONFIG_MAPS_PATH, label_selector=capabilities.CAPABILITIES_LABEL)[
            "items"
        ]
        hyperconvergeds = self.administrator_client.list(hyperconverged.HYPERCONVERGEDS_PATH)["items"]
        for configmap in configmaps:
            self.delete_capabilities(configmap["metadata"]["name"])
        for hyperconverged_object in hyperconvergeds:
            namespace = hyperconverged_object["metadata"]["namespace"]
            collection = f"/apis/{hyperconverged.API_VERSION}/namespaces/{namespace}/hyperconvergeds"
            self.administrator_client.run(api.request("DELETE", f"{collection}/{hyperconverged.HYPERCONVERGED_NAME}"))
        for node in self.administrator_client.list(NODES_PATH, label_selector=MANAGED_LABEL)["items"]:
            names = [
                name
                for name in node["metadata"]["labels"]
                if name.startswith(OWN_LABEL_PREFIXES) or name == MANAGED_LABEL
            ]
            self.patch_node_labels(node["metadata"]["name"], dict.fromkeys(names))


def build_reference_event(kind: str = "ConfigMap", event_type: str = events.REFERENCE_UPDATED) -> CloudEvent:
    """Build the CloudEvent that ApiServerSource emits for an object of this kind with an arbitrary name."""
    return build_resource_event(
        event_type, {"kind": kind, "apiVersion": "v1", "name": "any", "metadata": {"name": "any"}}, kind
    )


@pytest.fixture
def scenario_with_faults(
    scenario: CpuLabelScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> Iterator[CpuLabelScenario]:
    """Yield a `CpuLabelScenario` whose `label-cpu` reaches the API server only through `fault_proxy`."""
    scenario.functions = proxied_functions
    yield scenario
    fault_proxy.stop_faults()


@pytest.fixture
def scenario(admin_client: SyncClient, workload: Workload, functions: Functions) -> Iterator[CpuLabelScenario]:
    """Yield a `CpuLabelScenario` for which `label-cpu` has forgotten the page positions of earlier tests."""
    cpu_label_scenario = CpuLabelScenario(admin_client, workload, functions)
    for cache in (label_cpu.TICK_POSITIONS, label_cpu.LAST_TRIGGERS):
        cache.clear()
    yield cpu_label_scenario
    cpu_label_scenario.delete_all()


@pytest.fixture
def kubevirt_path(admin_client: SyncClient, workload: Workload) -> Iterator[str]:
    """Yield the path of a KubeVirt object, whose existence means that KubeVirt is installed."""
    collection = f"/apis/kubevirt.io/v1/namespaces/{workload.namespace}/kubevirts"
    admin_client.create(
        collection, {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    )
    yield f"{collection}/kubevirt"
    admin_client.run(get_or_none(admin_client.api.request("DELETE", f"{collection}/kubevirt")))


def list_patched_nodes(audit: AuditLog) -> list[str]:
    """Return the node name of each patch that `label-cpu` sent, in order."""
    writes = audit.list_writes_by("system:serviceaccount:node-maintenance:label-cpu")
    return [entry["objectRef"]["name"] for entry in writes if entry["verb"] == "patch"]
