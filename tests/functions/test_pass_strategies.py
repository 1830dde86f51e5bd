"""Tests of how the replies of several passes are merged into one reply."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.pass_strategies import LookingAtState, LookingForChanges
from tests.functions.event_builders import tick
from tests.proofs import proves

HINT = tick()
OF = events.Reference("nodemaintenance.medik8s.io/v1beta1", "m", "nm-uid")


def changed(node: str) -> BaseCloudEvent:
    """Build the reply of a pass that changed something on this node."""
    return events.event(events.LAUNCHERS_CHANGED, "protect", OF, node, cause=HINT, seed=node)


@proves("X-2")
def test_what_an_earlier_look_has_changed_is_told() -> None:
    """Replies of all passes are merged, and a repeated reply appears once."""
    looking = LookingForChanges(lambda _event: "here")
    looks = [[changed("a")], [changed("b"), changed("a")], []]

    told = looking.merged(HINT, looks, more=False)
    assert told is not None
    assert [reply.get_extension("node") for reply in told] == ["a", "b"]
    assert looking.merged(HINT, looks, more=True) is None


def test_a_look_at_the_state_stands_for_all_before() -> None:
    """Replies of the last pass replace those of earlier passes."""
    looking = LookingAtState(lambda _event: "here")

    assert looking.merged(HINT, [[changed("a")], []], more=False) == []
