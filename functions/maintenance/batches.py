"""What comes of batches of evictions: one answer to hints that are about the same pods, a line in the log, the metric.

And one more answer for what was granted late: behind the look that sent it, and told by no later look of this process.
The next one may be another process's: where a node is drained on which the product runs, the broker begins anew on
another node, and sends what follows to another pod. So it is published as an answer to the event of the look that sent
it, after some time or when the process ends: each eviction is in the journal (NMO-17, NMO-17a).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from cloudevents.core.base import BaseCloudEvent

from eventing import events, marks
from eventing.signatures import signed
from functions.data import data_of, version_of
from functions.hints import Replies, State, Subject
from functions.maintenance.fleet import EVICTIONS
from functions.maintenance.subject import log_about, node_of, reference_of
from kube.door.eviction_batch import granted_late_of_all, nodes_of_late, on_granted_late
from kube.door.sync_client import Cluster
from kube.evictions import Batch
from kube.maintenance.blocked_pods import summary
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import Maintenance, group, trimmed
from kube.maintenance.progress import LONGEST_ERROR
from kube.paths import Object
from kube.resource_versions import is_as_new, newest
from kube.words import counted, fitting, shortened

Publish: TypeAlias = Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]
"""Takes the event of a look, and what else answers it."""
VERSIONS = ("podsVersion", "budgetsVersion")
"""The states that a hint speaks of: no look at it may see older ones."""
SPOKEN_OF = {events.PODS_GONE: VERSIONS[:1], events.PODS_CAME: VERSIONS[:1], events.BUDGET_OPENED: VERSIONS}
"""Hints that speak of nothing but states: a look that has seen these has done what they call for."""
TOLD_BYTES = 1_200_000
"""Of the refusals in one event: of what any server says of any number of pods; who reads an event has a bound."""
MOST_LOOKS = 100
"""Nodes whose last look is kept; of more, those that still wait for an answer."""


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

    def kept(self, _replies: Replies) -> Replies:
        """Nothing: that a node was drained, or could not be, is old by then, and evictions are told with `more`."""
        return []

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
    return told_blocked([*(data.get("blocked") or []), *resting.values()], "; ".join(filter(None, errors)))


def told_blocked(blocked: list[Object], error: str) -> Object:
    """What an event says of blocked pods: as many as it can hold, by uid, so that it is the same ones each time.

    One that was left out at times would lose since when it is blocked, and with that its pause.
    """
    ordered = sorted(blocked, key=itemgetter("uid"))
    return {"blocked": fitting(ordered, TOLD_BYTES, escaped=True), "error": shortened(error, LONGEST_ERROR)}


def _answer(
    event: BaseCloudEvent, last: BaseCloudEvent, done: Sequence[BaseCloudEvent], *, more: bool
) -> BaseCloudEvent:
    evicted = [pod for reply in done for pod in data_of(reply).get("evicted") or []]
    data = {**data_of(last), **({"evicted": evicted} if evicted else {}), **_refusals(last, done)}
    flagged = last.get_type() == events.PODS_EVICTED and (more or bool(last.get_extension("more")))
    reference, node = reference_of(event), node_of(event)
    flags = ("more",) if flagged else ()
    return events.event(last.get_type(), "evict", reference, node, cause=event, data=data, flags=flags)


def tell(maintenance: Maintenance, batch: Batch, event: BaseCloudEvent) -> None:
    """Tell what came of a batch: by the metric, but for a replay, and by the log."""
    if not marks.is_replay(event):
        _count(batch)
    _log(maintenance, batch)


def _count(batch: Batch) -> None:
    EVICTIONS.labels("evicted").inc(len(batch.evicted))
    EVICTIONS.labels("gone").inc(len(batch.gone))
    EVICTIONS.labels("blocked").inc(len(batch.blocked))


def _log(maintenance: Maintenance, batch: Batch) -> None:
    if batch.evicted:
        log_about("Evict all Pods from Node", maintenance)
    for pod in batch.evicted:
        whole = f"{pod['namespace']}/{pod['name']}"
        shown = whole if group(maintenance) is MEDIK8S else f'"{pod["name"]}"'  # as each group's document has it
        log_about(f"evicting pod {shown}", maintenance, pod=whole)
    if batch.blocked:
        log_about(f"{counted(len(batch.blocked), 'pod')} blocked", maintenance, error=summary(batch.blocked))


class Look(NamedTuple):
    """The last one at a node that ended before all its evictions were answered."""

    event: BaseCloudEvent
    maintenance: Maintenance
    cluster: Cluster


class LateEvictions:
    """Those of this process, by node."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._publish: Publish | None = None

    def publish_by(self, publish: Publish) -> None:
        """Have what comes late be published by this from now on."""
        self._publish = publish

    def expect(self, event: BaseCloudEvent, maintenance: Maintenance, cluster: Cluster) -> None:
        """The look at this event has ended, and evictions that it sent are still to be answered.

        A replay is known where no look for its maintenance is: beside a drain it would have that one's evictions told
        as its own, and in no figure.
        """
        known = self._looks.get(node_of(event))
        if known and marks.is_replay(event) and reference_of(known.event) == reference_of(event):
            return
        if len(self._looks) >= MOST_LOOKS:
            self._forget(cluster)
        told = {"apiVersion": maintenance["apiVersion"], **trimmed(maintenance)}  # its status names each pod
        self._looks[node_of(event)] = Look(event, told, cluster)
        on_granted_late(cluster.api, self._tell)

    def _forget(self, cluster: Cluster) -> None:
        """Looks of which no eviction awaits its answer any more. Those that end meanwhile, in other threads, stay."""
        before = self._looks.copy()
        awaited = cluster.run(nodes_of_late(cluster.api))
        for node, look in before.items():
            if node not in awaited and self._looks.get(node) is look:
                del self._looks[node]

    def close(self) -> None:
        """Publish what no look will take any more; what the API server is about to answer is awaited for a moment."""
        for cluster in {look.cluster for look in self._looks.values()}:
            for node, pods in cluster.run(granted_late_of_all(cluster.api)).items():
                self._tell(node, pods)
        self._looks.clear()

    def _tell(self, node: str, pods: list[dict[str, str]]) -> None:
        """Pods as in `pods.evicted`. Their look is known: nobody else sends evictions."""
        event, maintenance, _ = self._looks[node]
        tell(maintenance, Batch(evicted=pods), event)
        if self._publish:
            about, seed = reference_of(event), pods[0]["uid"]
            late = events.event(
                events.PODS_EVICTED, "evict", about, node, cause=event, seed=seed, data={"evicted": pods}
            )
            self._publish(event, [late])
