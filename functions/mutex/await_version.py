"""Await a released node's upgrade: it is complete once the node's version label has the desired version (MUT-45).

The step does not block: an update of the node triggers it, by reference. If that event was lost, `resync-runs` triggers
it. `MUTEX_UPGRADE_SECONDS` (default: 6000) limits the time for a released node's upgrade. While no version is desired,
or the control plane is updating to another version, the node is on hold, which the run's record stores as `heldAt`.
After the hold, the timeout of the node starts again.

In: `node.released`; an updated Node, by reference.
Out: `node.upgraded`; `node.prejobs_done` if another client labelled the node again; no event if that happened within
ten seconds of the release, because then the condition reports it and `resync-runs` retries; `node.done` if the node no
longer exists; `run.halted` if the upgrade takes too long.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; nodes get; clusterversions get;
events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

import os

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import (
    ActiveRun,
    find_run_of_event,
    finish_node,
    halt_run,
    load_unhalted_run,
    parse_upgrade_timeout,
)
from functions.mutex.event_objects import Replies, log_about, log_failure, report_refusals, utc_now
from functions.steps import step
from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.mutex import lookup, run_record, versions
from kube.mutex.nodes import is_released
from kube.mutex.objects import Condition
from kube.mutex.run_record import Stage, is_recorded_node
from kube.mutex.validation import HELD_REASON, NODE_UPGRADE_CONDITION, WAITING_REASON
from kube.nodes import build_node_path
from kube.paths import Object
from kube.times import format_time


@step(
    "await-version",
    consumes=(events.NODE_RELEASED, events.REFERENCE_UPDATED),
    emits=(events.NODE_UPGRADED, events.NODE_PREJOBS_DONE, events.NODE_DONE, events.RUN_HALTED),
    on_failure=log_failure,
)
@report_refusals(NODE_UPGRADE_CONDITION, "NodeUpgradeFailed")
def await_version(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Compare the released node's version with the current ClusterVersion, not with the version at the run's start."""
    active_run = load_unhalted_run(find_run_of_event(event, "Node", client), client)
    if (
        active_run is None
        or not active_run.current_node
        or active_run.stage not in (Stage.PREJOBS_DONE, Stage.RELEASED)
    ):
        return []
    name, api = active_run.current_node, client.api
    node, version = client.gather_all(get_or_none(api.get(build_node_path(name))), lookup.find_cluster_version(api))
    if not is_recorded_node(node, active_run.record, name):
        message = f"{active_run.position}: the node no longer exists, so the run drops it"
        condition = Condition(NODE_UPGRADE_CONDITION, True, "NodeDropped", message)
        return finish_node(active_run, "droppedAt", "await-version", event, client, condition)
    if active_run.stage is not Stage.RELEASED:
        return []
    if not is_released(node):
        return _handle_relabelled_node(active_run, event, client)
    desired, reached = versions.parse_desired_version(version), versions.get_version(node)
    if reached and reached == desired.version:
        return _complete_upgrade(active_run, reached, event, client)
    return _handle_older_node(active_run, reached, desired, event, client)


def _handle_relabelled_node(active_run: ActiveRun, event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Return `node.prejobs_done`, so that `release-node` releases the node again after another client labelled it.

    If the release was less than ten seconds ago, the function only reports the other client in the condition, and the
    step is retried later. Otherwise both clients would undo each other's writes in a tight loop.
    """
    name = active_run.current_node
    change: Object = {"nodes": {name: {"releasedAt": None, "heldAt": None}}}
    if not run_record.is_cooling_down(active_run.node_record.get("releasedAt"), utc_now()):
        return active_run.write_record(client, change).build_reply(
            events.NODE_PREJOBS_DONE, "await-version", event, node=name
        )
    message = f"{active_run.position}: another client labels the node again after each release: stop that client"
    active_run.write_record(client, change, Condition(NODE_UPGRADE_CONDITION, False, WAITING_REASON, message))
    return []


def _complete_upgrade(active_run: ActiveRun, version: str, event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Record that the current node has the desired version, and return `node.upgraded`."""
    name = active_run.current_node
    log_about(f'node "{name}" is at version {version}', active_run.run)
    node_change = {"upgradedAt": format_time(utc_now()), "heldAt": None}
    change = {"desired": _select_reached_version(active_run, version), "nodes": {name: node_change}}
    message = f"{active_run.position}: at version {version}"
    condition = Condition(NODE_UPGRADE_CONDITION, True, "NodeUpgradeSucceeded", message)
    return active_run.write_record(client, change, condition).build_reply(
        events.NODE_UPGRADED, "await-version", event, node=name
    )


def _handle_older_node(
    active_run: ActiveRun, version: str, desired: versions.DesiredVersion, event: BaseCloudEvent, client: SyncClient
) -> Replies:
    """Report why the node is not upgraded yet, or halt the run if the node's timeout has expired."""
    current = f"at version {version}" if version else "without a version label"
    message = f"{active_run.position}: {current}, {_describe_version_difference(version, desired)}"
    released_at, held_at = active_run.node_record.get("releasedAt"), active_run.node_record.get("heldAt")
    is_late = run_record.compute_seconds_since(released_at, utc_now()) >= parse_upgrade_timeout(os.environ)
    if is_late and not (desired.blocker or held_at):
        message += f"; released at {released_at}, and the time limit MUTEX_UPGRADE_SECONDS has expired"
        condition = Condition(NODE_UPGRADE_CONDITION, False, "NodeUpgradeFailed", message)
        return halt_run(active_run, "await-version", condition, event, client)
    reason = HELD_REASON if desired.blocker else WAITING_REASON
    change = _build_hold_change(active_run, is_held=bool(desired.blocker))
    active_run.write_record(client, change, Condition(NODE_UPGRADE_CONDITION, False, reason, message))
    return []


def _build_hold_change(active_run: ActiveRun, *, is_held: bool) -> Object:
    """Return the change of the record that puts the node on hold, or that ends the hold and restarts the timeout.

    Returns {} if the record is already up to date.
    """
    if is_held is bool(active_run.node_record.get("heldAt")):
        return {}
    timestamp = format_time(utc_now())
    node_change: Object = {"heldAt": timestamp} if is_held else {"heldAt": None, "releasedAt": timestamp}
    return {"nodes": {active_run.current_node: node_change}}


def _select_reached_version(active_run: ActiveRun, version: str) -> str:
    """Return the lowest version of the run's upgraded nodes, including `version` of the current node.

    The run counts as finished for that version only, not for a newer version.
    """
    has_upgraded_nodes = any(node.get("upgradedAt") for node in active_run.record["nodes"].values())
    return min(active_run.record["desired"], version, key=versions.parse_version_key) if has_upgraded_nodes else version


def _describe_version_difference(version: str, desired: versions.DesiredVersion) -> str:
    if not desired.version:
        return "but the ClusterVersion no longer requests a version"
    is_above = versions.is_valid_version(version) and versions.is_older_version(desired.version, version)
    difference = f"{'above' if is_above else 'not yet'} {desired.version}"
    return f"{difference}: {desired.blocker}" if desired.blocker else difference
