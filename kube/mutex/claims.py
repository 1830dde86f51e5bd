"""Checks whether a run's MachineConfigPools are claimed, paused and edited, and which other runs claim them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from kube.mutex import pools
from kube.mutex.objects import Resource, build_rule_label, format_full_name, get_canary_name
from kube.mutex.run_record import (
    RunRecord,
    get_record,
    get_run_config_uid,
    is_active,
    is_cooling_down,
    list_recorded_rules,
)
from kube.paths import Object


def list_pools_to_claim(run: Resource, target_pool_names: Iterable[str]) -> list[str]:
    """Return the names of the pools that a run claims, in a fixed order, which prevents deadlocks between two runs."""
    return sorted({*target_pool_names, get_canary_name(run)})


def find_rival_claims(
    run: Resource, pool_names: Iterable[str], pools_by_name: Mapping[str, Object], runs: Iterable[Resource]
) -> dict[str, str]:
    """Return the names of pools that other MutexRunConfigs claim, each with its claimant's name (MUT-44).

    A claim by a deleted MutexRunConfig does not count.
    """
    own_uid, runs_by_uid = run["metadata"]["uid"], {other["metadata"]["uid"]: other for other in runs}
    claim_uids = {name: pools.get_claim_uid(pools_by_name[name]) for name in pool_names if name in pools_by_name}
    return {
        name: format_full_name(runs_by_uid[uid])
        for name, uid in claim_uids.items()
        if uid and uid != own_uid and uid in runs_by_uid
    }


def list_other_active_runs(run: Resource, runs: Iterable[Resource]) -> list[str]:
    """Return the names of the other active runs (MUT-44, MUT-49).

    Until these runs end, a new run neither claims pools nor writes a record.
    """
    return [format_full_name(other) for other in _select_other_active_runs(run, runs)]


def list_runs_to_wait_for(run: Resource, runs: Iterable[Resource]) -> list[str]:
    """Return the names of the active runs that must end before this run may upgrade nodes (MUT-44).

    These are runs whose turn it already is, and runs that began earlier. Runs with different pools also exclude each
    other, because a run's canary pool selects every node without that run's labels.
    """
    return [
        format_full_name(other)
        for other in _select_other_active_runs(run, runs)
        if _may_upgrade_nodes(other) or _build_start_time_key(other) < _build_start_time_key(run)
    ]


def list_runs_with_exclusive_right(run: Resource, runs: Iterable[Resource]) -> list[str]:
    """Return the names of the other active runs that may upgrade nodes now (`turnAt` in their record)."""
    return [format_full_name(other) for other in _select_other_active_runs(run, runs) if _may_upgrade_nodes(other)]


def _select_other_active_runs(run: Resource, runs: Iterable[Resource]) -> list[Resource]:
    return [other for other in runs if is_active(other) and other["metadata"]["uid"] != run["metadata"]["uid"]]


def _may_upgrade_nodes(run: Resource) -> bool:
    return bool(get_record(run).get("turnAt"))


def _build_start_time_key(run: Resource) -> tuple[str, str]:
    return str(get_record(run).get("startedAt") or ""), str(run["metadata"]["uid"])


def select_claimed_pools(uid: str, all_pools: Iterable[Object]) -> list[Object]:
    """Return the MachineConfigPools that the MutexRunConfig with this uid claims."""
    return [pool for pool in all_pools if pools.get_claim_uid(pool) == uid]


def find_leftover_pools(run: Resource, pool_names: Iterable[str], all_pools: Iterable[Object]) -> list[Object]:
    """Return the claimed pools that an inactive MutexRunConfig must release before its run with `pool_names` begins.

    These are the pools that the MutexRunConfig no longer needs, for which other runs may wait. They also include pools
    that were edited for a run whose record is lost. Otherwise, the next run would record the edited selector as the
    original one.
    """
    needed_names = set(pool_names)
    claimed = select_claimed_pools(run["metadata"]["uid"], all_pools)
    return [pool for pool in claimed if pools.has_run_selector(pool) or pools.get_name(pool) not in needed_names]


def list_active_run_config_uids(runs: Iterable[Resource]) -> set[str]:
    """Return the uids of the MutexRunConfigs with an active run, whose claims on recorded pools are valid (MUT-44).

    If a user applies an old manifest of a pool, the pool gets an outdated claim by a deleted or inactive
    MutexRunConfig.
    """
    return {str(run["metadata"]["uid"]) for run in runs if is_active(run)}


def select_pools_to_restore(run: Resource, all_pools: Collection[Object], runs: Iterable[Resource]) -> list[Object]:
    """Return the pools that a run must restore: those that it claims, and recorded ones that no other run claims.

    A pool that was already restored is included only if it was claimed or edited for this run again.
    """
    active_uids = list_active_run_config_uids(runs)
    uid, record = run["metadata"]["uid"], get_record(run)
    names = {*record["pools"], record["canary"]["name"]} if is_active(run) else set()
    names -= set(record.get("restored") or ()) - {
        pools.get_name(pool) for pool in all_pools if pools.has_run_selector(pool)
    }
    return [
        pool
        for pool in all_pools
        if (owner := pools.get_claim_uid(pool)) == uid or (owner not in active_uids and pools.get_name(pool) in names)
    ]


def find_orphaned_pools(all_pools: Iterable[Object], runs: Iterable[Resource]) -> list[Object]:
    """Return the pools that no run would restore, because their MutexRunConfig is deleted or lost its record.

    These are pools that a deleted MutexRunConfig claims, and pools that have a run's selector but are in no record.
    """
    runs = list(runs)
    run_uids = {"", *(run["metadata"]["uid"] for run in runs)}
    records = [get_record(run) for run in runs if is_active(run)]
    recorded_names = {name for record in records for name in (*record["pools"], record["canary"].get("name"))}
    candidates = [
        pool for pool in all_pools if pools.get_claim_uid(pool) not in run_uids or pools.has_run_selector(pool)
    ]
    return [pool for pool in candidates if pools.get_name(pool) not in recorded_names]


def has_active_canary(all_pools: Iterable[Object], orphaned_pools: Iterable[Object]) -> bool:
    """Return whether a canary pool would select a node as soon as the node loses its rule labels.

    Pools in `orphaned_pools` are ignored.
    """
    names = {pools.get_name(pool) for pool in orphaned_pools}
    return any(pools.is_active_canary(pool) for pool in all_pools if pools.get_name(pool) not in names)


def build_run_selectors(record: RunRecord) -> dict[str, Object]:
    """Return the node selectors that the pools have during the run, by pool name.

    The canary is the last pool: no node may be released before the canary has its selector (MUT-36, MUT-37).
    """
    labels = [build_rule_label(rule) for rule in list_recorded_rules(record)]
    gated = {
        name: pools.build_target_pool_selector(before["selector"], labels)
        for name, before in record["pools"].items()
        if "selector" in before
    }
    return {**gated, record["canary"]["name"]: pools.build_canary_selector(record["canary"]["selector"], labels)}


def are_pools_paused(record: RunRecord, pools_by_name: Mapping[str, Object]) -> bool:
    """Return whether all target pools of the run that still exist are paused."""
    return all(pools.is_paused(pools_by_name[name]) for name in record["pools"] if name in pools_by_name)


def are_pools_edited(record: RunRecord, pools_by_name: Mapping[str, Object]) -> bool:
    """Return whether all pools of the run that still exist have the run's node selectors."""
    return all(
        pools.get_selector(pools_by_name[name]) == desired_selector
        for name, desired_selector in build_run_selectors(record).items()
        if name in pools_by_name
    )


def exclude_pools_in_cooldown(
    record: RunRecord, state: str, pools_by_name: Mapping[str, Object], now: datetime
) -> dict[str, Object]:
    """Return the pools without those in cooldown, whose next correction waits for `resync-runs`.

    `state` names the state that a correction restores: `paused`, `edited` or `claimed`.
    """
    redone_at = record.get(f"{state}Again") or {}
    cooling_down = {name for name, moment in redone_at.items() if is_cooling_down(moment, now)}
    return {name: pool for name, pool in pools_by_name.items() if name not in cooling_down}


def are_pools_claimed(record: RunRecord, pools_by_name: Mapping[str, Object]) -> bool:
    """Return whether the run claims all recorded pools that still exist, including the canary."""
    names = [*record["pools"], record["canary"]["name"]]
    return all(
        pools.get_claim_uid(pools_by_name[name]) == get_run_config_uid(record)
        for name in names
        if name in pools_by_name
    )
