"""Reports the results of eviction batches: one merged answer to coalesced hints, log lines and a metric.

The API server may grant an eviction after the pass that sent it has ended. Usually the next pass of this process
reports that eviction. If there is none, the eviction is published as an additional answer to the event of the earlier
pass, after some time or when the process exits. The next pass may run in another process: if the drained node runs the
product itself, the broker restarts elsewhere and sends the next event to another pod. Each eviction must be in the
journal (NMO-17, NMO-17a).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple, TypeAlias

from cloudevents.core.base import BaseCloudEvent

from eventing import events, replay_extensions
from eventing.signatures import signed
from functions.event_data import data_of, version_of
from functions.pass_strategies import Replies, State, Subject
from functions.maintenance.metrics import EVICTIONS
from functions.maintenance.event_objects import log_about, node_of, reference_of
from kube.client.eviction_batch import granted_late_of_all, nodes_of_late, on_granted_late
from kube.client.sync_client import Cluster
from kube.evictions import Batch
from kube.maintenance.blocked_pods import summary
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import Maintenance, group, trimmed
from kube.maintenance.status_patch import LONGEST_ERROR
from kube.paths import Object
from kube.resource_versions import is_as_new, newest
from kube.text_limits import counted, fitting, shortened

Publish: TypeAlias = Callable[[BaseCloudEvent, list[BaseCloudEvent]], None]
"""Publishes additional replies to the event of a pass."""
VERSIONS = ("podsVersion", "budgetsVersion")
"""Data fields with the resourceVersions that a hint reports; its pass must not read an older state."""
SPOKEN_OF = {events.PODS_GONE: VERSIONS[:1], events.PODS_CAME: VERSIONS[:1], events.BUDGET_OPENED: VERSIONS}
"""Hints that report only these resourceVersions: a pass that has seen them has also handled the hint."""
TOLD_BYTES = 1_200_000
"""Maximum bytes of the blocked pods in one event.

Their number and the servers' messages are unbounded, but consumers limit the size of an event.
"""
MOST_LOOKS = 100
"""Number of nodes whose last pass is kept; above it, passes without unanswered evictions are removed."""


class LookingAtPods:
    """Strategy for passes that evict a node's pods for one maintenance; the merged answer names all evicted pods."""

    def subject(self, event: BaseCloudEvent) -> Subject:
        """Return the key of the pass: the node and the maintenance. Raises `BadEvent` if the hint is malformed."""
        for name in VERSIONS:
            version_of(event, name)
        return Subject(f"node {node_of(event)}", reference_of(event).uid)

    def newest(self, hints: Sequence[BaseCloudEvent]) -> BaseCloudEvent:
        """Return one hint that reports the newest pods and the newest budgets.

        It has the type of the hint with the newest pods, since that type shows whether the last pods are gone.
        """
        versions = {name: newest(version_of(hint, name) for hint in hints) for name in VERSIONS}
        latest = next(hint for hint in hints if version_of(hint, "podsVersion") == versions["podsVersion"])
        return signed(events.with_data(latest, versions))

    def state(self, replies: Replies) -> State:
        """Return the resourceVersions of the pods and budgets in the last reply."""
        data = data_of(replies[-1]) if replies else {}
        return {name: str(data.get(name) or "") for name in VERSIONS}

    def has_seen(self, state: State, hint: BaseCloudEvent) -> bool:
        """Return whether the hint reports only pods or budgets that a pass with this state has already seen.

        All other hints need a pass. So does a repeated `budget.opened` of PodSource, which has no `podsVersion`: no
        pass has acted on it yet.
        """
        names = SPOKEN_OF.get(hint.get_type(), ())
        return bool(names) and all(is_as_new(state.get(name, ""), version_of(hint, name)) for name in names)

    def kept(self, _replies: Replies) -> Replies:
        """Return no replies: a `node.drained` or a failure is outdated by the next answer.

        Evictions need no repetition either, since `merged` returns them in a reply flagged `more`.
        """
        return []

    def merged(self, event: BaseCloudEvent, looks: Sequence[Replies], *, more: bool) -> Replies | None:
        """Return the last pass's answer with the evictions of all passes.

        If `more` is true, only `pods.evicted` can request another pass. If a later pass failed, the answer reports the
        evictions of the earlier ones, flagged `more`, so that none is lost. The next pass then reports the failure.
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
    """Return the last pass's blocked pods, and those of earlier passes that are in backoff and were not retried."""
    data = data_of(last)
    if last.get_type() != events.PODS_EVICTED:
        return {}
    known = {pod["uid"] for name in ("evicted", "blocked") for pod in data.get(name) or []}
    earlier = [pod for reply in done for pod in data_of(reply).get("blocked") or [] if "retryAfter" in pod]
    resting = {pod["uid"]: pod for pod in earlier if pod["uid"] not in known}
    errors = dict.fromkeys([data.get("error"), *(pod["message"] for pod in resting.values())])
    return told_blocked([*(data.get("blocked") or []), *resting.values()], "; ".join(filter(None, errors)))


def told_blocked(blocked: list[Object], error: str) -> Object:
    """Build the event data for blocked pods: as many as fit, ordered by uid, so that each event names the same pods.

    If an event omitted a pod, the status would lose the time since it is blocked, which determines its backoff.
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
    """Log the batch, and count it in the metric unless the event is a replay."""
    if not replay_extensions.is_replay(event):
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
        shown = whole if group(maintenance) is MEDIK8S else f'"{pod["name"]}"'  # each API group has its own format
        log_about(f"evicting pod {shown}", maintenance, pod=whole)
    if batch.blocked:
        log_about(f"{counted(len(batch.blocked), 'pod')} blocked", maintenance, error=summary(batch.blocked))


class Look(NamedTuple):
    """The last pass on a node that ended before all of its evictions were answered."""

    event: BaseCloudEvent
    maintenance: Maintenance
    cluster: Cluster


class LateEvictions:
    """The late evictions of this process, by node: granted by the API server after their pass ended."""

    def __init__(self) -> None:
        self._looks: dict[str, Look] = {}
        self._publish: Publish | None = None

    def publish_by(self, publish: Publish) -> None:
        """Set the function that publishes late evictions."""
        self._publish = publish

    def expect(self, event: BaseCloudEvent, maintenance: Maintenance, cluster: Cluster) -> None:
        """Remember that the pass for this event has ended with unanswered evictions.

        A replay does not replace a pass for the same maintenance. Otherwise the drain's evictions would be reported as
        the replay's, and the metric would not count them.
        """
        known = self._looks.get(node_of(event))
        if known and replay_extensions.is_replay(event) and reference_of(known.event) == reference_of(event):
            return
        if len(self._looks) >= MOST_LOOKS:
            self._forget(cluster)
        told = {"apiVersion": maintenance["apiVersion"], **trimmed(maintenance)}  # without its long pod lists
        self._looks[node_of(event)] = Look(event, told, cluster)
        on_granted_late(cluster.api, self._tell)

    def _forget(self, cluster: Cluster) -> None:
        """Remove the passes whose evictions are all answered, but keep passes that other threads add meanwhile."""
        before = self._looks.copy()
        awaited = cluster.run(nodes_of_late(cluster.api))
        for node, look in before.items():
            if node not in awaited and self._looks.get(node) is look:
                del self._looks[node]

    def close(self) -> None:
        """Publish the late evictions before the process exits; wait briefly for evictions in flight."""
        for cluster in {look.cluster for look in self._looks.values()}:
            for node, pods in cluster.run(granted_late_of_all(cluster.api)).items():
                self._tell(node, pods)
        self._looks.clear()

    def _tell(self, node: str, pods: list[dict[str, str]]) -> None:
        """Publish late evictions; `pods` has the format of `pods.evicted`.

        The node's pass is always known, since only a pass sends evictions.
        """
        event, maintenance, _ = self._looks[node]
        tell(maintenance, Batch(evicted=pods), event)
        if self._publish:
            about, seed = reference_of(event), pods[0]["uid"]
            late = events.event(
                events.PODS_EVICTED, "evict", about, node, cause=event, seed=seed, data={"evicted": pods}
            )
            self._publish(event, [late])
