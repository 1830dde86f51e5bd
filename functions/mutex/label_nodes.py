"""Label the nodes of a run, one label per rule; a labelled node is not upgraded (step 4, MUT-33, MUT-35, MUT-43).

If the patch of one node is rejected or hangs, the step still labels the other nodes.

In: `pools.paused`. Out: `nodes.labelled`, or `pools.paused` if the deadline has passed before all nodes are labelled.
While the control plane is being upgraded, the step emits no event: the next change of the ClusterVersion triggers it
again.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; nodes get, list, patch; clusterversions get.
"""

from __future__ import annotations

from contextlib import nullcontext

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.best_effort import raise_first_error
from functions.mutex.active_run import ActiveRun, read_repairable_run
from functions.mutex.event_objects import Replies, log_failure, report_refusals, utc_now, write_status
from functions.steps import step
from kube.client.api import JSON_PATCH, get_or_none
from kube.client.api_errors import ApiError
from kube.client.deadline import get_seconds_left, has_seconds_left, set_deadline
from kube.client.sync_client import SyncClient
from kube.mutex import lookup
from kube.mutex.nodes import build_run_labels_patch, has_run_labels
from kube.mutex.objects import Condition
from kube.mutex.run_record import RunRecord, is_recorded_node, list_recorded_rules, list_unreleased_nodes
from kube.mutex.validation import build_control_plane_condition, build_outside_workers_condition, format_names
from kube.mutex.versions import parse_desired_version
from kube.nodes import build_node_path
from kube.paths import Object
from kube.text_limits import format_count
from kube.times import format_time

APPLIED_CONDITION = "MutexRulesApplied"
BATCH_SIZE, MIN_BATCH_SECONDS = 25, 0.5
"""Number of nodes to patch concurrently, and minimum seconds before the deadline to start another batch."""


@step(
    "label-nodes",
    consumes=(events.POOLS_PAUSED,),
    emits=(events.NODES_LABELLED, events.POOLS_PAUSED),
    on_failure=log_failure,
)
@report_refusals(APPLIED_CONDITION, "ApplyFailed")
def label_nodes(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Label each unreleased node that lacks a rule's label, and drop nodes that no longer exist from the run.

    The function reads the nodes before the run's record. If a node is released in between, its resourceVersion changes,
    so the function's patch fails with a conflict.
    """
    active_run = read_repairable_run(event, client, "labelledAt")
    if active_run is None or not active_run.record.get("pausedAt") or _waits_for_control_plane(active_run, client):
        return []
    dropped = _label_in_batches(list_unlabelled_nodes(active_run.record, client), event, client)
    if dropped is None:
        return active_run.build_reply(events.POOLS_PAUSED, "label-nodes", event)
    active_run = read_repairable_run(event, client, "labelledAt")
    if active_run is None:
        return []
    nodes = {name: {"droppedAt": format_time(utc_now())} for name in dropped}
    change: Object = {"nodes": nodes} if nodes else {}
    conditions = [_build_condition(active_run, dropped)]
    if not active_run.record.get("labelledAt"):
        change |= {"labelledAt": format_time(utc_now())}
        conditions.append(_build_outside_workers_condition(active_run, client))
    active_run = active_run.write_record(client, change, *conditions)
    return active_run.build_reply_unless_halted(events.NODES_LABELLED, "label-nodes", event)


def _waits_for_control_plane(active_run: ActiveRun, client: SyncClient) -> bool:
    """Return whether the labelling must wait for the control plane's upgrade, and report the wait in a condition.

    The labelling waits if the pools were paused early (C26), or if a different version was requested while the run
    waited for other runs (MUT-32). A run whose nodes were all labelled before does not wait.
    """
    if active_run.record.get("labelledAt"):
        return False
    cluster_version = client.run(lookup.find_cluster_version(client.api))
    condition = build_control_plane_condition(parse_desired_version(cluster_version))
    write_status(active_run.run, client, {}, [condition])
    return not condition.holds


def list_unlabelled_nodes(record: RunRecord, client: SyncClient) -> list[str]:
    """Return the unreleased nodes that lack a rule's label, using one list request.

    A pass skips nodes that an earlier pass has labelled, so that all nodes of a large run are labelled eventually.
    """
    listed = client.run(lookup.list_labelled_nodes(client.api, record["id"], None))
    gated = {
        node["metadata"]["uid"] for node in listed if has_run_labels(node, record["id"], list_recorded_rules(record))
    }
    return [name for name in list_unreleased_nodes(record) if record["nodes"][name]["uid"] not in gated]


def _label_in_batches(node_names: list[str], event: BaseCloudEvent, client: SyncClient) -> list[str] | None:
    """Label the nodes in batches; return the nodes that no longer exist, or None if the deadline has passed.

    Raises the error of a node that could not be labelled, after all batches or at the deadline. Without this error,
    `pools.paused` would trigger the next pass immediately, which would repeat the same errors in a tight loop.
    """
    missing, errors = list[str](), list[ApiError]()
    for start in range(0, len(node_names), BATCH_SIZE):
        if start and not has_seconds_left(MIN_BATCH_SECONDS):
            raise_first_error(errors)
            return None
        batch, has_more_batches = node_names[start : start + BATCH_SIZE], start + BATCH_SIZE < len(node_names)
        try:
            missing += _label_batch(batch, event, client, has_more_batches=has_more_batches)
        except ApiError as error:
            errors.append(error)
    raise_first_error(errors)
    return missing


def _label_batch(
    node_names: list[str], event: BaseCloudEvent, client: SyncClient, *, has_more_batches: bool
) -> list[str]:
    """Label a batch of nodes concurrently, and return the nodes that no longer exist.

    The run's current node is not returned, because its Job may be running; `run-job` drops that node. If
    `has_more_batches` is true, the patches may use half of the remaining time, so that a hanging patch cannot block
    later batches forever.
    """
    nodes = client.gather_all(*(get_or_none(client.api.get(build_node_path(name))) for name in node_names))
    active_run = read_repairable_run(event, client, "labelledAt")
    if active_run is None:
        return []
    record, rules = active_run.record, list_recorded_rules(active_run.record)
    unreleased_names = set(list_unreleased_nodes(record))
    unreleased = {name: node for name, node in zip(node_names, nodes, strict=True) if name in unreleased_names}
    patches = {
        name: build_run_labels_patch(node, record["id"], rules)
        for name, node in unreleased.items()
        if is_recorded_node(node, record, name)
    }
    with set_deadline(get_seconds_left() / 2) if has_more_batches else nullcontext():
        client.gather_all(
            *(client.api.patch(build_node_path(name), patch, JSON_PATCH) for name, patch in patches.items() if patch)
        )
    working_node = active_run.current_node if record.get("editedAt") else ""
    return [name for name in unreleased if name not in {*patches, working_node}]


def _build_outside_workers_condition(active_run: ActiveRun, client: SyncClient) -> Condition:
    """Return the condition that reports workers that belong to no target of the run (MUT-38).

    The function lists the nodes again, because workers may have joined since the pools were claimed.
    """
    members = {node["uid"] for node in active_run.record["nodes"].values()}
    return build_outside_workers_condition(members, client.run(lookup.list_nodes_by_name(client.api, None)))


def _build_condition(active_run: ActiveRun, dropped_nodes: list[str]) -> Condition:
    record = active_run.record
    summary = f"{format_count(len(record['order']), 'node')}, {format_count(len(record['rules']), 'rule')}"
    return Condition(
        APPLIED_CONDITION,
        True,
        "ApplySucceeded",
        f"{summary}; no longer exist: {format_names(dropped_nodes)}" if dropped_nodes else summary,
    )
