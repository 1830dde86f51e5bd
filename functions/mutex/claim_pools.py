"""Claim the pools of a run, and record their original state before the run changes anything (MUT-34, MUT-44).

A run claims its MachineConfigPools in the order of their names, so that two runs cannot deadlock. A second run waits
until the first run ends, even if their pools differ, and reports that in its condition. A waiting run does not record
the pools' state, because that state could be outdated when the run begins (MUT-49). From this step on, the finalizer
keeps the MutexRunConfig until all pools and nodes are restored (MUT-51).

In: `upgrade.detected`. Out: `pools.claimed`.
Touches: mutexrunconfigs get, list, patch; mutexrunconfigs/status patch; mutexrules get; mutextargets get;
machineconfigpools list, patch; nodes list; clusterversions get; events create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.active_run import ActiveRun
from functions.mutex.event_objects import (
    Replies,
    log_about,
    log_failure,
    read_object,
    record_warning,
    report_refusals,
    utc_now,
    write_status,
)
from functions.steps import step
from kube.client.api import JSON_PATCH
from kube.client.sync_client import SyncClient
from kube.mutex import claims, lookup, pools, run_record
from kube.mutex.objects import (
    RUN_KIND,
    Condition,
    build_finalizers_patch,
    build_object_path,
    has_finalizer,
    is_condition_true,
    is_deleting,
    list_references,
    merge_conditions,
)
from kube.mutex.run_record import Stage
from kube.mutex.validation import (
    CONFIG_VALIDATED_CONDITION,
    RunSnapshot,
    build_outside_workers_condition,
    find_upgrade,
    format_names,
)
from kube.paths import Object
from kube.text_limits import format_count

PAUSED_CONDITION = "TargetPoolsPaused"


@step("claim-pools", consumes=(events.UPGRADE_DETECTED,), emits=(events.POOLS_CLAIMED,), on_failure=log_failure)
@report_refusals(PAUSED_CONDITION, "NotPaused")
def claim_pools(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Claim all pools of the run and begin the run, or report in the condition what the run waits for.

    After an error, the pools that are already claimed stay claimed. Raises `Conflict` if another client changes an
    object at the same time.
    """
    run = read_object(event, client, RUN_KIND)
    if run is None or is_deleting(run):
        return []
    if run_record.is_active(run):
        active_run = ActiveRun(_ensure_finalizer(run, client), {})
        return (
            active_run.build_reply(events.POOLS_CLAIMED, "claim-pools", event)
            if active_run.stage is Stage.CLAIMED
            else []
        )
    if not is_condition_true(run, CONFIG_VALIDATED_CONDITION):
        return []
    snapshot, runs = _read_snapshot(run, client)
    version = find_upgrade(run, snapshot, run_record.get_finished_version(run)).version
    names = claims.list_pools_to_claim(run, snapshot.list_pool_names(run))
    if not version or not set(names) <= set(snapshot.pools):
        return []  # The objects have changed since the event was emitted, so `resync-runs` emits the event due now.
    if message := _describe_awaited_runs(run, names, snapshot, runs):
        write_status(run, client, {"step": "Waiting"}, [Condition(PAUSED_CONDITION, False, "NotPaused", message)])
        return []
    run = _ensure_finalizer(run, client)
    for name in names:
        if patch := pools.build_claim_patch(snapshot.pools[name], run["metadata"]["uid"]):
            client.patch(pools.build_pool_path(name), patch, JSON_PATCH)
    return _begin_run(event, run, version, snapshot, client)


def _read_snapshot(run: Object, client: SyncClient) -> tuple[RunSnapshot, list[Object]]:
    """Read the current state of all objects that the run's record depends on, and the list of all MutexRunConfigs.

    The function removes the selector expressions of runs that no longer exist from the returned pools. It lists the
    MutexRunConfigs after the pools, so if the MutexRunConfig that claims a pool is not in the list, it was deleted.
    """
    api = client.api
    rules, targets, pools_by_name, nodes, version = client.gather_all(
        lookup.read_rules(api, list_references(run, "mutexRules")),
        lookup.read_targets(api, list_references(run, "mutexTargets")),
        lookup.list_pools_by_name(api, None),
        lookup.list_nodes_by_name(api, None),
        lookup.find_cluster_version(api),
    )
    original_pools = {name: pools.remove_run_selector(pool) for name, pool in pools_by_name.items()}
    return RunSnapshot(rules, targets, original_pools, nodes, version), client.run(lookup.list_runs(api, None))


def _describe_awaited_runs(run: Object, pool_names: list[str], snapshot: RunSnapshot, runs: list[Object]) -> str:
    """Return a message that names the other runs that this run must wait for, or "" if it need not wait.

    While another run is active, the original state that this run would record can still change.
    """
    rival_by_pool = claims.find_rival_claims(run, pool_names, snapshot.pools, runs)
    messages = [f'MachineConfigPool "{pool}" is claimed by {rival}' for pool, rival in rival_by_pool.items()]
    if others := claims.list_other_active_runs(run, runs):
        messages.append(f"waiting for {format_names(others)}: only one run upgrades nodes at a time")
    return "; ".join(messages)


def _ensure_finalizer(run: Object, client: SyncClient) -> Object:
    """Add the finalizer to the MutexRunConfig if it is missing, and return the MutexRunConfig.

    The finalizer is missing during a run if another client replaced the object with its own manifest.
    """
    return run if has_finalizer(run) else client.patch(build_object_path(run), build_finalizers_patch(run, is_set=True))


def _begin_run(event: BaseCloudEvent, run: Object, version: str, snapshot: RunSnapshot, client: SyncClient) -> Replies:
    """Write the record of the new run, which contains the original state of pools and nodes; return `pools.claimed`."""
    members = {name: snapshot.nodes[name] for name in snapshot.list_members(run)}
    names, rules = snapshot.list_pool_names(run), list_references(run, "mutexRules")
    record = run_record.build_begin_change(run, version, snapshot.pools, names, members, rules, utc_now())
    warning = build_outside_workers_condition({node["metadata"]["uid"] for node in members.values()}, snapshot.nodes)
    run = client.patch(f"{build_object_path(run)}/status", _build_begin_patch(run, record, warning), JSON_PATCH)
    log_about(f"starting the run to version {version} on {format_count(len(members), 'node')}", run)
    if warning.holds:
        record_warning(run, warning.reason, warning.message, client)
    return ActiveRun(run, {}).build_reply(events.POOLS_CLAIMED, "claim-pools", event)


def _build_begin_patch(run: Object, record: Object, warning: Condition) -> list[Object]:
    """Build the JSON patch that replaces `status.record`; a merge patch would keep fields of the previous run."""
    run_with_record = {**run, "status": {**run["status"], "record": record}}
    printed_fields = {"job": "", **run_record.build_printed_fields(run_with_record, {}, lambda _rule: False)}
    values = {"record": record, "conditions": merge_conditions(run, [warning], utc_now()), **printed_fields}
    return [
        {"op": "test", "path": "/metadata/resourceVersion", "value": run["metadata"]["resourceVersion"]},
        *({"op": "add", "path": f"/status/{name}", "value": value} for name, value in values.items() if value),
    ]
