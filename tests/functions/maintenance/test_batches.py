"""What becomes of a batch that was not done: tried again at once where others went, else after a pause (rule 9)."""

from __future__ import annotations

import pytest

from functions.maintenance.evict import _more
from kube.budgets import Blocked
from kube.evictions import Batch
from kube.paths import Object
from tests.kube.samples import maintenance, pod

NOBODY = maintenance({})


def blocked(name: str, reason: str) -> Blocked:
    return Blocked({"namespace": "ns", "name": name, "uid": f"ns-{name}-uid"}, reason, "why")


def known(name: str, reason: str) -> Object:
    """A maintenance whose status has that pod blocked."""
    return maintenance({"blockedPods": [{"namespace": "ns", "name": name, "reason": reason}]})


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_with_progress_elsewhere_it_is_tried_again_at_once(reason: str) -> None:
    """It is not blocked: the next look sees whether it was done."""
    batch = Batch(evicted=[{"uid": "x"}], blocked=[blocked("a", reason), blocked("b", "Error")])

    assert _more(batch, NOBODY)
    assert [item.reason for item in batch.blocked] == ["Error"]


@pytest.mark.parametrize("reason", ["NoAnswer", "Changing", "Busy"])
def test_without_progress_it_is_blocked(reason: str) -> None:
    """Nothing went: no haste."""
    batch = Batch(blocked=[blocked("a", reason)])

    assert not _more(batch, NOBODY)
    assert [item.reason for item in batch.blocked] == [reason]


def test_one_that_was_blocked_before_stays_so() -> None:
    """Others go beside it, again and again; its pause grows all the same."""
    batch = Batch(evicted=[{"uid": "x"}], blocked=[blocked("a", "NoAnswer")])

    assert not _more(batch, known("a", "NoAnswer"))
    assert [item.reason for item in batch.blocked] == ["NoAnswer"]


def test_whose_turn_did_not_come_goes_on_at_once_only_with_progress() -> None:
    """A server too slow to evict any is not asked again in the same breath; the status says why."""
    fast, slow = Batch(gone=[{"uid": "x"}], unsent=[pod("a")]), Batch(unsent=[pod("a")])

    assert _more(fast, NOBODY)
    assert not _more(slow, NOBODY)
    assert [(item.pod["name"], item.reason) for item in slow.blocked] == [("a", "NoTime")]


def test_what_is_under_way_is_neither_blocked_nor_a_reason_for_haste() -> None:
    """Its pod will be seen to go; those whose turn did not come are next."""
    assert not _more(Batch(under_way=[{"uid": "x"}]), NOBODY)
    assert _more(Batch(under_way=[{"uid": "x"}], unsent=[pod("a")]), NOBODY)
