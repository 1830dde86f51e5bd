"""Virtual machines on the quiet cluster, which go after each test: both steps look at all of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

from kube.door.api import absent_ok
from kube.door.discovery import KUBEVIRTS
from kube.nodes import node_path
from kube.paths import Object
from kube.virtualization.machines import INSTANCES, MIGRATIONS
from kube.virtualization.migration_claim import CLAIM_PATH
from tests.kubevirt import instances, migrations
from tests.waiting import until
from tests.workload import Workload

DRAINING = {"key": "kubevirt.io/drain", "value": "draining", "effect": "NoSchedule"}


class Machines:
    """A namespace with virtual machines, and one node that is drained by hand."""

    def __init__(self, work: Workload) -> None:
        self.work, self.admin = work, work.admin
        self._drained: list[str] = []
        self.node = self.drained()

    def drained(self) -> str:
        """Give another node that is drained by hand."""
        name = self.work.node()
        self._drained.append(name)
        self.admin.patch(node_path(name), {"spec": {"taints": [DRAINING]}})
        return name

    def taint(self, *taints: Object) -> None:
        """Give the node these taints and no others."""
        self.admin.patch(node_path(self.node), {"spec": {"taints": list(taints)}})

    def create(self, body: Object) -> Object:
        """Create a VMI."""
        return self.admin.create(instances(self.work.namespace), body)

    def migrations(self) -> dict[str, str]:
        """Name of each migration → the VMI that it moves."""
        items = self.admin.list(migrations(self.work.namespace))["items"]
        return {item["metadata"]["name"]: item["spec"]["vmiName"] for item in items}

    def node_of(self, name: str) -> str:
        """Where a VMI is."""
        return str(self.admin.get(f"{instances(self.work.namespace)}/{name}")["status"]["nodeName"])

    def await_elsewhere(self, nodes: list[str], seconds: float) -> None:
        """Wait until no VMI is on any of these nodes."""
        until(self.admin, instances(self.work.namespace), lambda known: not _on(nodes, known.values()), seconds)

    def forget_migrations(self) -> None:
        """Delete all migrations, and what is claimed of any."""
        self._delete(MIGRATIONS)
        self.admin.run(absent_ok(self.admin.api.request("DELETE", CLAIM_PATH)))

    def end(self) -> None:
        """Take away all of it, and the nodes' taints."""
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
    """Give these."""
    one = Machines(work)
    yield one
    one.end()
