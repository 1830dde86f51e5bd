"""Tests of the lock that refuses other threads while its holder does not finish."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from itertools import islice

import pytest

from eventing.journal.fail_fast_lock import FEW, OneTries
from tests.receiver import PATIENCE

pytestmark = pytest.mark.slow


def test_behind_one_that_does_not_end_only_one_waits_and_only_once() -> None:
    """Check that one thread waits for a hanging holder until its timeout, and that later threads are refused at once.

    A database may accept a commit and not answer. Waiting threads could answer neither requests nor the kubelet's
    probes.
    """
    turns, entered, ends = OneTries(OSError), threading.Event(), threading.Event()

    def hang() -> None:
        with turns.turn(PATIENCE):
            entered.set()
            ends.wait(PATIENCE)

    with ThreadPoolExecutor(1) as thread:
        hanging = thread.submit(hang)
        entered.wait(PATIENCE)
        with pytest.raises(BlockingIOError), turns.turn(0.05):
            pass
        started = time.monotonic()
        with pytest.raises(BlockingIOError), turns.turn(PATIENCE):
            pass
        assert time.monotonic() - started < PATIENCE / 2
        ends.set()
        hanging.result(PATIENCE)

    with turns.turn(0):
        pass


def test_for_one_that_is_slow_a_few_wait_and_the_others_are_refused_soon() -> None:
    """Check that at most `FEW` threads wait for a slow holder, and that the others are refused soon.

    Otherwise events for the journal could occupy all ten threads of a process while a commit lasts.
    """
    turns = OneTries(OSError)

    def take() -> None:
        with turns.turn(PATIENCE):
            pass

    with ThreadPoolExecutor(10) as threads:
        with turns.turn(0):
            waiting = [threads.submit(take) for _ in range(10)]
            refused = list(islice(as_completed(waiting, PATIENCE / 2), 10 - FEW))
            assert [type(each.exception()) for each in refused] == [BlockingIOError] * (10 - FEW)
            assert [each.done() for each in waiting].count(False) == FEW
        assert [each.result(PATIENCE) for each in waiting if each not in refused] == [None] * FEW


def test_of_a_crowd_each_has_his_turn_where_nobody_is_slow() -> None:
    """Check that every thread of a burst acquires the lock if each holds it only briefly.

    The drains of many nodes cause such bursts, and no event should need a retry after a second.
    """
    turns, together = OneTries(OSError), threading.Barrier(11)

    def take() -> None:
        together.wait(PATIENCE)
        with turns.turn(PATIENCE, crowded=PATIENCE / 2):
            pass

    with ThreadPoolExecutor(10) as threads:
        with turns.turn(0):
            waiting = [threads.submit(take) for _ in range(10)]
            together.wait(PATIENCE)
        assert [each.result(PATIENCE) for each in waiting] == [None] * 10
