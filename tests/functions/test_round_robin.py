"""Tests for `RoundRobin`, which selects every item even if items are added and removed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from functions.round_robin import RoundRobin
from kube.paths import Object


def build_objects(*uids: str) -> list[Object]:
    return [{"metadata": {"uid": uid}} for uid in uids]


@given(st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=30), st.integers(1, 7), st.text("af"))
def test_take_returns_each_item_before_it_repeats_one(uids: set[str], count: int, start: str) -> None:
    round_robin, taken = RoundRobin(last_uid=start), []
    for _ in range(-(-len(uids) // count)):
        taken += [item["metadata"]["uid"] for item in round_robin.take(build_objects(*uids), min(count, len(uids)))]

    assert set(taken[: len(uids)]) == uids


def test_take_continues_after_uid_of_removed_item() -> None:
    round_robin = RoundRobin(last_uid="a")
    first = round_robin.take(build_objects("b", "c", "d", "e"), 2)
    second = round_robin.take(build_objects("b", "bb", "d", "e"), 2)

    assert (first, second) == (build_objects("b", "c"), build_objects("d", "e"))
    assert round_robin.take(build_objects("b", "bb", "d", "e"), 2) == build_objects("b", "bb")


@given(st.sets(st.text("abcdef", min_size=1, max_size=4), min_size=1, max_size=30), st.text("af"))
def test_rotate_puts_each_item_first_in_one_of_its_results(uids: set[str], start: str) -> None:
    round_robin = RoundRobin(last_uid=start)
    orders = [round_robin.rotate(uids, str) for _ in uids]

    assert {order[0] for order in orders} == uids
    assert all(sorted(order) == sorted(uids) for order in orders)
    assert round_robin.rotate([], str) == []


def test_rotate_starts_after_uid_passed_to_resume_after() -> None:
    round_robin = RoundRobin(last_uid="a")
    orders = [round_robin.rotate("abcd", str)]
    for last_taken in ("c", "bb"):
        round_robin.resume_after(last_taken)
        orders.append(round_robin.rotate("abcd", str))

    assert ["".join(order) for order in orders] == ["bcda", "dabc", "cdab"]
    assert round_robin.rotate("abcd", str) == list("dabc")


def test_take_of_no_items_does_not_advance() -> None:
    round_robin = RoundRobin(last_uid="b")

    assert (round_robin.take([], 5), round_robin.take(build_objects("a", "c"), 0)) == ([], [])
    assert round_robin.take(build_objects("a", "c"), 1) == build_objects("c")
