"""How `evict` takes hints together: which are about the same pods, and what several batches answer."""

from __future__ import annotations

from collections.abc import Sequence

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.signatures import signed
from functions.data import data_of, version_of
from functions.hints import Replies, State, Subject
from functions.maintenance.subject import node_of, reference_of
from kube.paths import Object
from kube.resource_versions import is_as_new, newest

VERSIONS = ("podsVersion", "budgetsVersion")
"""The states that a hint speaks of: no look at it may see older ones."""
SPOKEN_OF = {events.PODS_GONE: VERSIONS[:1], events.BUDGET_OPENED: VERSIONS}
"""Hints that speak of nothing but states: a look that has seen these has done what they call for."""


class LookingAtPods:
    """Looks at a node's pods for one maintenance: each may evict some, and the answer names them all."""

    def subject(self, event: BaseCloudEvent) -> Subject:
        """The maintenance, at its node. Raises `BadEvent` for a hint that no look could take."""
        for name in VERSIONS:
            version_of(event, name)
        return Subject(f"node {node_of(event)}", reference_of(event).uid)

    def newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """The hint with the newest pods, whose type says whether the last of them are gone, and the newest budgets."""
        versions = {name: newest(version_of(hint, name) for hint in hints) for name in VERSIONS}
        latest = next(hint for hint in hints if version_of(hint, "podsVersion") == versions["podsVersion"])
        return signed(events.with_data(latest, versions))

    def state(self, replies: Replies) -> State:
        """The pods and budgets of the last answer."""
        data = data_of(replies[-1]) if replies else {}
        return {name: str(data.get(name) or "") for name in VERSIONS}

    def has_seen(self, state: State, hint: BaseCloudEvent) -> bool:
        """Whether pods that went, or a budget that opened, were so by then; what asks for more is always looked at.

        So is an opening that PodSource tells again, which names no pods: nobody has acted on it.
        """
        names = SPOKEN_OF.get(hint.get_type(), ())
        return bool(names) and all(is_as_new(state.get(name, ""), version_of(hint, name)) for name in names)

    def merged(self, event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """The last look's answer, with the evictions of all; only `pods.evicted` can say that there is more to see.

        A look that failed behind one that did not is told by the next one: what was evicted may not be lost.
        """
        answers = [reply for replies in looks for reply in replies]
        done = [reply for reply in answers if reply.get_type() != events.MAINTENANCE_FAILED]
        if not answers:
            return None if more else []
        last = (done or answers)[-1]
        if more and last.get_type() != events.PODS_EVICTED:
            return None
        if len(answers) == 1 and not more:
            return answers
        return [_answer(event, last, done, more=more or last is not answers[-1])]


def _refusals(last: BaseCloudEvent, done: Sequence[BaseCloudEvent]) -> Object:
    """The last look's refusals, and those that rest since an earlier one, which it did not ask about."""
    data = data_of(last)
    if last.get_type() != events.PODS_EVICTED:
        return {}
    known = {pod["uid"] for name in ("evicted", "blocked") for pod in data.get(name) or []}
    earlier = [pod for reply in done for pod in data_of(reply).get("blocked") or [] if "retryAfter" in pod]
    resting = {pod["uid"]: pod for pod in earlier if pod["uid"] not in known}
    errors = dict.fromkeys([data.get("error"), *(pod["message"] for pod in resting.values())])
    return {"blocked": [*(data.get("blocked") or []), *resting.values()], "error": "; ".join(filter(None, errors))}


def _answer(
    event: BaseCloudEvent, last: BaseCloudEvent, done: Sequence[BaseCloudEvent], *, more: bool
) -> BaseCloudEvent:
    evicted = [pod for reply in done for pod in data_of(reply).get("evicted") or []]
    data = {**data_of(last), **({"evicted": evicted} if evicted else {}), **_refusals(last, done)}
    flagged = last.get_type() == events.PODS_EVICTED and (more or bool(last.get_extension("more")))
    reference, node = reference_of(event), node_of(event)
    flags = ("more",) if flagged else ()
    return events.event(last.get_type(), "evict", reference, node, cause=event, data=data, flags=flags)
