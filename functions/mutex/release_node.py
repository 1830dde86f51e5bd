"""Release a node for its upgrade: remove its labels when all of its Jobs are complete (step 6b, MUT-43, MUT-44).

The step first checks the pools and the canary, so that the node moves into the right pool (MUT-36). It also checks the
control plane, which may be updating to another version (MUT-32). The step then writes the node's name into the record's
field `released`, which holds only one node, and removes the labels. A node under maintenance is not released until the
maintenance ends, unless a Job of this run requested that maintenance.

In: `node.prejobs_done`.
Out: `node.released`; `pools.claimed` or `pools.paused` if another client changed a pool. If that client changes the
pool again within ten seconds, the step only reports that in the condition, and `resync-runs` retries.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; machineconfigpools list; nodes get, patch;
clusterversions get; nodemaintenances list.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import ActiveRun, load_unhalted_run
from functions.mutex.event_objects import Replies, log_about, log_failure, read_object, report_refusals, utc_now
from functions.steps import step
from kube.client.api import JSON_PATCH, get_or_none
from kube.client.sync_client import SyncClient
from kube.mutex import claims, lookup, versions
from kube.mutex.nodes import build_release_patch, find_release_blocker, get_run_id, is_released
from kube.mutex.objects import RUN_KIND, RUN_LABEL, Condition
from kube.mutex.pools import is_paused
from kube.mutex.run_record import RunRecord, Stage, is_recorded_node
from kube.mutex.validation import NODE_UPGRADE_CONDITION, WAITING_REASON, build_control_plane_condition, format_names
from kube.nodes import build_node_path
from kube.paths import Object
from kube.times import format_time


class PoolCheck(NamedTuple):
    """A required state of the pools: its name in the record, its check, and the type of the event that restores it."""

    state: str
    is_met: Callable[[RunRecord, Mapping[str, Object]], bool]
    event_type: str


POOL_CHECKS = (
    PoolCheck("paused", claims.are_pools_paused, events.POOLS_CLAIMED),
    PoolCheck("edited", claims.are_pools_edited, events.POOLS_PAUSED),
)
"""The states that the pools must have before a node is released.

To repair the pools' selectors, the run continues with `label-nodes`, because labels may be missing as well.
"""


@step(
    "release-node",
    consumes=(events.NODE_PREJOBS_DONE,),
    emits=(events.NODE_RELEASED, events.POOLS_CLAIMED, events.POOLS_PAUSED),
    on_failure=log_failure,
)
@report_refusals(NODE_UPGRADE_CONDITION, "NodeUpgradeFailed")
def release_node(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Remove all rule labels from the run's current node in one patch, or report why the node must wait."""
    active_run = load_unhalted_run(read_object(event, client, RUN_KIND), client)
    if active_run is None or active_run.stage not in (Stage.PREJOBS_DONE, Stage.RELEASED):
        return []
    if active_run.stage is Stage.RELEASED:
        # An earlier attempt has already released the node.
        return active_run.build_reply(events.NODE_RELEASED, "release-node", event, node=active_run.current_node)
    name, api = active_run.current_node, client.api
    node, pools, version = client.gather_all(
        get_or_none(api.get(build_node_path(name))),
        lookup.list_pools_by_name(api, None),
        lookup.find_cluster_version(api),
    )
    if not is_recorded_node(node, active_run.record, name):
        # The node no longer exists: `await-version` drops the node from the run.
        return active_run.build_reply(events.NODE_RELEASED, "release-node", event, node=name)
    for check in POOL_CHECKS:
        if not check.is_met(active_run.record, pools):
            return _request_repair(active_run, check, pools, event, client)
    desired = versions.parse_desired_version(version)
    readiness = build_control_plane_condition(desired)
    if blocker := _find_canary_blocker(active_run, pools) or _find_node_blocker(active_run, node, desired, client):
        return _report_blocker(active_run, blocker, client, readiness)
    return _release_current_node(active_run, node, readiness, event, client)


def _request_repair(
    active_run: ActiveRun, check: PoolCheck, pools: Mapping[str, Object], event: BaseCloudEvent, client: SyncClient
) -> Replies:
    """Return the event that repeats a change to the pools which another client has undone.

    If the run already repeated the change within the last ten seconds, the function only reports the other client in
    the condition.
    """
    record = active_run.record
    if not check.is_met(record, claims.exclude_pools_in_cooldown(record, check.state, pools, utc_now())):
        return active_run.build_reply(check.event_type, "release-node", event)
    names = format_names([name for name, pool in pools.items() if not check.is_met(record, {name: pool})])
    message = f"another client reverts MachineConfigPool {names} each time it is {check.state}: stop that client"
    return _report_blocker(active_run, message, client)


def _report_blocker(active_run: ActiveRun, message: str, client: SyncClient, *conditions: Condition) -> Replies:
    """Report in the condition why the node is not released, and return no event; `resync-runs` retries."""
    waiting = Condition(NODE_UPGRADE_CONDITION, False, WAITING_REASON, f"{active_run.position}: {message}")
    active_run.write_record(client, {}, waiting, *conditions)
    return []


def _find_canary_blocker(active_run: ActiveRun, pools: Mapping[str, Object]) -> str:
    """Return why the canary pool would not upgrade a released node, or "" if it would.

    The function checks the pool itself, because the condition ConfigValidated may not reflect its latest change yet.
    """
    name = active_run.record["canary"]["name"]
    if name not in pools:
        return f'canary MachineConfigPool "{name}" not found'
    return f'canary MachineConfigPool "{name}" is paused: set spec.paused to false' if is_paused(pools[name]) else ""


def _find_node_blocker(
    active_run: ActiveRun, node: Object, desired: versions.DesiredVersion, client: SyncClient
) -> str:
    """Return why the node must not be released now, or "" if the node may be released."""
    if not desired.version:
        return "the ClusterVersion no longer requests a version"
    if desired.blocker and not (is_released(node) and active_run.record.get("released") == active_run.current_node):
        return desired.blocker  # The desired version has changed, and the control plane is updated before the nodes.
    if not is_released(node) and (other := get_run_id(node)) not in ("", active_run.record["id"]):
        return f"the node's label {RUN_LABEL} names another run, {other}"
    return find_release_blocker(node, client.run(lookup.find_maintainer(client.api, node)), active_run.record["id"])


def _release_current_node(
    active_run: ActiveRun, node: Object, condition: Condition, event: BaseCloudEvent, client: SyncClient
) -> Replies:
    name = active_run.current_node
    if active_run.record.get("released") not in (None, name):
        return []
    if active_run.record.get("released") is None:
        active_run = active_run.write_record(client, {"released": name}, condition)
    if not is_released(node):
        client.patch(build_node_path(name), build_release_patch(node, active_run.record["id"]), JSON_PATCH)
        log_about(f'released node "{name}"', active_run.run)
    active_run = active_run.write_record(client, {"nodes": {name: {"releasedAt": format_time(utc_now())}}})
    return active_run.build_reply(events.NODE_RELEASED, "release-node", event, node=name)
