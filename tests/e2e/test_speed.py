"""How fast it is on a real broker."""

from __future__ import annotations

import statistics
import time
import uuid

import requests
from cloudevents.core.v1.event import CloudEvent

from tests.e2e.engine import Engine
from tests.e2e.fleet import NODES, PODS, TERMINATION, Fleet

EVENTS = 100


def test_a_hop_takes_milliseconds(engine: Engine) -> None:
    """From the moment an event is sent to the ingress until the function has recorded it: the median is under 10 ms."""
    session = requests.Session()
    sent: dict[str, tuple[float, float]] = {}
    for _ in range(EVENTS):
        event = _probe()
        before = time.time()
        engine.post(event, session)
        sent[event.get_id()] = (before, time.time())
        time.sleep(0.01)
    arrivals = _await_arrivals(engine, set(sent))

    hops = [(arrivals[key] - before) * 1000 for key, (before, _) in sent.items()]
    accepted = [(after - before) * 1000 for before, after in sent.values()]
    print(
        f"{engine.name}: sent to recorded, {EVENTS} events: median {statistics.median(hops):.1f} ms, "
        f"nine of ten within {statistics.quantiles(hops, n=10)[-1]:.1f} ms; "
        f"accepted after {statistics.median(accepted):.1f} ms"
    )
    assert statistics.median(hops) < 10


def test_twenty_nodes_drain_side_by_side(engine: Engine, fleet: Fleet) -> None:
    """Pods that take 5 s to end, on 20 nodes at once: all Succeeded in under 9 s, every pod evicted once."""
    fleet.fill()
    started = fleet.drain()
    took = fleet.await_succeeded(30) - started

    print(f"{engine.name}: {NODES} nodes with {PODS} pods that end in {TERMINATION}: all Succeeded after {took:.1f} s")
    assert fleet.evicted() == {pod["metadata"]["uid"]: 1 for pod in fleet.pods}
    fleet.restore()
    assert took < 9


def _probe() -> CloudEvent:
    attributes = {"id": str(uuid.uuid4()), "source": "/tests/speed", "type": "example.probe"}
    return CloudEvent({**attributes, "datacontenttype": "application/json"}, {})


def _await_arrivals(engine: Engine, ids: set[str], seconds: float = 10.0) -> dict[str, float]:
    """When each of the events was recorded."""
    deadline = time.monotonic() + seconds
    while not ids <= (arrivals := engine.arrivals()).keys():
        assert time.monotonic() < deadline, f"{len(ids - arrivals.keys())} of {len(ids)} events were never recorded"
        time.sleep(0.05)
    return arrivals
