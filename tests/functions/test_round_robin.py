"""Tests of `Turns`: every item gets a turn although items are added and removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from functions.round_robin import Turns
from kube.paths import Object


def items(*uids: str) -> list[Object]:
    return [{"metadata": {"uid": uid}} for uid in uids]


@given(st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=30), st.integers(1, 7), st.text("af"))
def test_once_round_takes_each_once(uids: set[str], count: int, start: str) -> None:
    turns, taken = Turns(after=start), []
    for _ in range(-(-len(uids) // count)):
        taken += [item["metadata"]["uid"] for item in turns.take(items(*uids), min(count, len(uids)))]

    assert set(taken[: len(uids)]) == uids


def test_it_goes_on_after_the_last_one_though_that_is_gone() -> None:
    turns = Turns(after="a")
    first = turns.take(items("b", "c", "d", "e"), 2)
    second = turns.take(items("b", "bb", "d", "e"), 2)

    assert (first, second) == (items("b", "c"), items("d", "e"))
    assert turns.take(items("b", "bb", "d", "e"), 2) == items("b", "bb")


@given(st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=30), st.text("af"))
def test_each_is_the_first_of_all_once(uids: set[str], start: str) -> None:
    turns = Turns(after=start)
    orders = [turns.begin(uids, str) for _ in uids]

    assert {order[0] for order in orders} == uids
    assert all(sorted(order) == sorted(uids) for order in orders)
    assert turns.begin([], str) == []


def test_where_the_time_was_over_those_that_were_left_out_come_first() -> None:
    turns = Turns(after="a")
    orders = [turns.begin("abcd", str)]
    for last in ("c", "bb"):
        turns.stopped_at(last)
        orders.append(turns.begin("abcd", str))

    assert ["".join(order) for order in orders] == ["bcda", "dabc", "cdab"]
    assert turns.begin("abcd", str) == list("dabc")


def test_nobody_and_no_turn_change_nothing() -> None:
    turns = Turns(after="b")

    assert (turns.take([], 5), turns.take(items("a", "c"), 0)) == ([], [])
    assert turns.take(items("a", "c"), 1) == items("c")
