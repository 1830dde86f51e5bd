"""Tests for finding NodeMaintenances that conflict with a new one, and for the denial messages."""

from __future__ import annotations

import pytest

from kube.admission.refusals import build_conflict_message, build_unknown_node_message, find_conflict
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.paths import Object
from tests.kube.samples import make_maintenance
from tests.proofs import proves


def make_other_maintenance(name: str = "other", api_version: str = MEDIK8S.api_version, **metadata: object) -> Object:
    maintenance = make_maintenance()
    return {**maintenance, "apiVersion": api_version, "metadata": {**maintenance["metadata"], "name": name, **metadata}}


@proves("NMO-22", "X-7")
@pytest.mark.parametrize(
    ("existing_maintenance", "is_conflict"),
    [
        (make_other_maintenance(), True),
        # An object in another API group is a different object, even with the same name.
        (make_other_maintenance("nm", KUBEVIRT.api_version), True),
        # A deleted maintenance holds the node until its finalizer is removed.
        (
            make_other_maintenance(deletionTimestamp="2026-01-01T00:00:00Z"),
            True,
        ),
        # The API server itself rejects a second object with the same name.
        (make_other_maintenance("nm"), False),
        (make_other_maintenance(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/x"]), False),
        ({**make_other_maintenance(), "status": {"errorOnLeaseCount": 4}}, False),
    ],
)
def test_only_a_maintenance_that_claims_the_node_conflicts(existing_maintenance: Object, is_conflict: bool) -> None:
    assert find_conflict(make_maintenance(), [existing_maintenance]) == (existing_maintenance if is_conflict else None)


def test_conflict_is_found_among_several_maintenances() -> None:
    assert find_conflict(
        make_maintenance(), [make_other_maintenance("nm"), make_other_maintenance("second")]
    ) == make_other_maintenance("second")


@pytest.mark.parametrize(
    ("existing_maintenance", "remedy"),
    [
        (
            make_other_maintenance(),
            "use the existing NodeMaintenance, or delete it first: "
            "`kubectl delete nodemaintenances.nodemaintenance.medik8s.io other`",
        ),
        (
            make_other_maintenance(deletionTimestamp="2026-01-01T00:00:00Z"),
            "the existing NodeMaintenance is being deleted, so try again in a moment",
        ),
    ],
)
def test_denial_starts_with_medik8s_wording_and_ends_with_the_remedy(existing_maintenance: Object, remedy: str) -> None:
    start = "invalid nodeName, a NodeMaintenance for node node-1 already exists: other (nodemaintenance.medik8s.io); "

    assert build_conflict_message("node-1", existing_maintenance) == start + remedy
    assert (
        build_unknown_node_message("n")
        == "invalid nodeName, no node with name n found; `kubectl get nodes` lists the node names"
    )
