"""Tests of which NodeMaintenances conflict with a new one, and of the denial messages."""

from __future__ import annotations

import pytest

from kube.admission.refusals import in_the_way, second_maintenance, unknown_node
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.paths import Object
from tests.kube.samples import maintenance
from tests.proofs import proves


def other(name: str = "other", api_version: str = MEDIK8S.api_version, **metadata: object) -> Object:
    found = maintenance()
    return {**found, "apiVersion": api_version, "metadata": {**found["metadata"], "name": name, **metadata}}


@proves("NMO-22", "X-7")
@pytest.mark.parametrize(
    ("known", "stands"),
    [
        (other(), True),
        (other("nm", KUBEVIRT.api_version), True),  # a different object: the API group differs
        (other(deletionTimestamp="2026-01-01T00:00:00Z"), True),  # it holds the node until its finalizer is removed
        (other("nm"), False),  # the API server itself reports that it already exists
        (other(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["example.com/x"]), False),
        ({**other(), "status": {"errorOnLeaseCount": 4}}, False),
    ],
)
def test_who_answers_for_the_node_is_in_the_way(known: Object, stands: bool) -> None:
    assert in_the_way(maintenance(), [known]) == (known if stands else None)


def test_of_two_the_one_in_the_way_is_found() -> None:
    assert in_the_way(maintenance(), [other("nm"), other("second")]) == other("second")


@pytest.mark.parametrize(
    ("known", "remedy"),
    [
        (
            other(),
            "use that one, or delete it first: `kubectl delete nodemaintenances.nodemaintenance.medik8s.io other`",
        ),
        (other(deletionTimestamp="2026-01-01T00:00:00Z"), "it is being deleted, so try again in a moment"),
    ],
)
def test_the_operators_words_come_first_and_the_remedy_behind(known: Object, remedy: str) -> None:
    start = "invalid nodeName, a NodeMaintenance for node node-1 already exists: other (nodemaintenance.medik8s.io); "

    assert second_maintenance("node-1", known) == start + remedy
    assert unknown_node("n") == "invalid nodeName, no node with name n found; `kubectl get nodes` lists their names"
