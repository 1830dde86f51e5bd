"""The journal of a real drain."""

from __future__ import annotations

from contextlib import closing

from eventing import events
from eventing.journal import Journal, Query
from localcluster.processes import await_ready
from tests.chain.scene import Scene


def test_a_drain_is_recorded_with_every_run(scene: Scene) -> None:
    """X-6: each event of a maintenance has the runs of the functions that took it, and what each answered."""
    path = scene.maintain_with_pods(scene.node(), 3)
    uid = scene.admin.get(path)["metadata"]["uid"]
    steps = {
        events.RESOURCE_ADDED: "begin",
        events.MAINTENANCE_BEGUN: "cordon",
        events.NODE_CORDONED: "taint",
        events.NODE_TAINTED: "evict",
        events.NODE_DRAINED: "status",
    }

    with closing(Journal(scene.product.journal)) as book:

        def runs() -> set[tuple[str, str]]:
            found = book.select(Query(maintenance=uid))
            return {(entry.event.get_type(), made.function) for entry in found for made in entry.attempts}

        await_ready("the drain's runs", lambda: set(steps.items()) <= runs(), [], 10)
        recorded = book.select(Query(maintenance=uid))

    answered = {reply["id"] for entry in recorded for made in entry.attempts for reply in made.replies}
    known = {entry.event.get_id() for entry in recorded}
    assert answered
    assert answered <= known
    assert all(made.status in (200, 204) for entry in recorded for made in entry.attempts)
    scene.delete(path)
    scene.gone(path)
