"""Label nodes with the CPU models and features that they offer, as virtual machines ask for them (OSV-30..39).

A change of what nodes offer, or of which models are obsolete, begins a round: page by page all nodes are looked at, and
those patched that differ. A tick looks at one page in turn; where that differs something was lost, and from there a
round goes on. Where KubeVirt is installed its own labeller does all this, and nothing is done here.

In: a ConfigMap or HyperConverged added, updated or deleted, by reference; `labels.due`; a PingSource tick.
Out: `labels.due` while nodes are left.
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
from eventing.wire import BadEvent
from functions.cpu_labels.announcing import TOLD, announce
from functions.cpu_labels.relabelling import Relabelled, relabelled
from functions.data import data_of
from functions.failures import Retry
from functions.hints import LookingAtState, Subject
from functions.installs import CLAIMS, acts
from kube.cpu import capabilities, hyperconverged, lookup, node_patch
from kube.cpu.capabilities import Input
from kube.cpu.hyperconverged import Settings
from kube.cpu.lookup import Page
from kube.cpu.node_patch import Node
from kube.cpu.problems import Problem
from kube.door.api_errors import ApiError
from kube.door.discovery import has_kubevirt
from kube.door.sync_client import Cluster
from kube.paths import NAMESPACE, Object
from kube.words import counted

CONSUMES = (events.TICK, *REFERENCES, events.LABELS_DUE)
EMITS = (events.LABELS_DUE,)
STEP = "label-cpu"
KINDS = (None, "ConfigMap", hyperconverged.KIND)
PASSIVE = "KubeVirt is installed, and its virt-handler labels the nodes: this install does not"
TURNS: MutableMapping[Cluster, str] = WeakKeyDictionary()
"""Door → after what the next tick goes on. Each process has its own turns."""
ROUNDS: MutableMapping[Cluster, str] = WeakKeyDictionary()
"""Door → by which HyperConverged, as `_state` names it, the round began that ended last: its status is nothing new."""
log = logging.getLogger("functions")


class _Looking(LookingAtState):
    """One page at a time. A hint stands for its like alone, since others begin elsewhere, or at less."""

    def subject(self, event: BaseCloudEvent) -> Subject:
        """What begins, or goes on, at the same node for the same reason."""
        place = super().subject(event).place
        return Subject(place, f"{event.get_type()} {_after(event)}" if _is_own(event) else _kind(event))


LOOKING = _Looking(lambda _hint: "labels of nodes")


class Scene(NamedTuple):
    """What is told of nodes and settings, by which HyperConverged if any, and a page of nodes."""

    item: Object | None
    told: Input
    settings: Settings
    page: Page


def label_cpu(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Look at one page. Where nothing says what nodes offer, and no node is labelled, that costs two requests.

    Raises `Retry` where the round has ended but for nodes that cannot be patched now.
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
    """Remember by which HyperConverged the round began that ends here. Raises `Retry` where nodes are left.

    Not before: an answer that is lost is for the same event again to give. Nor where that has nodes left itself.
    """
    if began and not (done.left and _kind(event) == hyperconverged.KIND):
        ROUNDS[cluster] = began
    if done.left:
        raise Retry(done.error)


def _seen(event: BaseCloudEvent, cluster: Cluster) -> Scene | None:
    """What there is to be done; None for nothing. What somebody has to mend is announced."""
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
    """Announce the nodes that a ConfigMap names and that are not there, when one has changed and there is time."""
    if _kind(event) != "ConfigMap":
        return
    try:
        there = cluster.run(lookup.node_names(cluster.api))
    except ApiError as error:
        log.warning("unknown nodes were not looked for: %s", error.message)
        return
    announce(capabilities.strangers(told, there), cluster)


def _due(node: Node, scene: Scene) -> Mapping[str, str] | None:
    """The labels of a node, none for one that nothing is told of any more; None for one that is left as it is."""
    if node_patch.is_skipped(node):
        return None
    name = node["metadata"]["name"]
    if name not in scene.told.nodes:
        return {} if scene.told.is_whole and node_patch.is_marked(node) else None
    capability = scene.told.nodes[name]
    return None if capability is None else node_patch.due_labels(capability, scene.settings)


def _next(event: BaseCloudEvent, page: Page, done: Relabelled, began: str, cluster: Cluster) -> list[BaseCloudEvent]:
    """The event by which the round goes on; none after the last page, and after a tick that found nothing to do.

    A page of which some nodes are left is looked at again when others were patched: that ends. Where none was, the
    round goes on without it, and it is left to the ticks.
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
    """After what the page of this event begins; "" for the first one."""
    return TURNS.get(cluster, "") if event.get_type() == events.TICK else _after(event)


def _after(event: BaseCloudEvent) -> str:
    """Where our own event says that the round goes on. Raises `BadEvent` for what is no text."""
    if event.get_type() != events.LABELS_DUE:
        return ""
    after = data_of(event).get("after") or ""
    if not isinstance(after, str):
        raise BadEvent("data.after is no text")
    return after if is_ours(event) else ""


def _is_known(event: BaseCloudEvent, item: Object | None, cluster: Cluster) -> bool:
    """Whether a HyperConverged changed in nothing but its status since the round that ended last here began by it."""
    return _kind(event) == hyperconverged.KIND and item is not None and ROUNDS.get(cluster) == _state(item)


def _begun(event: BaseCloudEvent, scene: Scene) -> str:
    """The HyperConverged by which the round of this event began; "" where that is not known, as of a tick's."""
    if event.get_type() == events.LABELS_DUE:
        return str(data_of(event).get("began") or "") if is_ours(event) else ""
    return "" if event.get_type() == events.TICK or scene.item is None else _state(scene.item)


def _state(item: Object) -> str:
    return f"{item['metadata']['uid']} {item['metadata'].get('generation', 0)}"


def _is_own(event: BaseCloudEvent) -> bool:
    return event.get_type() in (events.TICK, events.LABELS_DUE)


def _kind(event: BaseCloudEvent) -> str:
    return str(event.get_extension("kind") or "")
