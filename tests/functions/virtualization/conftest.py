"""Fixtures: VMIs for tests of `migrate` and `protect`, deleted after each test because both steps read all VMIs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from kube.client.api import absent_ok
from kube.client.discovery import KUBEVIRTS
from kube.nodes import node_path
from kube.paths import Object
from kube.virtualization.vmis import INSTANCES, MIGRATIONS
from kube.virtualization.migration_claims import CLAIM_PATH
from tests.kubevirt import instances, migrations
from tests.waiting import until
from tests.workload import Workload

DRAINING = {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}


class Machines:
    """A namespace for VMIs, and a node with a drain taint that an administrator has set."""

    def __init__(self, work: Workload) -> None:
        self.work, self.admin = work, work.admin
        self._drained: list[str] = []
        self.node = self.drained()

    def drained(self) -> str:
        """Add a drain taint to another node and return its name."""
        name = self.work.node()
        self._drained.append(name)
        self.admin.patch(node_path(name), {"spec": {"taints": [DRAINING]}})
        return name

    def taint(self, *taints: Object) -> None:
        """Replace the taints of the drained node."""
        self.admin.patch(node_path(self.node), {"spec": {"taints": list(taints)}})

    def create(self, body: Object) -> Object:
        """Create a VMI and return it."""
        return self.admin.create(instances(self.work.namespace), body)

    def migrations(self) -> dict[str, str]:
        """Map the name of each migration to the name of its VMI."""
        items = self.admin.list(migrations(self.work.namespace))["items"]
        return {item["metadata"]["name"]: item["spec"]["vmiName"] for item in items}

    def node_of(self, name: str) -> str:
        """Return the name of the node on which a VMI runs."""
        return str(self.admin.get(f"{instances(self.work.namespace)}/{name}")["status"]["nodeName"])

    def await_elsewhere(self, nodes: list[str], seconds: float) -> None:
        """Wait until no VMI runs on any of these nodes."""
        until(self.admin, instances(self.work.namespace), lambda known: not _on(nodes, known.values()), seconds)

    def forget_migrations(self) -> None:
        """Delete all migrations, and the Lease with the claims on them."""
        self._delete(MIGRATIONS)
        self.admin.run(absent_ok(self.admin.api.request("DELETE", CLAIM_PATH)))

    def end(self) -> None:
        """Delete all migrations, VMIs and KubeVirts, and remove the nodes' taints."""
        for name in self._drained:
            self.admin.patch(node_path(name), {"spec": {"taints": []}})
        self.forget_migrations()
        self._delete(INSTANCES)
        self._delete(KUBEVIRTS)

    def _delete(self, path: str) -> None:
        prefix, _, plural = path.rpartition("/")
        for item in self.admin.list(path)["items"]:
            metadata = item["metadata"]
            where = f"{prefix}/namespaces/{metadata['namespace']}/{plural}/{metadata['name']}"
            self.admin.delete(where, uid=metadata["uid"])


def _on(nodes: list[str], vmis: Iterable[Object]) -> bool:
    return any(vmi["status"]["nodeName"] in nodes for vmi in vmis)


@pytest.fixture
def machines(work: Workload) -> Iterator[Machines]:
    """Yield a `Machines` with a new namespace and a drained node."""
    one = Machines(work)
    yield one
    one.end()
