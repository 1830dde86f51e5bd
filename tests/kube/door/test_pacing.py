"""How fast evictions are sent: so many a second, in turn between nodes."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest

from kube.door.pacing import Pace, per_second


def run(scenario: Coroutine[Any, Any, Any]) -> Any:
    """The scenario on a loop of its own."""
    return asyncio.run(scenario)


async def _order(pace: Pace, *nodes: str) -> list[str]:
    """The nodes in the order in which their turns come, all asked for at once."""
    order: list[str] = []

    async def one(node: str) -> None:
        assert await pace.turn(node, 10)
        order.append(node)

    await asyncio.gather(*map(one, nodes))
    return order


def test_what_is_within_a_second_goes_at_once() -> None:
    """No turn waits while there are any."""

    async def scenario() -> float:
        pace, started = Pace(50), asyncio.get_running_loop().time()
        await _order(pace, *["a"] * 50)
        return asyncio.get_running_loop().time() - started

    assert run(scenario()) < 0.5


def test_no_second_has_more() -> None:
    """Forty more than a second has take four tenths at least, at a hundred a second."""

    async def scenario() -> float:
        pace, started = Pace(100), asyncio.get_running_loop().time()
        await _order(pace, *["a"] * 140)
        return asyncio.get_running_loop().time() - started

    assert run(scenario()) >= 0.39


def test_nodes_take_turns() -> None:
    """A node with one pod does not wait for another one's twenty."""

    async def scenario() -> list[str]:
        pace = Pace(50)
        await _order(pace, *["first"] * 50)
        return await _order(pace, *["big"] * 20, "small", "small")

    order = run(scenario())
    assert order.index("small") <= 2
    assert [index for index, node in enumerate(order) if node == "small"][1] <= 4
    assert order.count("big") == 20


def test_a_turn_that_does_not_come_in_time_is_given_up() -> None:
    """Nobody's turn is spent on it."""

    async def scenario() -> tuple[bool, bool]:
        pace = Pace(10)
        await _order(pace, *["a"] * 10)
        early, late = await asyncio.gather(pace.turn("a", 0.01), pace.turn("b", 5))
        return early, late

    assert run(scenario()) == (False, True)


def test_a_busy_server_is_left_in_peace() -> None:
    """Nobody gets a turn before the time that the server asked for."""

    async def scenario() -> float:
        pace, loop = Pace(100), asyncio.get_running_loop()
        await _order(pace, "a")
        started = loop.time()
        pace.rest(0.3)
        await _order(pace, "a", "b")
        return loop.time() - started

    assert run(scenario()) >= 0.29


@pytest.mark.parametrize("words", ["0", "-1", "fast", "nan", "inf"])
def test_a_wrong_setting_is_named_with_the_remedy(words: str) -> None:
    with pytest.raises(ValueError, match=f"EVICTIONS_PER_SECOND={words} is no number of 1 or more; unset it for 100"):
        per_second({"EVICTIONS_PER_SECOND": words})


@pytest.mark.parametrize(("environment", "expected"), [({}, 100.0), ({"EVICTIONS_PER_SECOND": "20"}, 20.0)])
def test_the_setting(environment: dict[str, str], expected: float) -> None:
    assert per_second(environment) == expected
