"""The lease that makes one maintenance the holder of a node, on plain dicts."""

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
    """Our lease of node-1 since NOW."""
    lease = leases.lease_of("node-1", maintenance(), NOW)
    return {**lease, **changes}


@pytest.mark.parametrize(
    ("minutes", "due", "expired"),
    [(0, False, False), (29, False, False), (46, True, False), (59, True, False), (61, True, True)],
)
def test_a_lease_is_due_after_half_and_expires_at_the_end(minutes: int, due: bool, expired: bool) -> None:
    """NMO-27: 3600 seconds, to be renewed when half of them, and at most three quarters, are over."""
    then = NOW + timedelta(minutes=minutes)

    assert (leases.is_due(held(), then), leases.is_expired(held(), then)) == (due, expired)


def test_what_was_acquired_together_is_not_renewed_together() -> None:
    """Rule 10: of 500 leases of one moment, at most 20 fall due within 15 seconds."""
    items = [maintenance() for _ in range(500)]
    for number, item in enumerate(items):
        item["metadata"]["uid"] = str(uuid.uuid5(uuid.NAMESPACE_DNS, str(number)))
    held_by = [leases.lease_of("node-1", item, NOW) for item in items]
    ticks = [NOW + timedelta(seconds=seconds) for seconds in range(1800, 2715, 15)]
    due = [sum(leases.is_due(lease, tick) for lease in held_by) for tick in ticks]

    assert (due[0], due[-1]) == (0, 500)
    assert max(after - before for before, after in itertools.pairwise(due)) <= 20


def test_a_lease_that_was_never_renewed_is_expired() -> None:
    """NMO-27: without renewTime nobody holds the node."""
    assert leases.is_expired({"metadata": {}, "spec": {"holderIdentity": "x"}}, NOW)


def test_ours_says_for_whom() -> None:
    """NMO-22, NMO-27: holder node-maintenance, and the object it is held for by version, name and uid."""
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
        held(metadata={"annotations": None}),
        held(spec={"holderIdentity": "another-tool"}),
        held(spec={}),
    ],
    ids=["no annotation", "spoiled annotation", "null annotations", "another holder", "no holder"],
)
def test_a_lease_of_another_tool_is_not_ours(lease: Object) -> None:
    """NMO-27: whatever does not say both, holder and object, is held by somebody else."""
    assert leases.holder_of(lease) is None
    assert not leases.is_holder(lease, maintenance())


def test_an_object_made_anew_does_not_hold_the_old_ones_lease() -> None:
    """X-2: the uid decides, not the name."""
    other = maintenance()
    other["metadata"]["uid"] = "another"

    assert not leases.is_holder(held(), other)


def test_a_takeover_holds_for_the_version_that_was_read() -> None:
    """NMO-22: two that take the lease at once: one of them gets a conflict."""
    wanted = held()
    patch = leases.takeover_patch({"metadata": {"resourceVersion": "5"}}, wanted)

    assert patch["metadata"] == {"resourceVersion": "5", "annotations": wanted["metadata"]["annotations"]}
    assert patch["spec"] == wanted["spec"]
