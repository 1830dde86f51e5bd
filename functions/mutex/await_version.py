"""Await a released node's upgrade: it is complete once the node's version label has the desired version (MUT-45).

The step does not block: an update of the node triggers it, by reference. If that event was lost, the tick triggers it.
`MUTEX_UPGRADE_SECONDS` (default: 6000) limits the time for a released node's upgrade. While no version is desired, or
the control plane is updating to another version, the node is on hold, which the record stores as `heldAt`. After the
hold, the node's time limit starts again.

In: `node.released`; an updated Node, by reference.
Out: `node.upgraded`; `node.prejobs_done` if another client labelled the node again, but no event if that was within ten
seconds of its release: the condition reports that, and the tick retries; `node.done` if the node no longer exists;
`run.halted` if the upgrade takes too long.
Touches: mutexrunconfigs get, list; mutexrunconfigs/status patch; mutexrules get; nodes get; clusterversions get;
events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

import os

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import ActiveRun, find_run_of_event, load_unhalted_run, parse_upgrade_timeout
from functions.mutex.event_objects import Replies, log_about, log_failure, record_warning, report_refusals, utc_now
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

STOPPED_REASON = "UpgradeStopped"


@step(
    "await-version",
    consumes=(events.NODE_RELEASED, events.REFERENCE_UPDATED),
    emits=(events.NODE_UPGRADED, events.NODE_PREJOBS_DONE, events.NODE_DONE, events.RUN_HALTED),
    on_failure=log_failure,
)
@report_refusals(NODE_UPGRADE_CONDITION, "NodeUpgradeFailed")
def await_version(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Check the released node's progress against the live ClusterVersion, not the version that the run began with."""
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
        change = run_record.build_node_done_change(active_run.record, name, "droppedAt", utc_now())
        condition = Condition(
            NODE_UPGRADE_CONDITION,
            True,
            "NodeDropped",
            f"{active_run.describe_position(name)}, {name}: the node no longer exists, so the run drops it",
        )
        return active_run.write_record(client, change, condition).build_reply(
            events.NODE_DONE, "await-version", event, node=name
        )
    if active_run.stage is not Stage.RELEASED:
        return []
    if not is_released(node):
        return _handle_relabelled_node(active_run, event, client)
    return _check_version(active_run, node, versions.parse_desired_version(version), event, client)


def _handle_relabelled_node(active_run: ActiveRun, event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Let `release-node` release the node again after another client added rule labels.

    If the release was less than ten seconds ago, another client labels the node repeatedly. The function then only
    reports that in the condition, and the tick retries.
    """
    name = active_run.current_node
    change: Object = {"nodes": {name: {"releasedAt": None, "heldAt": None}}}
    if not run_record.is_cooling_down(active_run.record["nodes"][name].get("releasedAt"), utc_now()):
        return active_run.write_record(client, change).build_reply(
            events.NODE_PREJOBS_DONE, "await-version", event, node=name
        )
    position = f"{active_run.describe_position(name)}, {name}"
    message = f"{position}: another client labels the node again after each release: stop that client"
    active_run.write_record(client, change, Condition(NODE_UPGRADE_CONDITION, False, WAITING_REASON, message))
    return []


def _check_version(
    active_run: ActiveRun, node: Object, desired: versions.DesiredVersion, event: BaseCloudEvent, client: SyncClient
) -> Replies:
    name, version = active_run.current_node, versions.get_version(node)
    position = f"{active_run.describe_position(name)}, {name}"
    if version and version == desired.version:
        log_about(f'node "{name}" is at version {version}', active_run.run)
        node_change = {"upgradedAt": format_time(utc_now()), "heldAt": None}
        change = {"desired": _select_reached_version(active_run, version), "nodes": {name: node_change}}
        condition = Condition(NODE_UPGRADE_CONDITION, True, "NodeUpgradeSucceeded", f"{position}: at version {version}")
        return active_run.write_record(client, change, condition).build_reply(
            events.NODE_UPGRADED, "await-version", event, node=name
        )
    current = f"at version {version}" if version else "without a version label"
    message = f"{position}: {current}, {_describe_version_difference(version, desired)}"
    node_record = active_run.record["nodes"][name]
    released_at, held_at = node_record.get("releasedAt"), node_record.get("heldAt")
    if not (desired.blocker or held_at) and run_record.compute_seconds_since(
        released_at, utc_now()
    ) >= parse_upgrade_timeout(os.environ):
        return _halt_run(
            active_run,
            f"{message}; released at {released_at}, and the time limit MUTEX_UPGRADE_SECONDS has expired",
            event,
            client,
        )
    reason = HELD_REASON if desired.blocker else WAITING_REASON
    active_run.write_record(
        client,
        _build_hold_change(active_run, is_held=bool(desired.blocker)),
        Condition(NODE_UPGRADE_CONDITION, False, reason, message),
    )
    return []


def _build_hold_change(active_run: ActiveRun, *, is_held: bool) -> Object:
    """Return the record's change that puts the released node on hold, or restarts its time limit; {} if unchanged."""
    if is_held is bool(active_run.record["nodes"][active_run.current_node].get("heldAt")):
        return {}
    timestamp = format_time(utc_now())
    return {
        "nodes": {
            active_run.current_node: {"heldAt": timestamp} if is_held else {"heldAt": None, "releasedAt": timestamp}
        }
    }


def _select_reached_version(active_run: ActiveRun, version: str) -> str:
    """Return the oldest version that an upgraded node of the run has.

    The run counts as finished for that version, and for no newer version.
    """
    has_upgraded_nodes = any(node.get("upgradedAt") for node in active_run.record["nodes"].values())
    return min(active_run.record["desired"], version, key=versions.parse_version_key) if has_upgraded_nodes else version


def _describe_version_difference(version: str, desired: versions.DesiredVersion) -> str:
    if not desired.version:
        return "but the ClusterVersion no longer requests a version"
    is_above = versions.is_valid_version(version) and versions.is_older_version(desired.version, version)
    difference = f"{'above' if is_above else 'not yet'} {desired.version}"
    return f"{difference}: {desired.blocker}" if desired.blocker else difference


def _halt_run(active_run: ActiveRun, message: str, event: BaseCloudEvent, client: SyncClient) -> Replies:
    failure = run_record.build_failure_change(
        active_run.run, "await-version", message, node_name=active_run.current_node, now=utc_now()
    )
    active_run = active_run.write_record(
        client, failure, Condition(NODE_UPGRADE_CONDITION, False, "NodeUpgradeFailed", message)
    )
    record_warning(active_run.run, STOPPED_REASON, message, client)
    return active_run.build_reply(
        events.RUN_HALTED, "await-version", event, node=active_run.current_node, error=message
    )
