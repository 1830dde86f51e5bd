"""Tests of the cache of status writes: a snapshot stays valid if only this process wrote since it was taken."""

from __future__ import annotations

import pytest

from functions import status_write_cache
from functions.status_write_cache import OwnWrites, Write


@pytest.fixture
def writes() -> OwnWrites:
    """Return the cache of a process that wrote one status, for the pods in version 50."""
    writes = OwnWrites()
    writes.add("uid-1", Write("100", "104", "50"))
    return writes


@pytest.mark.parametrize(
    ("uid", "looked", "now", "pods", "holds"),
    [
        ("uid-1", "104", "104", "", True),
        ("uid-1", "100", "104", "51", True),
        ("uid-1", "100", "104", "50", True),
        ("uid-1", "100", "104", "49", False),  # the snapshot's pods are older than those of the status
        ("uid-1", "100", "104", "", False),
        ("uid-1", "99", "104", "51", False),  # another process wrote before this one
        ("uid-1", "100", "105", "51", False),  # another process wrote after this one
        ("uid-2", "100", "104", "51", False),
    ],
)
def test_a_look_holds_for_what_was_written_here_alone(
    writes: OwnWrites, uid: str, looked: str, now: str, pods: str, holds: bool
) -> None:
    """X-2, rule 1: another process's write, or a status with newer pods, makes a snapshot outdated."""
    assert writes.lie_between(uid, looked, now, pods) is holds


def test_behind_a_write_of_which_nobody_knows_the_pods_no_look_holds(writes: OwnWrites) -> None:
    """X-2: a write without a pod version makes snapshots outdated, because its node may be newer than theirs."""
    writes.add("uid-1", Write("100", "104", ""))

    assert not writes.lie_between("uid-1", "100", "104", "51")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit the cache to one write."""
    monkeypatch.setattr(status_write_cache, "KEPT", 1)


@pytest.mark.usefixtures("forgetful")
def test_of_many_the_last_ones_are_remembered(writes: OwnWrites) -> None:
    """Cache size is bounded: the latest writes are kept and older ones evicted."""
    writes.add("uid-2", Write("100", "104", "50"))

    assert not writes.lie_between("uid-1", "100", "104", "51")
    assert writes.lie_between("uid-2", "100", "104", "51")
