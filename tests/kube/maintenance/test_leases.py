"""Tests for the Lease of a node, which names the maintenance that holds the node, on plain dicts."""

from __future__ import annotations

import itertools
import uuid
from datetime import datetime, timedelta, timezone

import pytest

from kube.maintenance import leases
from kube.paths import Object
from tests.kube.samples import make_maintenance

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc)


def make_held_lease(**changes: Object) -> Object:
    """Return the Lease of node-1 that the test's maintenance has held since `NOW`."""
    lease = leases.build_lease("node-1", make_maintenance(), NOW)
    return {**lease, **changes}


@pytest.mark.parametrize(
    ("minutes", "is_due", "is_expired"),
    [(0, False, False), (29, False, False), (46, True, False), (59, True, False), (61, True, True)],
)
def test_lease_is_renewed_after_half_its_duration(minutes: int, is_due: bool, is_expired: bool) -> None:
    """NMO-27: a lease of 3600 seconds is renewed after half to three quarters of that time, and then expires."""
    later = NOW + timedelta(minutes=minutes)

    assert (leases.is_renewal_due(make_held_lease(), later), leases.is_expired(make_held_lease(), later)) == (
        is_due,
        is_expired,
    )


def test_renewals_of_leases_acquired_together_are_spread() -> None:
    """Design rule 10: of 500 leases acquired at the same time, at most 20 fall due within 15 seconds."""
    maintenances = [make_maintenance() for _ in range(500)]
    for number, maintenance in enumerate(maintenances):
        maintenance["metadata"]["uid"] = str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))
    held_leases = [leases.build_lease("node-1", maintenance, NOW) for maintenance in maintenances]
    ticks = [NOW + timedelta(seconds=seconds) for seconds in range(1800, 2715, 15)]
    due_counts = [sum(leases.is_renewal_due(lease, tick) for lease in held_leases) for tick in ticks]

    assert (due_counts[0], due_counts[-1]) == (0, 500)
    assert max(after - before for before, after in itertools.pairwise(due_counts)) <= 20


def test_lease_without_renew_time_is_expired() -> None:
    """NMO-27: a lease without `renewTime` does not hold the node."""
    assert leases.is_expired({"metadata": {}, "spec": {"holderIdentity": "x"}}, NOW)


def test_lease_with_renew_time_in_year_9999_stays_valid() -> None:
    """NMO-27: a lease with the largest possible `renewTime`, by which another tool may mean "never", stays valid."""
    lease = make_held_lease(
        spec={"holderIdentity": "x", "renewTime": "9999-12-31T23:59:59.000000Z", "leaseDurationSeconds": 3600}
    )

    assert (leases.is_renewal_due(lease, NOW), leases.is_expired(lease, NOW), leases.is_available(lease, NOW)) == (
        False,
    ) * 3


def test_lease_has_documented_fields() -> None:
    """NMO-27a: the lease has the documented fields, and names the maintenance that holds it."""
    timestamp = "2026-01-02T03:04:05.000678Z"
    assert make_held_lease() == {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": "node-node-1",
            "namespace": "medik8s-leases",
            "annotations": {"nodemaintenance.dev/held-for": "nodemaintenance.medik8s.io/v1beta1 nm nm-uid"},
        },
        "spec": {
            "holderIdentity": "node-maintenance",
            "leaseDurationSeconds": 3600,
            "acquireTime": timestamp,
            "renewTime": timestamp,
            "leaseTransitions": 0,
        },
    }
    path = "/apis/coordination.k8s.io/v1/namespaces/medik8s-leases/leases/node-node-1"
    assert leases.build_lease_path("node-1") == path


def test_node_name_is_parsed_only_from_node_leases() -> None:
    """NMO-27a: a node name, which may contain dashes, is parsed only from the names of node leases."""
    names = [
        leases.parse_node_name({"metadata": {"name": name}})
        for name in ("node-worker-1", "pod-web", "worker-1", "node")
    ]

    assert names == ["worker-1", "", "", ""]


@pytest.mark.parametrize(
    ("holder", "renew_time", "is_available"),
    [
        ("another-tool", "2999-01-01T00:00:00.0Z", False),
        ("another-tool", "2020-01-01T00:00:00.0Z", True),
        ("another-tool", None, True),
        ("node-maintenance", "2999-01-01T00:00:00.0Z", True),
        ("", "2999-01-01T00:00:00.0Z", True),
        (None, "2999-01-01T00:00:00.0Z", True),
    ],
    ids=["held", "expired", "never renewed", "held by the replaced operator", "released", "no holder name"],
)
def test_released_or_expired_lease_may_be_acquired(
    holder: str | None, renew_time: str | None, is_available: bool
) -> None:
    """NMO-27a: another tool's lease may be acquired after it has expired or was released.

    A tool releases its lease by deleting it or by clearing the holder. A lease of the replaced operator may also be
    acquired.
    """
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": renew_time}

    assert leases.is_available({"metadata": {"name": "node-x"}, "spec": spec}, NOW) is is_available


def test_lease_of_product_refers_to_its_maintenance() -> None:
    """NMO-22, NMO-27: the product's lease has the holder node-maintenance and a reference to the maintenance."""
    lease = make_held_lease()

    assert lease["spec"]["holderIdentity"] == "node-maintenance"
    assert lease["spec"]["leaseDurationSeconds"] == 3600
    assert leases.parse_holder(lease) == ("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
    assert leases.is_holder(lease, make_maintenance())


@pytest.mark.parametrize(
    "lease",
    [
        make_held_lease(metadata={}),
        make_held_lease(metadata={"annotations": {leases.HOLDER_ANNOTATION: "half"}}),
        make_held_lease(metadata={"annotations": {leases.HOLDER_ANNOTATION: "nodemaintenance.medik8s.io/v1beta1 nm "}}),
        make_held_lease(
            metadata={"annotations": {leases.HOLDER_ANNOTATION: "nodemaintenance.medik8s.io/v1beta1 nm u\x7f"}}
        ),
        make_held_lease(metadata={"annotations": None}),
        make_held_lease(spec={"holderIdentity": "another-tool"}),
        make_held_lease(spec={}),
    ],
    ids=[
        "no annotation",
        "corrupt annotation",
        "no uid",
        "not a string",
        "null annotations",
        "another holder",
        "no holder",
    ],
)
def test_lease_without_identity_or_reference_belongs_to_another_tool(lease: Object) -> None:
    """NMO-27: a lease without the product's holder identity or a valid object reference belongs to another tool."""
    assert leases.parse_holder(lease) is None
    assert not leases.is_holder(lease, make_maintenance())


def test_recreated_maintenance_does_not_hold_old_lease() -> None:
    """X-2: a recreated maintenance does not hold the lease of the old one, because the lease contains the old uid."""
    recreated = make_maintenance()
    recreated["metadata"]["uid"] = "another"

    assert not leases.is_holder(make_held_lease(), recreated)


def test_takeover_of_lease_requires_resource_version_that_was_read() -> None:
    """NMO-22: if two processes acquire the lease at the same time, one of them gets a conflict."""
    lease = make_held_lease()
    expired_lease = {"metadata": {"resourceVersion": "5"}, "spec": {"holderIdentity": "x", "leaseTransitions": 3}}
    patch = leases.build_takeover_patch(expired_lease, lease)

    assert patch["metadata"] == {"resourceVersion": "5", "annotations": lease["metadata"]["annotations"]}
    assert patch["spec"] == {**lease["spec"], "leaseTransitions": 4}


def test_lease_renewal_keeps_acquire_time_and_transitions() -> None:
    """NMO-27a: a renewal changes neither `acquireTime` nor `leaseTransitions`."""
    lease = make_held_lease()
    lease["metadata"]["resourceVersion"] = "5"
    renewed_lease = leases.build_lease("node-1", make_maintenance(), NOW + timedelta(minutes=40))

    spec = leases.build_takeover_patch(lease, renewed_lease)["spec"]

    assert spec == {**lease["spec"], "renewTime": renewed_lease["spec"]["renewTime"]}
