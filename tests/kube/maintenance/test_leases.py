"""Tests of a node's Lease, which makes one maintenance the holder of the node, on plain dicts."""

from __future__ import annotations

import itertools
import uuid
from datetime import datetime, timedelta, timezone

import pytest

from kube.maintenance import leases
from kube.paths import Object
from tests.kube.samples import maintenance

NOW = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=timezone.utc)


def held(**changes: Object) -> Object:
    """Return the Lease of node-1, held by our maintenance since `NOW`."""
    lease = leases.lease_of("node-1", maintenance(), NOW)
    return {**lease, **changes}


@pytest.mark.parametrize(
    ("minutes", "due", "expired"),
    [(0, False, False), (29, False, False), (46, True, False), (59, True, False), (61, True, True)],
)
def test_a_lease_is_due_after_half_and_expires_at_the_end(minutes: int, due: bool, expired: bool) -> None:
    """NMO-27: a lease of 3600 seconds is renewed after half to three quarters of them, and expires at the end."""
    then = NOW + timedelta(minutes=minutes)

    assert (leases.is_due(held(), then), leases.is_expired(held(), then)) == (due, expired)


def test_what_was_acquired_together_is_not_renewed_together() -> None:
    """Rule 10: of 500 leases acquired at the same time, at most 20 fall due within 15 seconds."""
    items = [maintenance() for _ in range(500)]
    for number, item in enumerate(items):
        item["metadata"]["uid"] = str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))
    held_by = [leases.lease_of("node-1", item, NOW) for item in items]
    ticks = [NOW + timedelta(seconds=seconds) for seconds in range(1800, 2715, 15)]
    due = [sum(leases.is_due(lease, tick) for lease in held_by) for tick in ticks]

    assert (due[0], due[-1]) == (0, 500)
    assert max(after - before for before, after in itertools.pairwise(due)) <= 20


def test_a_lease_that_was_never_renewed_is_expired() -> None:
    """NMO-27: a lease without `renewTime` does not hold the node."""
    assert leases.is_expired({"metadata": {}, "spec": {"holderIdentity": "x"}}, NOW)


def test_a_lease_that_is_held_for_ever_is_nobody_elses() -> None:
    """NMO-27: a lease with the largest possible `renewTime`, by which another tool may mean "never", stays valid."""
    lease = held(spec={"holderIdentity": "x", "renewTime": "9999-12-31T23:59:59.000000Z", "leaseDurationSeconds": 3600})

    assert (leases.is_due(lease, NOW), leases.is_expired(lease, NOW), leases.is_free(lease, NOW)) == (False,) * 3


def test_a_lease_says_all_that_others_look_for() -> None:
    """NMO-27a: the lease has the form that [SRC] specifies, and names the maintenance that holds it."""
    moment = "2026-01-02T03:04:05.000678Z"
    assert held() == {
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
            "acquireTime": moment,
            "renewTime": moment,
            "leaseTransitions": 0,
        },
    }
    path = "/apis/coordination.k8s.io/v1/namespaces/medik8s-leases/leases/node-node-1"
    assert leases.lease_path("node-1") == path


def test_only_leases_of_nodes_are_read() -> None:
    """NMO-27a: only node leases have a node name, which may contain dashes; all remediators share the namespace."""
    names = [leases.node_of({"metadata": {"name": name}}) for name in ("node-worker-1", "pod-web", "worker-1", "node")]

    assert names == ["worker-1", "", "", ""]


@pytest.mark.parametrize(
    ("holder", "renewed", "free"),
    [
        ("another-tool", "2999-01-01T00:00:00.0Z", False),
        ("another-tool", "2020-01-01T00:00:00.0Z", True),
        ("another-tool", None, True),
        ("node-maintenance", "2999-01-01T00:00:00.0Z", True),
        ("", "2999-01-01T00:00:00.0Z", True),
        (None, "2999-01-01T00:00:00.0Z", True),
    ],
    ids=["held", "expired", "never renewed", "of the operator before us", "released", "nobody's"],
)
def test_which_lease_may_be_acquired(holder: str | None, renewed: str | None, free: bool) -> None:
    """NMO-27a: another tool's lease may be acquired after it has expired or was released.

    A tool releases its lease by deleting it or by clearing the holder. A lease of the replaced operator may be acquired
    too.
    """
    spec = {"holderIdentity": holder, "leaseDurationSeconds": 60, "renewTime": renewed}

    assert leases.is_free({"metadata": {"name": "node-x"}, "spec": spec}, NOW) is free


def test_ours_says_for_whom() -> None:
    """NMO-22, NMO-27: our lease has holder node-maintenance and names its object by version, name and uid."""
    lease = held()

    assert lease["spec"]["holderIdentity"] == "node-maintenance"
    assert lease["spec"]["leaseDurationSeconds"] == 3600
    assert leases.holder_of(lease) == ("nodemaintenance.medik8s.io/v1beta1", "nm", "nm-uid")
    assert leases.is_holder(lease, maintenance())


@pytest.mark.parametrize(
    "lease",
    [
        held(metadata={}),
        held(metadata={"annotations": {leases.HOLDER_ANNOTATION: "half"}}),
        held(metadata={"annotations": {leases.HOLDER_ANNOTATION: "nodemaintenance.medik8s.io/v1beta1 nm "}}),
        held(metadata={"annotations": {leases.HOLDER_ANNOTATION: "nodemaintenance.medik8s.io/v1beta1 nm u\x7f"}}),
        held(metadata={"annotations": None}),
        held(spec={"holderIdentity": "another-tool"}),
        held(spec={}),
    ],
    ids=["no annotation", "spoiled annotation", "no uid", "no text", "null annotations", "another holder", "no holder"],
)
def test_a_lease_of_another_tool_is_not_ours(lease: Object) -> None:
    """NMO-27: a lease without our holder identity or a valid object reference belongs to another tool."""
    assert leases.holder_of(lease) is None
    assert not leases.is_holder(lease, maintenance())


def test_an_object_made_anew_does_not_hold_the_old_ones_lease() -> None:
    """X-2: a recreated object does not hold the lease of the old one, because the uid decides and not the name."""
    other = maintenance()
    other["metadata"]["uid"] = "another"

    assert not leases.is_holder(held(), other)


def test_a_takeover_holds_for_the_version_that_was_read() -> None:
    """NMO-22: if two processes acquire the lease at the same time, one of them gets a conflict."""
    wanted = held()
    before = {"metadata": {"resourceVersion": "5"}, "spec": {"holderIdentity": "x", "leaseTransitions": 3}}
    patch = leases.takeover_patch(before, wanted)

    assert patch["metadata"] == {"resourceVersion": "5", "annotations": wanted["metadata"]["annotations"]}
    assert patch["spec"] == {**wanted["spec"], "leaseTransitions": 4}


def test_a_renewal_keeps_since_when_it_is_held() -> None:
    """NMO-27a: a renewal changes neither `acquireTime` nor `leaseTransitions`."""
    lease = held()
    lease["metadata"]["resourceVersion"] = "5"
    later = leases.lease_of("node-1", maintenance(), NOW + timedelta(minutes=40))

    spec = leases.takeover_patch(lease, later)["spec"]

    assert spec == {**lease["spec"], "renewTime": later["spec"]["renewTime"]}
