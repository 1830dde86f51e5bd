"""Label nodes with the CPU models and features that they offer, which virtual machines select (OSV-30..39).

A change of the nodes' CPU capabilities or of the obsolete CPU models starts a full relabelling (a "round"). In a
round, the step reads all nodes page by page and patches those whose labels are outdated. Each PingSource event checks
the next page of nodes. Outdated labels on that page mean that an event was lost, so the step starts a round at that
page. If KubeVirt is installed, KubeVirt's node-labeller owns these labels and this step does nothing.

In: a ConfigMap or HyperConverged added, updated or deleted, by reference; `labels.due`; a PingSource tick.
Out: `labels.due` while nodes remain.
Touches: configmaps list in node-maintenance; hyperconvergeds list; kubevirts list; nodes list, patch;
leases get in medik8s-leases; events create.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable, MutableMapping
from typing import NamedTuple
from weakref import WeakKeyDictionary

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import REFERENCE_TYPES, ObjectReference
from eventing.http_binding import BadEvent
from eventing.signatures import has_valid_signature
from functions.event_data import require_data
from functions.event_recorder import EVENT_RECORDER
from functions.failures import Retry
from functions.installs import INSTALL_LEASE_CACHE, is_active_install
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api import JSON_PATCH, Api, gather_all
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import has_seconds_left
from kube.client.discovery import has_kubevirt
from kube.client.sync_client import SyncClient
from kube.cpu_labels import capabilities, hyperconverged, lookup, node_patch
from kube.cpu_labels.capabilities import CapabilityInput
from kube.cpu_labels.hyperconverged import CpuModelSettings
from kube.cpu_labels.lookup import Page
from kube.cpu_labels.node_patch import Node
from kube.cpu_labels.problems import Problem
from kube.nodes import build_node_path
from kube.paths import DEFAULT_NAMESPACE, Object
from kube.text_limits import format_count

STEP = "label-cpu"
HINT_KINDS = (None, "ConfigMap", hyperconverged.KIND)
PASSIVE_MESSAGE = "KubeVirt is installed, so its virt-handler labels the nodes and this install does not"
TICK_POSITIONS: MutableMapping[SyncClient, str] = WeakKeyDictionary()
"""Map from an API client to the continue token of the page of nodes that the next PingSource event checks.

Each process has its own positions.
"""
LAST_TRIGGERS: MutableMapping[SyncClient, str] = WeakKeyDictionary()
"""Map from an API client to the HyperConverged generation that the last relabelling of all nodes applied.

`_format_generation` formats the value. With it, the step ignores an update that changes only the HyperConverged's
status.
"""
BATCH_SIZE, MIN_BATCH_SECONDS = 25, 0.5
"""Number of nodes to patch concurrently, and minimum seconds before the deadline to start another batch."""
log = logging.getLogger("functions")


class Position(NamedTuple):
    """Page and node at which a pass begins.

    Attributes:
        page: The continue token of the page of nodes, "" for the first page.
        first_node: The name of the first node to label on the page, "" to label the whole page.
        trigger_generation: The HyperConverged generation that started the relabelling of all nodes, "" if unknown.
    """

    page: str = ""
    first_node: str = ""
    trigger_generation: str = ""


class LabelSnapshot(NamedTuple):
    """Input of one pass: the HyperConverged (if any), the CPU capabilities, the settings and one page of nodes."""

    hyperconverged: Object | None
    capability_input: CapabilityInput
    settings: CpuModelSettings
    page: Page


class LabelResult(NamedTuple):
    """Result of labelling one page of nodes.

    Attributes:
        patched_count: Number of patched nodes.
        next_node: Name of the node at which another pass must begin, "" if all nodes are labelled. It is the first node
            that was not reached before the deadline, or else the first one whose patch failed with a transient error.
        error: Why another pass is needed: the last transient error, or that the deadline has passed.
    """

    patched_count: int
    next_node: str
    error: str


@step(
    "label-cpu",
    consumes=(events.TICK, *REFERENCE_TYPES, events.LABELS_DUE),
    emits=(events.LABELS_DUE,),
    coalescing=HintPolicy(lambda event: WorkKey("labels of nodes", _build_coalesce_key(event))),
)
def label_cpu(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Label one page of nodes, and emit `labels.due` if more pages remain.

    Sends only two requests if no ConfigMap describes CPU capabilities and no node is labelled. Raises `Retry` after the
    last page if patches of nodes failed with a transient error.
    """
    is_tick = event.get_type() == events.TICK
    position = Position(TICK_POSITIONS.get(client, "")) if is_tick else _parse_position(event)
    snapshot = _read_snapshot(event, position.page, client) if event.get_extension("kind") in HINT_KINDS else None
    if snapshot is None:
        return []
    named_nodes = [node for node in snapshot.page.nodes if node["metadata"]["name"] in snapshot.capability_input.nodes]
    _record_problems(filter(None, map(node_patch.find_skip_problem, named_nodes)), client)
    result = client.run(_patch_nodes_of_page(client.api, snapshot, position.first_node))
    if result.patched_count:
        log.info("labelled %s with CPU models and features", format_count(result.patched_count, "node"))
    _report_unknown_nodes(event, snapshot.capability_input, client)
    if is_tick:
        TICK_POSITIONS[client] = snapshot.page.continue_token
        if not result.patched_count:
            return []
    elif event.get_type() != events.LABELS_DUE:
        position = position._replace(trigger_generation=_format_generation(snapshot.hyperconverged))
    if next_data := _build_next_position(position, snapshot.page, result):
        return [_build_labels_due(event, {**next_data, "began": position.trigger_generation})]
    if not is_tick:
        _finish_relabelling(event, result, position.trigger_generation, client)
    return []


def _finish_relabelling(
    event: BaseCloudEvent, result: LabelResult, trigger_generation: str, client: SyncClient
) -> None:
    """Store the HyperConverged generation that the finished relabelling applied. Raises `Retry` if nodes remain.

    The generation is stored only at the end. If a reply is lost, the redelivered event therefore repeats the
    relabelling. The generation is not stored either if the HyperConverged's own event leaves nodes unpatched.
    """
    if trigger_generation and not (result.next_node and _get_event_kind(event) == hyperconverged.KIND):
        LAST_TRIGGERS[client] = trigger_generation
    if result.next_node:
        raise Retry(result.error)


def _read_snapshot(event: BaseCloudEvent, page_token: str, client: SyncClient) -> LabelSnapshot | None:
    """Read the input of this pass; return None if this install must not label any node now.

    Records an Event for each problem that an administrator must fix.
    """
    api, account = client.api, INSTALL_LEASE_CACHE.get_account(client)
    configmaps = client.run(lookup.list_capability_configmaps(api, account.namespace if account else DEFAULT_NAMESPACE))
    page = client.run(lookup.list_node_page(api, page_token, managed_only=not configmaps))
    if not (configmaps or page.nodes):
        if event.get_type() == events.TICK:
            TICK_POSITIONS.pop(client, None)  # Labelled nodes may remain on earlier pages: continue on the first page.
        return None
    if not is_active_install(client):
        return None
    hyperconvergeds, is_passive = client.gather_all(lookup.list_hyperconvergeds(api), has_kubevirt(api))
    if is_passive:
        if EVENT_RECORDER.should_report(client.api, PASSIVE_MESSAGE):
            log.info(PASSIVE_MESSAGE)
        return None
    selected, problems = hyperconverged.select_hyperconverged(hyperconvergeds)
    if _get_event_kind(event) == hyperconverged.KIND and LAST_TRIGGERS.get(client) == _format_generation(selected):
        return None  # Only the HyperConverged's status has changed since the last relabelling of all nodes.
    capability_input, settings = capabilities.parse_capabilities(configmaps), hyperconverged.parse_settings(selected)
    problems += capability_input.problems
    if isinstance(settings, Problem):
        _record_problems([settings, *problems], client)
        return None
    _record_problems([*problems, *hyperconverged.find_unknown_models(selected, settings)], client)
    return LabelSnapshot(selected, capability_input, settings, page)


def _record_problems(problems: Iterable[Problem], client: SyncClient) -> None:
    """Record a Warning Event on each problem's object, and log each recorded problem."""
    for problem in client.run(EVENT_RECORDER.record(client.api, problems)):
        log.warning("%s: %s", problem.reason, problem.message, extra={"fields": problem.log_fields})


def _report_unknown_nodes(event: BaseCloudEvent, capability_input: CapabilityInput, client: SyncClient) -> None:
    """Record an Event for each nonexistent node that a ConfigMap names, if a changed ConfigMap triggered the pass."""
    if _get_event_kind(event) != "ConfigMap":
        return
    try:
        node_names = client.run(lookup.list_node_names(client.api))
    except ApiError as error:
        log.warning("cannot list the nodes to find unknown node names: %s", error.message)
        return
    _record_problems(capabilities.find_unknown_nodes(capability_input, node_names), client)


def _build_next_position(position: Position, page: Page, result: LabelResult) -> dict[str, str] | None:
    """Return the position, as event data, at which the next pass continues, or None after the last page.

    If the pass patched only some nodes of the page, the next pass repeats the page from `result.next_node`. Each
    repetition patches at least one node, so the repetitions end. If the pass patched no node, the next pass skips the
    page; a later PingSource event checks that page again.
    """
    if result.next_node and result.patched_count:
        return {"after": position.page, "from": result.next_node}
    return {"after": page.continue_token} if page.continue_token else None


def _build_labels_due(cause: BaseCloudEvent, data: dict[str, str]) -> BaseCloudEvent:
    """Build `labels.due`, which continues the relabelling of `cause`, or starts one with an id derived from `cause`."""
    round_id = cause.get_extension("round") or uuid.uuid5(events.ID_NAMESPACE, f"{cause.get_source()}#{cause.get_id()}")
    reference = ObjectReference("v1", "cpu-labels", str(round_id), kind="Round")
    return events.build_event(events.LABELS_DUE, STEP, reference, cause=cause, data=data)


def _parse_position(event: BaseCloudEvent) -> Position:
    """Return the position in a signed `labels.due` event; for any other event, return the position of the first node.

    Raises `BadEvent` if a field of the position is not a string.
    """
    if event.get_type() != events.LABELS_DUE:
        return Position()
    data = require_data(event)
    position = Position(data.get("after") or "", data.get("from") or "", str(data.get("began") or ""))
    for name, value in zip(("after", "from"), position, strict=False):
        if not isinstance(value, str):
            raise BadEvent(f"data.{name} is not a string")
    return position if has_valid_signature(event) else Position()


def _format_generation(hyperconverged_object: Object | None) -> str:
    """Return the uid and generation of a HyperConverged as one string, or "" for None."""
    metadata = hyperconverged_object["metadata"] if hyperconverged_object else {}
    return f"{metadata['uid']} {metadata.get('generation', 0)}" if metadata else ""


def _build_coalesce_key(event: BaseCloudEvent) -> str:
    """Return the key by which the work queue coalesces events: their type or object kind, and their position."""
    if event.get_type() not in (events.TICK, events.LABELS_DUE):
        return _get_event_kind(event)
    return f"{event.get_type()} {' '.join(_parse_position(event)[:2])}"


def _get_event_kind(event: BaseCloudEvent) -> str:
    return str(event.get_extension("kind") or "")


async def _patch_nodes_of_page(api: Api, snapshot: LabelSnapshot, first_node: str) -> LabelResult:
    """Patch the nodes of a page whose labels are outdated, in concurrent batches, until the deadline has passed.

    A rejected patch is logged; it neither stops the other patches nor triggers another pass. The nodes of a page are
    ordered by name; an earlier pass has patched those before `first_node`.
    """
    nodes = [node for node in snapshot.page.nodes if node["metadata"]["name"] >= first_node]
    differing = [node for node in nodes if _build_label_patch(node, snapshot)]
    outcomes: list[bool | str] = []
    for start in range(0, len(differing), BATCH_SIZE):
        if start and not has_seconds_left(MIN_BATCH_SECONDS):
            break
        batch = differing[start : start + BATCH_SIZE]
        outcomes += await gather_all(*(_patch_node(api, node, snapshot) for node in batch))
    failed = [pair for pair in zip(differing, outcomes, strict=False) if isinstance(pair[1], str)]
    remaining = [*differing[len(outcomes) :], *(node for node, _message in failed)]
    return LabelResult(
        outcomes.count(True),
        remaining[0]["metadata"]["name"] if remaining else "",
        str(failed[-1][1]) if failed else "the deadline passed before all nodes were labelled",
    )


async def _patch_node(api: Api, node: Object, snapshot: LabelSnapshot) -> bool | str:
    """Patch one node; return whether the node was patched, or the error message if a retry may succeed.

    If the page is outdated, the function reads the node again first. After a conflict, the function does not retry,
    because the other writer may have used a newer ConfigMap. The next pass reads all inputs again.
    """
    name = node["metadata"]["name"]
    try:
        current_node = await lookup.read_node(api, name) if snapshot.page.is_outdated else node
        operations = _build_label_patch(current_node, snapshot) if current_node else []
        if operations:
            await api.patch(build_node_path(name), operations, JSON_PATCH)
        return bool(operations)
    except NotFound:
        return False
    except Conflict as error:
        failure: ApiError = Unavailable(error.status, "another client changed the node at the same time")
    except ApiError as error:
        failure = error
    log.error("cannot label a node: %s", failure.message, extra={"fields": {"reconciler kind": "Node", "name": name}})
    return failure.message if isinstance(failure, Unavailable) else False


def _build_label_patch(node: Node, snapshot: LabelSnapshot) -> list[Object]:
    return node_patch.build_node_patch(node, snapshot.capability_input, snapshot.settings)
