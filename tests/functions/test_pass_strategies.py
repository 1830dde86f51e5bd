"""Tests for merging the replies of several passes into one reply."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.pass_strategies import ChangeStrategy, LatestStateStrategy
from tests.functions.event_builders import build_tick
from tests.proofs import proves

HINT = build_tick()
REFERENCE = events.ObjectReference("nodemaintenance.medik8s.io/v1beta1", "m", "nm-uid")


def build_change_reply(node: str) -> BaseCloudEvent:
    """Build the reply of a pass that changed something on this node."""
    return events.build_event(events.VIRT_LAUNCHERS_WAIT_CHANGED, "protect", REFERENCE, node, cause=HINT, seed=node)


@proves("X-2")
def test_change_replies_of_all_passes_are_merged() -> None:
    """Check that the replies of all passes are merged, and that a repeated reply appears once."""
    strategy = ChangeStrategy(lambda _event: "here")
    passes = [[build_change_reply("a")], [build_change_reply("b"), build_change_reply("a")], []]

    replies = strategy.merge(HINT, passes, has_more_hints=False)
    assert replies is not None
    assert [reply.get_extension("node") for reply in replies] == ["a", "b"]
    assert strategy.merge(HINT, passes, has_more_hints=True) is None


def test_latest_state_reply_replaces_earlier_replies() -> None:
    """Check that the replies of the last pass replace the replies of earlier passes."""
    strategy = LatestStateStrategy(lambda _event: "here")

    assert strategy.merge(HINT, [[build_change_reply("a")], []], has_more_hints=False) == []
