"""Test for the label by which the real event sources select nodes."""

from __future__ import annotations

import pytest

from kube.maintenance import objects as m
from kube.nodes import MAINTENANCE_LABEL
from kube.paths import Object
from tests.e2e.environment import E2eEnvironment

pytestmark = pytest.mark.e2e


def test_guard_restores_removed_label(environment: E2eEnvironment) -> None:
    """Design rule 10: `guard` restores a label that a user has removed, and the maintenance continues.

    The event source reports the unlabeled node as deleted, but `guard` finds that the node still exists.
    """
    name = environment.nodes[0]
    drains = environment.prepare_drains("300ms", nodes=[name])
    drains.create_maintenances()
    drains.wait_until_succeeded()
    uid = drains.get_current_maintenances()[0]["metadata"]["uid"]

    environment.cluster.kubectl("label", "node", name, f"{MAINTENANCE_LABEL}-")

    def has_label(node: Object | None) -> bool:
        return bool(node and node["metadata"]["labels"].get(MAINTENANCE_LABEL) == uid)

    drains.workload.wait_for_object(f"/api/v1/nodes/{name}", has_label)
    # The Event shows that `guard` has received the source's event.
    assert f'node "{name}" was unlabelled' in environment.cluster.kubectl("describe", "node", name).stdout
    (maintenance,) = drains.get_current_maintenances()
    assert (maintenance["metadata"]["uid"], m.is_deleting(maintenance)) == (uid, False)
    drains.end_maintenances()
    assert MAINTENANCE_LABEL not in drains.workload.read_node(name)["metadata"]["labels"]
