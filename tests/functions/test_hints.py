"""What several looks at one place answer together."""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.hints import LookingAtState, LookingForChanges
from tests.functions.hints import tick
from tests.proofs import proves

HINT = tick()
OF = events.Reference("nodemaintenance.medik8s.io/v1beta1", "m", "nm-uid")


def changed(node: str) -> BaseCloudEvent:
    """What a look answers that has changed something there."""
    return events.event(events.LAUNCHERS_CHANGED, "protect", OF, node, cause=HINT, seed=node)


@proves("X-2")
def test_what_an_earlier_look_has_changed_is_told() -> None:
    """The last one sees it as it is, and says nothing; the same is told once."""
    looking = LookingForChanges(lambda _event: "here")
    looks = [[changed("a")], [changed("b"), changed("a")], []]

    told = looking.merged(HINT, looks, more=False)
    assert told is not None
    assert [reply.get_extension("node") for reply in told] == ["a", "b"]
    assert looking.merged(HINT, looks, more=True) is None


def test_a_look_at_the_state_stands_for_all_before() -> None:
    """It answers with all that is to be done now."""
    looking = LookingAtState(lambda _event: "here")

    assert looking.merged(HINT, [[changed("a")], []], more=False) == []
