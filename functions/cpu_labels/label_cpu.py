"""Label nodes with the CPU models and features that they offer, as virtual machines ask for them (OSV-30..39).

A change of the capabilities that nodes offer, or of the obsolete models, starts a round: the step reads all nodes page
by page and patches those whose labels differ. Each tick checks one page in turn. If that page differs, an event was
lost, and the tick starts a round from that page. If KubeVirt is installed, KubeVirt's node-labeller owns these labels
and this step does nothing.

In: a ConfigMap or HyperConverged added, updated or deleted, by reference; `labels.due`; a PingSource tick.
Out: `labels.due` while nodes remain.
Touches: configmaps list in node-maintenance; hyperconvergeds list; kubevirts list; nodes list, patch;
leases get in medik8s-leases; events create.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping, MutableMapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.event_types import REFERENCES
from eventing.events import Reference
from eventing.signatures import is_ours
from eventing.http_binding import BadEvent
from functions.cpu_labels.kubernetes_events import TOLD, announce
from functions.cpu_labels.label_patching import Relabelled, relabelled
from functions.event_data import data_of
from functions.failures import Retry
from functions.pass_strategies import LookingAtState, Subject
from functions.installs import CLAIMS, acts
from kube.cpu import capabilities, hyperconverged, lookup, node_patch
from kube.cpu.capabilities import Input
from kube.cpu.hyperconverged import Settings
from kube.cpu.lookup import Page
from kube.cpu.node_patch import Node
from kube.cpu.problems import Problem
from kube.client.api_errors import ApiError
from kube.client.discovery import has_kubevirt
from kube.client.sync_client import Cluster
from kube.paths import NAMESPACE, Object
from kube.text_limits import counted

CONSUMES = (events.TICK, *REFERENCES, events.LABELS_DUE)
EMITS = (events.LABELS_DUE,)
STEP = "label-cpu"
KINDS = (None, "ConfigMap", hyperconverged.KIND)
PASSIVE = "KubeVirt is installed, and its virt-handler labels the nodes: this install does not"
TURNS: MutableMapping[Cluster, str] = WeakKeyDictionary()
"""API client → the page after which the next tick continues. Each process has its own position."""
ROUNDS: MutableMapping[Cluster, str] = WeakKeyDictionary()
"""API client → the HyperConverged (as `_state` formats it) that started the last finished round.

An update that changes only the status of that HyperConverged starts no new round.
"""
log = logging.getLogger("functions")


class _Looking(LookingAtState):
    """Serializes passes; hints coalesce only if they start at the same page for the same reason."""

    def subject(self, event: BaseCloudEvent) -> Subject:
        """Return the key of the hint: its kind of trigger and the page at which it starts."""
        place = super().subject(event).place
        return Subject(place, f"{event.get_type()} {_after(event)}" if _is_own(event) else _kind(event))


LOOKING = _Looking(lambda _hint: "labels of nodes")


class Scene(NamedTuple):
    """Input of one pass: the HyperConverged if there is one, the capabilities, the settings and one page of nodes."""

    item: Object | None
    told: Input
    settings: Settings
    page: Page


def label_cpu(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Label one page of nodes, and emit `labels.due` if more pages remain.

    Costs two requests if no ConfigMap describes capabilities and no node is labelled. Raises `Retry` if the round is
    complete except for nodes that cannot be patched now.
    """
    scene = _seen(event, cluster) if event.get_extension("kind") in KINDS else None
    if scene is None:
        return []
    ours = [node for node in scene.page.nodes if node["metadata"]["name"] in scene.told.nodes]
    announce(filter(None, map(node_patch.skip_problem, ours)), cluster)
    done = cluster.run(relabelled(cluster.api, scene.page.nodes, lambda node: _due(node, scene)))
    if done.patched:
        log.info("%s labelled by what their CPUs offer", counted(done.patched, "node"))
    _announce_strangers(event, scene.told, cluster)
    began = _begun(event, scene)
    answer = _next(event, scene.page, done, began, cluster)
    if not answer and event.get_type() != events.TICK:
        _end(event, done, began, cluster)
    return answer


def _end(event: BaseCloudEvent, done: Relabelled, began: str, cluster: Cluster) -> None:
    """Remember the HyperConverged that started this round, which ends here. Raises `Retry` if nodes remain.

    It is remembered only at the end, so that a redelivered event after a lost reply repeats its work. An event of the
    HyperConverged itself that leaves nodes unpatched does not count either.
    """
    if began and not (done.left and _kind(event) == hyperconverged.KIND):
        ROUNDS[cluster] = began
    if done.left:
        raise Retry(done.error)


def _seen(event: BaseCloudEvent, cluster: Cluster) -> Scene | None:
    """Read the input of this pass, or return None if there is nothing to do.

    Records an Event for each problem that an administrator must fix.
    """
    api, own = cluster.api, CLAIMS.own(cluster)
    maps = cluster.run(lookup.capability_maps(api, own.namespace if own else NAMESPACE))
    page = cluster.run(lookup.nodes(api, _place(event, cluster), marked=not maps))
    if not (maps or page.nodes) or not acts(cluster):
        return None
    found, is_passive = cluster.together(lookup.hyperconvergeds(api), has_kubevirt(api))
    if is_passive:
        if TOLD.is_news(PASSIVE, cluster):
            log.info(PASSIVE)
        return None
    item, problems = hyperconverged.chosen(found)
    if _is_known(event, item, cluster):
        return None
    told, settings = capabilities.read(maps), hyperconverged.settings(item)
    if isinstance(settings, Problem):
        announce([*problems, settings, *told.problems], cluster)
        return None
    unknown = hyperconverged.strangers(item, settings)
    announce([*problems, *told.problems, *unknown], cluster)
    return Scene(item, told, settings, page)


def _announce_strangers(event: BaseCloudEvent, told: Input, cluster: Cluster) -> None:
    """Record the nodes that a ConfigMap names and that do not exist, if a ConfigMap has changed."""
    if _kind(event) != "ConfigMap":
        return
    try:
        there = cluster.run(lookup.node_names(cluster.api))
    except ApiError as error:
        log.warning("unknown nodes were not looked for: %s", error.message)
        return
    announce(capabilities.strangers(told, there), cluster)


def _due(node: Node, scene: Scene) -> Mapping[str, str] | None:
    """Return the labels that a node should carry, or None to leave it unchanged.

    The labels are empty for a node that no ConfigMap names any more.
    """
    if node_patch.is_skipped(node):
        return None
    name = node["metadata"]["name"]
    if name not in scene.told.nodes:
        return {} if scene.told.is_whole and node_patch.is_marked(node) else None
    capability = scene.told.nodes[name]
    return None if capability is None else node_patch.due_labels(capability, scene.settings)


def _next(event: BaseCloudEvent, page: Page, done: Relabelled, began: str, cluster: Cluster) -> list[BaseCloudEvent]:
    """Return the event that continues the round: empty after the last page, and after a tick that patched nothing.

    If some nodes of the page were patched and others remain, the round repeats the page; each repetition patches at
    least one node, so this ends. If no node was patched, the round skips the page and leaves it to the ticks.
    """
    place, is_tick = _place(event, cluster), event.get_type() == events.TICK
    if is_tick:
        TURNS[cluster] = page.after
        if not done.patched:
            return []
    again = done.left and done.patched
    if not (again or page.after):
        return []
    uid = event.get_extension("round") or uuid.uuid5(events.NAMESPACE, f"{event.get_source()}#{event.get_id()}")
    about = Reference("v1", "cpu-labels", str(uid), kind="Round")
    data = {"after": place if again else page.after, "began": began}
    return [events.event(events.LABELS_DUE, STEP, about, cause=event, data=data)]


def _place(event: BaseCloudEvent, cluster: Cluster) -> str:
    """Return the position at which this event's page starts, "" for the first page."""
    return TURNS.get(cluster, "") if event.get_type() == events.TICK else _after(event)


def _after(event: BaseCloudEvent) -> str:
    """Return the position in a `labels.due` event of this install. Raises `BadEvent` if it is not a string."""
    if event.get_type() != events.LABELS_DUE:
        return ""
    after = data_of(event).get("after") or ""
    if not isinstance(after, str):
        raise BadEvent("data.after is no text")
    return after if is_ours(event) else ""


def _is_known(event: BaseCloudEvent, item: Object | None, cluster: Cluster) -> bool:
    """Return whether only the status of the HyperConverged changed since it started the last finished round."""
    return _kind(event) == hyperconverged.KIND and item is not None and ROUNDS.get(cluster) == _state(item)


def _begun(event: BaseCloudEvent, scene: Scene) -> str:
    """Return the HyperConverged that started this event's round, "" if unknown (for example after a tick)."""
    if event.get_type() == events.LABELS_DUE:
        return str(data_of(event).get("began") or "") if is_ours(event) else ""
    return "" if event.get_type() == events.TICK or scene.item is None else _state(scene.item)


def _state(item: Object) -> str:
    return f"{item['metadata']['uid']} {item['metadata'].get('generation', 0)}"


def _is_own(event: BaseCloudEvent) -> bool:
    return event.get_type() in (events.TICK, events.LABELS_DUE)


def _kind(event: BaseCloudEvent) -> str:
    return str(event.get_extension("kind") or "")
