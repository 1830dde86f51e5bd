"""Parts that die during a drain of twenty nodes, and an event that no function can take: the same on every engine."""

from __future__ import annotations

import time
import uuid

from cloudevents.core.v1.event import CloudEvent

from eventing import events
from tests.e2e.engine import Engine
from tests.e2e.faults import survives
from tests.e2e.fleet import Fleet


def test_killed_functions_cost_time_only(engine: Engine, fleet: Fleet) -> None:
    """X-2: every function's process killed with -9 and started again."""
    product = engine.product
    survives(f"{engine.name}, functions", fleet, product.kill_functions, product.start_functions)


def test_a_killed_delivery_costs_time_only(engine: Engine, fleet: Fleet) -> None:
    """X-2, X-3: the broker's data plane and all sources killed with -9 and started again."""
    product = engine.product
    survives(f"{engine.name}, delivery", fleet, product.kill_delivery, product.start_delivery)


def test_what_no_function_can_take_is_in_the_journal(engine: Engine) -> None:
    """X-6: an event that `cordon` refuses goes to the dead letters, is recorded as one, and the rest goes on."""
    poison = _poison()
    engine.post(poison)

    dead = _await_dead_letter(engine, poison.get_id())

    assert dead.get_extension("knativeerrordest") == engine.product.function_url("cordon")
    assert dead.get_extension("knativeerrorcode") == "400"
    scene = engine.scene
    path = scene.maintain(scene.node())
    scene.reaches(path)
    scene.delete(path)
    scene.gone(path)


def _poison() -> CloudEvent:
    """An event of ours whose data says nothing of what it should."""
    attributes = {"id": str(uuid.uuid4()), "source": "/tests/poison", "type": events.MAINTENANCE_BEGUN}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, ["poison"])


def _await_dead_letter(engine: Engine, key: str, seconds: float = 20.0) -> CloudEvent:
    """The event as it is recorded once it is a dead letter."""
    deadline = time.monotonic() + seconds
    while True:
        found = engine.recorded().get(key)
        if found is not None and found.get_extension("knativeerrordest"):
            return found
        assert time.monotonic() < deadline, f"no dead letter after {seconds:.0f} s; recorded: {found}"
        time.sleep(0.1)
