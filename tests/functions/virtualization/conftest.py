"""Fixtures for the tests of `migrate` and `protect`, which delete each test's VMIs, since both steps read all VMIs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from kube.client.api import get_or_none
from kube.client.discovery import KUBEVIRTS_PATH
from kube.nodes import build_node_path
from kube.paths import Object
from kube.virtualization.migration_claims import LEASE_PATH
from kube.virtualization.vmis import MIGRATIONS_PATH, VMIS_PATH
from localcluster.waiting import wait_for_collection
from tests.kubevirt import get_instances_path, get_migrations_path
from tests.workload import Workload

KUBEVIRT_DRAIN_TAINT = {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}


class VmiScenario:
    """A namespace for VMIs, and a node with a drain taint that an administrator has set."""

    def __init__(self, workload: Workload) -> None:
        self.workload, self.administrator_client = workload, workload.client
        self._drained_nodes: list[str] = []
        self.node = self.add_drained_node()

    def add_drained_node(self) -> str:
        """Add a drain taint to another node and return the node's name."""
        name = self.workload.take_node()
        self._drained_nodes.append(name)
        self.administrator_client.patch(build_node_path(name), {"spec": {"taints": [KUBEVIRT_DRAIN_TAINT]}})
        return name

    def replace_taints(self, *taints: Object) -> None:
        """Replace the taints of the drained node."""
        self.administrator_client.patch(build_node_path(self.node), {"spec": {"taints": list(taints)}})

    def create_vmi(self, body: Object) -> Object:
        """Create a VMI and return it."""
        return self.administrator_client.create(get_instances_path(self.workload.namespace), body)

    def map_migrations_to_vmis(self) -> dict[str, str]:
        """Map the name of each migration to the name of its VMI."""
        migrations = self.administrator_client.list(get_migrations_path(self.workload.namespace))["items"]
        return {migration["metadata"]["name"]: migration["spec"]["vmiName"] for migration in migrations}

    def get_node_name(self, name: str) -> str:
        """Return the name of the node on which a VMI runs."""
        return str(
            self.administrator_client.get(f"{get_instances_path(self.workload.namespace)}/{name}")["status"]["nodeName"]
        )

    def wait_until_vmis_left_nodes(self, nodes: list[str], timeout_seconds: float) -> None:
        """Wait until no VMI runs on any of these nodes."""
        wait_for_collection(
            self.administrator_client,
            get_instances_path(self.workload.namespace),
            lambda vmis: not has_vmi_on_nodes(nodes, vmis.values()),
            timeout_seconds,
        )

    def delete_migrations(self) -> None:
        """Delete all migrations, and the Lease that contains the claims for migration slots."""
        self._delete(MIGRATIONS_PATH)
        self.administrator_client.run(get_or_none(self.administrator_client.api.request("DELETE", LEASE_PATH)))

    def delete_all(self) -> None:
        """Delete all migrations, VMIs and KubeVirts, and remove the nodes' taints."""
        for name in self._drained_nodes:
            self.administrator_client.patch(build_node_path(name), {"spec": {"taints": []}})
        self.delete_migrations()
        self._delete(VMIS_PATH)
        self._delete(KUBEVIRTS_PATH)

    def _delete(self, path: str) -> None:
        prefix, _, plural = path.rpartition("/")
        for listed_object in self.administrator_client.list(path)["items"]:
            metadata = listed_object["metadata"]
            object_path = f"{prefix}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
            self.administrator_client.delete(object_path, uid=metadata["uid"])


def has_vmi_on_nodes(nodes: list[str], vmis: Iterable[Object]) -> bool:
    return any(vmi["status"]["nodeName"] in nodes for vmi in vmis)


@pytest.fixture
def vmi_scenario(workload: Workload) -> Iterator[VmiScenario]:
    """Yield a `VmiScenario` with a new namespace and a drained node."""
    scenario = VmiScenario(workload)
    yield scenario
    scenario.delete_all()
