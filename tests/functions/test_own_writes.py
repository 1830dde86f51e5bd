"""A look holds for what this process alone has written since, of pods that were no newer; else it is outdated."""

from __future__ import annotations

import pytest

from functions import own_writes
from functions.own_writes import OwnWrites, Write


@pytest.fixture
def writes() -> OwnWrites:
    """Give those of a process that has written one status, of the pods in version 50."""
    writes = OwnWrites()
    writes.add("uid-1", Write("100", "104", "50"))
    return writes


@pytest.mark.parametrize(
    ("uid", "looked", "now", "pods", "holds"),
    [
        ("uid-1", "104", "104", "", True),
        ("uid-1", "100", "104", "51", True),
        ("uid-1", "100", "104", "50", True),
        ("uid-1", "100", "104", "49", False),  # the look was before the one that is written
        ("uid-1", "100", "104", "", False),
        ("uid-1", "99", "104", "51", False),  # somebody else wrote before
        ("uid-1", "100", "105", "51", False),  # and since
        ("uid-2", "100", "104", "51", False),
    ],
)
def test_a_look_holds_for_what_was_written_here_alone(
    writes: OwnWrites, uid: str, looked: str, now: str, pods: str, holds: bool
) -> None:
    """X-2, rule 1: what others wrote, or a newer look, makes an older one worthless."""
    assert writes.lie_between(uid, looked, now, pods) is holds


def test_behind_a_write_of_which_nobody_knows_the_pods_no_look_holds(writes: OwnWrites) -> None:
    """X-2: the node was read for it, and may be newer than what the look has seen."""
    writes.add("uid-1", Write("100", "104", ""))

    assert not writes.lie_between("uid-1", "100", "104", "51")


@pytest.fixture
def forgetful(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have one write known."""
    monkeypatch.setattr(own_writes, "KEPT", 1)


@pytest.mark.usefixtures("forgetful")
def test_of_many_the_last_ones_are_remembered(writes: OwnWrites) -> None:
    """A process that maintains nodes for months grows no further."""
    writes.add("uid-2", Write("100", "104", "50"))

    assert not writes.lie_between("uid-1", "100", "104", "51")
    assert writes.lie_between("uid-2", "100", "104", "51")
