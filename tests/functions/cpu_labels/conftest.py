"""Fixtures and helpers for the tests of `label-cpu`; each test starts without its ConfigMaps, objects and labels."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from functions.cpu_labels import label_cpu
from functions.cpu_labels.kubernetes_events import TOLD
from kube.cpu import capabilities, hyperconverged
from kube.cpu.node_patch import MARK, OURS
from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.nodes import NODES, node_path
from kube.paths import NAMESPACE, Object
from tests.fault_proxy import Faults
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource, tick
from tests.workload import Audit, Workload

MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
HASWELL = {"models": ["Conroe", "Haswell", "Penryn"], "cpu": "Haswell"}


class Labelling:
    """The ConfigMaps and HyperConverged of a test, and access to `label-cpu`.

    Its methods call the step with events as a source emits them.
    """

    def __init__(self, admin: Cluster, work: Workload, functions: Functions) -> None:
        self.admin, self.work, self.functions = admin, work, functions

    @property
    def door(self) -> Cluster:
        """Return the API client of `label-cpu`."""
        return self.functions.clusters["label-cpu"]

    def offer(self, entries: Mapping[str, Any], name: str = "offered") -> Object:
        """Replace a capability ConfigMap; a key of `entries` is a node name or the name of an entry."""
        data = {key: value if isinstance(value, str) else json.dumps(value) for key, value in entries.items()}
        body = {"metadata": {"name": name, "labels": {capabilities.LABEL: ""}}, "data": data}
        self.withdraw(name)
        return self.admin.create(MAPS, body)

    def withdraw(self, name: str = "offered") -> None:
        """Delete a capability ConfigMap if it exists."""
        self.admin.run(absent_ok(self.admin.api.request("DELETE", f"{MAPS}/{name}")))

    def wish(self, told: Object | None, *, namespace: str = "") -> Object:
        """Create or update the HyperConverged with this `spec.obsoleteCPUs`; None for an empty spec."""
        where = f"/apis/{hyperconverged.API_VERSION}/namespaces/{namespace or self.work.namespace}/hyperconvergeds"
        spec = {} if told is None else {"obsoleteCPUs": told}
        body = {"apiVersion": hyperconverged.API_VERSION, "kind": hyperconverged.KIND, "spec": spec}
        name = {"metadata": {"name": hyperconverged.NAME}}
        found = self.admin.run(absent_ok(self.admin.api.get(f"{where}/{hyperconverged.NAME}")))
        if found is None:
            return self.admin.create(where, {**body, **name})
        patch = [{"op": "replace", "path": "/spec", "value": spec}]
        return self.admin.patch(f"{where}/{hyperconverged.NAME}", patch, "application/json-patch+json")

    def changed(self, kind: str = "ConfigMap") -> int:
        """Post an update event of this kind, and return the number of events until the end of the round."""
        return self.go_on(reference(kind))

    def go_on(self, event: BaseCloudEvent) -> int:
        """Post an event and each reply in turn; return the number of events."""
        count, answer = 1, self.functions.answer("label-cpu", event)
        while answer is not None:
            count, answer = count + 1, self.functions.answer("label-cpu", answer)
        return count

    def tick(self) -> None:
        """Post ticks until each page of nodes was checked once."""
        self.go_on(tick())
        while label_cpu.TURNS.get(self.door):
            self.go_on(tick())

    def labels(self, node: str) -> set[str]:
        """Return the names of the product's CPU labels on a node, without the label that marks the node as managed."""
        found = self.work.read_node(node)["metadata"]["labels"]
        return {name for name in found if name.startswith(OURS)}

    def label(self, node: str, labels: Mapping[str, str | None]) -> None:
        """Patch labels of a node as the administrator."""
        self.admin.patch(node_path(node), {"metadata": {"labels": dict(labels)}})

    def annotate(self, node: str, annotations: Mapping[str, str | None]) -> None:
        """Patch annotations of a node as the administrator."""
        self.admin.patch(node_path(node), {"metadata": {"annotations": dict(annotations)}})

    def told(self, namespace: str, reason: str) -> list[str]:
        """Return the messages of the Events with this reason in a namespace."""
        found = self.admin.list(f"/api/v1/namespaces/{namespace}/events", fields=f"reason={reason}")["items"]
        return [event["message"] for event in found]

    def clear(self) -> None:
        """Delete the ConfigMaps and HyperConvergeds, and remove the CPU labels from all nodes."""
        api = self.admin.api
        maps = self.admin.list(MAPS, labels=capabilities.LABEL)["items"]
        others = self.admin.list(hyperconverged.PATH)["items"]
        for item in maps:
            self.withdraw(item["metadata"]["name"])
        for item in others:
            where = f"/apis/{hyperconverged.API_VERSION}/namespaces/{item['metadata']['namespace']}/hyperconvergeds"
            self.admin.run(api.request("DELETE", f"{where}/{hyperconverged.NAME}"))
        for node in self.admin.list(NODES, labels=MARK)["items"]:
            names = [name for name in node["metadata"]["labels"] if name.startswith(OURS) or name == MARK]
            self.label(node["metadata"]["name"], dict.fromkeys(names))


def reference(kind: str = "ConfigMap", how: str = events.REFERENCE_UPDATED) -> CloudEvent:
    """Build the event of a source for an object of this kind, with an arbitrary name."""
    return resource(how, {"kind": kind, "apiVersion": "v1", "name": "any", "metadata": {"name": "any"}}, kind)


@pytest.fixture
def hindered_labelling(labelling: Labelling, spoiled: Functions, faults: Faults) -> Iterator[Labelling]:
    """Yield a `Labelling` whose `label-cpu` reaches the API server only through `faults`."""
    labelling.functions = spoiled
    yield labelling
    faults.speak_again()


@pytest.fixture
def labelling(admin: Cluster, work: Workload, functions: Functions) -> Iterator[Labelling]:
    """Yield a `Labelling` with no positions, rounds or recorded problems left from earlier tests."""
    one = Labelling(admin, work, functions)
    for known in (label_cpu.TURNS, label_cpu.ROUNDS):
        known.clear()
    TOLD.forget()
    yield one
    one.clear()


@pytest.fixture
def kubevirt(admin: Cluster, work: Workload) -> Iterator[str]:
    """Yield the path of a KubeVirt object, whose existence means that KubeVirt is installed."""
    where = f"/apis/kubevirt.io/v1/namespaces/{work.namespace}/kubevirts"
    admin.create(
        where, {"apiVersion": "kubevirt.io/v1", "kind": "KubeVirt", "metadata": {"name": "kubevirt"}, "spec": {}}
    )
    yield f"{where}/kubevirt"
    admin.run(absent_ok(admin.api.request("DELETE", f"{where}/kubevirt")))


def patched(audit: Audit) -> list[str]:
    """Return the name of the node of each patch by `label-cpu`, in order."""
    writes = audit.writes_by("system:serviceaccount:node-maintenance:label-cpu")
    return [entry["objectRef"]["name"] for entry in writes if entry["verb"] == "patch"]
