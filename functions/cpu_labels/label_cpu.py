"""Label nodes with the CPU models and features that they offer, which virtual machines select (OSV-30..39).

A change of the capabilities that nodes offer, or of the obsolete models, starts a round: the step reads all nodes page
by page and patches those whose labels differ. Each tick checks one page in turn. If labels on that page differ, an
event was lost, and the tick starts a round from that page. If KubeVirt is installed, KubeVirt's node-labeller owns
these labels and this step does nothing.

In: a ConfigMap or HyperConverged added, updated or deleted, by reference; `labels.due`; a PingSource tick.
Out: `labels.due` while nodes remain.
Touches: configmaps list in node-maintenance; hyperconvergeds list; kubevirts list; nodes list, patch;
leases get in medik8s-leases; events create.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, Mapping, MutableMapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import REFERENCE_TYPES, ObjectReference
from eventing.http_binding import BadEvent
from eventing.signatures import has_valid_signature
from functions.cpu_labels.label_patching import LabelResult, patch_labels
from functions.event_data import require_data
from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from functions.installs import INSTALL_LEASE_CACHE, is_active_install
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api_errors import ApiError
from kube.client.discovery import has_kubevirt
from kube.client.sync_client import SyncClient
from kube.cpu import capabilities, hyperconverged, lookup, node_patch
from kube.cpu.capabilities import CapabilityInput
from kube.cpu.hyperconverged import CpuModelSettings
from kube.cpu.lookup import Page
from kube.cpu.node_patch import Node
from kube.cpu.problems import Problem
from kube.paths import DEFAULT_NAMESPACE, Object
from kube.text_limits import format_count

STEP = "label-cpu"
HINT_KINDS = (None, "ConfigMap", hyperconverged.KIND)
PASSIVE_MESSAGE = "KubeVirt is installed, so its virt-handler labels the nodes and this install does not"
TICK_POSITIONS: MutableMapping[SyncClient, str] = WeakKeyDictionary()
"""API client → position of the page at which the next tick continues. Each process has its own positions."""
LAST_TRIGGERS: MutableMapping[SyncClient, str] = WeakKeyDictionary()
"""API client → the HyperConverged (as `_format_generation` formats it) that started the last finished round.

An update that changes only the status of that HyperConverged starts no new round.
"""
log = logging.getLogger("functions")


class Position(NamedTuple):
    """Position of a `labels.due` event: the token of the page of nodes, and the name of the first node on the page."""

    page: str = ""
    first_node: str = ""


class LabelSnapshot(NamedTuple):
    """Input of one pass: the HyperConverged if there is one, the capabilities, the settings and one page of nodes."""

    hyperconverged: Object | None
    capability_input: CapabilityInput
    settings: CpuModelSettings
    page: Page


@step(
    "label-cpu",
    consumes=(events.TICK, *REFERENCE_TYPES, events.LABELS_DUE),
    emits=(events.LABELS_DUE,),
    coalescing=HintPolicy(lambda event: WorkKey("labels of nodes", _build_coalesce_key(event))),
)
def label_cpu(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Label one page of nodes, and emit `labels.due` if more pages remain.

    Sends only two requests if no ConfigMap describes capabilities and no node is labelled. Raises `Retry` if the round
    is complete except for nodes that cannot be patched now.
    """
    first_node = _parse_position(event).first_node
    snapshot = _read_snapshot(event, client) if event.get_extension("kind") in HINT_KINDS else None
    if snapshot is None:
        return []
    named_nodes = [node for node in snapshot.page.nodes if node["metadata"]["name"] in snapshot.capability_input.nodes]
    _record_problems(filter(None, map(node_patch.find_skip_problem, named_nodes)), client)
    result = client.run(
        patch_labels(client.api, snapshot.page, lambda node: _select_labels(node, snapshot), first_node)
    )
    if result.patched_count:
        log.info("labelled %s with CPU models and features", format_count(result.patched_count, "node"))
    _report_unknown_nodes(event, snapshot.capability_input, client)
    round_trigger = _get_round_trigger(event, snapshot)
    replies = _build_next_event(event, snapshot.page, result, round_trigger, client)
    if not replies and event.get_type() != events.TICK:
        _finish_round(event, result, round_trigger, client)
    return replies


def _finish_round(event: BaseCloudEvent, result: LabelResult, round_trigger: str, client: SyncClient) -> None:
    """Store the HyperConverged that started the finished round. Raises `Retry` if nodes remain.

    The HyperConverged is stored only at the end of the round, so that a redelivered event repeats its work after a lost
    reply. If the HyperConverged's own event leaves nodes unpatched, the HyperConverged is not stored either.
    """
    if round_trigger and not (result.next_node and _get_kind(event) == hyperconverged.KIND):
        LAST_TRIGGERS[client] = round_trigger
    if result.next_node:
        raise Retry(result.error)


def _read_snapshot(event: BaseCloudEvent, client: SyncClient) -> LabelSnapshot | None:
    """Read the input of this pass, or return None if there is nothing to do.

    Records an Event for each problem that an administrator must fix.
    """
    api, account = client.api, INSTALL_LEASE_CACHE.get_account(client)
    configmaps = client.run(lookup.list_capability_configmaps(api, account.namespace if account else DEFAULT_NAMESPACE))
    page = client.run(lookup.list_node_page(api, _get_page_start(event, client), managed_only=not configmaps))
    if not (configmaps or page.nodes):
        if event.get_type() == events.TICK:
            TICK_POSITIONS.pop(client, None)  # Managed nodes may remain on the pages before this one.
        return None
    if not is_active_install(client):
        return None
    hyperconvergeds, is_passive = client.gather_all(lookup.list_hyperconvergeds(api), has_kubevirt(api))
    if is_passive:
        if EVENT_RECORDER.should_report(client.api, PASSIVE_MESSAGE):
            log.info(PASSIVE_MESSAGE)
        return None
    selected, problems = hyperconverged.select_hyperconverged(hyperconvergeds)
    if _is_already_applied(event, selected, client):
        return None
    capability_input, settings = capabilities.parse_capabilities(configmaps), hyperconverged.parse_settings(selected)
    if isinstance(settings, Problem):
        _record_problems([*problems, settings, *capability_input.problems], client)
        return None
    unknown_models = hyperconverged.find_unknown_models(selected, settings)
    _record_problems([*problems, *capability_input.problems, *unknown_models], client)
    return LabelSnapshot(selected, capability_input, settings, page)


def _record_problems(problems: Iterable[Problem], client: SyncClient) -> None:
    """Record a Warning Event on each problem's object, and log each recorded problem."""
    for problem in client.run(EVENT_RECORDER.record(client.api, problems)):
        log.warning("%s: %s", problem.reason, problem.message, extra={"fields": problem.log_fields})


def _report_unknown_nodes(event: BaseCloudEvent, capability_input: CapabilityInput, client: SyncClient) -> None:
    """Record an Event for each nonexistent node that a ConfigMap names, if the event reports a changed ConfigMap."""
    if _get_kind(event) != "ConfigMap":
        return
    try:
        node_names = client.run(lookup.list_node_names(client.api))
    except ApiError as error:
        log.warning("cannot list the nodes to find unknown node names: %s", error.message)
        return
    _record_problems(capabilities.find_unknown_nodes(capability_input, node_names), client)


def _select_labels(node: Node, snapshot: LabelSnapshot) -> Mapping[str, str] | None:
    """Return the labels that a node should carry, or None to leave the node unchanged.

    The labels are empty for a node that no ConfigMap names any longer.
    """
    if node_patch.is_skipped(node):
        return None
    name = node["metadata"]["name"]
    if name not in snapshot.capability_input.nodes:
        return {} if snapshot.capability_input.is_complete and node_patch.has_managed_label(node) else None
    capability = snapshot.capability_input.nodes[name]
    return None if capability is None else node_patch.compute_desired_labels(capability, snapshot.settings)


def _build_next_event(
    event: BaseCloudEvent, page: Page, result: LabelResult, round_trigger: str, client: SyncClient
) -> list[BaseCloudEvent]:
    """Return the event that continues the round, or none after the last page or after a tick that patched nothing.

    If nodes of the page were patched and further nodes remain, the round repeats the page from the first node for which
    no time was left. Each repetition patches at least one node, so the repetitions end. If no node was patched, the
    round skips the page and leaves it to the ticks.
    """
    page_start, is_tick = _get_page_start(event, client), event.get_type() == events.TICK
    if is_tick:
        TICK_POSITIONS[client] = page.continue_token
        if not result.patched_count:
            return []
    must_repeat = result.next_node and result.patched_count
    if not (must_repeat or page.continue_token):
        return []
    round_id = event.get_extension("round") or uuid.uuid5(events.ID_NAMESPACE, f"{event.get_source()}#{event.get_id()}")
    reference = ObjectReference("v1", "cpu-labels", str(round_id), kind="Round")
    position = {"after": page_start, "from": result.next_node} if must_repeat else {"after": page.continue_token}
    data = {**position, "began": round_trigger}
    return [events.build_event(events.LABELS_DUE, STEP, reference, cause=event, data=data)]


def _get_page_start(event: BaseCloudEvent, client: SyncClient) -> str:
    """Return the position of the page of nodes that this event must label, or "" for the first page."""
    return TICK_POSITIONS.get(client, "") if event.get_type() == events.TICK else _parse_position(event).page


def _parse_position(event: BaseCloudEvent) -> Position:
    """Return the position in a `labels.due` event of this install; any other event has the position of the first node.

    Raises `BadEvent` if a field is not a string.
    """
    if event.get_type() != events.LABELS_DUE:
        return Position()
    data = require_data(event)
    position = Position(data.get("after") or "", data.get("from") or "")
    for name, value in zip(("after", "from"), position, strict=True):
        if not isinstance(value, str):
            raise BadEvent(f"data.{name} is not a string")
    return position if has_valid_signature(event) else Position()


def _is_already_applied(event: BaseCloudEvent, hyperconverged_object: Object | None, client: SyncClient) -> bool:
    """Return whether only the HyperConverged's status has changed since it started the last finished round."""
    return (
        _get_kind(event) == hyperconverged.KIND
        and hyperconverged_object is not None
        and LAST_TRIGGERS.get(client) == _format_generation(hyperconverged_object)
    )


def _get_round_trigger(event: BaseCloudEvent, snapshot: LabelSnapshot) -> str:
    """Return uid and generation of the HyperConverged that started the event's round, "" if unknown (after a tick)."""
    if event.get_type() == events.LABELS_DUE:
        return str(require_data(event).get("began") or "") if has_valid_signature(event) else ""
    return (
        ""
        if event.get_type() == events.TICK or snapshot.hyperconverged is None
        else _format_generation(snapshot.hyperconverged)
    )


def _format_generation(hyperconverged_object: Object) -> str:
    metadata = hyperconverged_object["metadata"]
    return f"{metadata['uid']} {metadata.get('generation', 0)}"


def _build_coalesce_key(event: BaseCloudEvent) -> str:
    """Return a key that is equal for events with the same trigger and the same first node."""
    if not _is_tick_or_labels_due(event):
        return _get_kind(event)
    return f"{event.get_type()} {' '.join(_parse_position(event))}"


def _is_tick_or_labels_due(event: BaseCloudEvent) -> bool:
    return event.get_type() in (events.TICK, events.LABELS_DUE)


def _get_kind(event: BaseCloudEvent) -> str:
    return str(event.get_extension("kind") or "")
