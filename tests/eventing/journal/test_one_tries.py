"""Whoever has the turn and does not end: the others are refused at once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from eventing.journal.one_tries import OneTries
from tests.receiver import PATIENCE


def test_behind_one_that_does_not_end_only_one_waits_and_only_once() -> None:
    """A database that is alive, and whose commit does not return: threads that wait answer nobody, nor the kubelet."""
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
