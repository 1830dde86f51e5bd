"""Checks whether pools are claimed, paused and edited as a run needs them, and which other runs claim them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from kube.mutex import pools
from kube.mutex.objects import Item, canary_name, full_name, rule_label
from kube.mutex.run_record import Record, is_active, is_fresh, record_of, rules_of, uid_of
from kube.paths import Object


def wanted_names(run: Item, targets: Iterable[str]) -> list[str]:
    """Return the names of the pools that a run claims, sorted so that two runs with the same pools cannot deadlock."""
    return sorted({*targets, canary_name(run)})


def rivals(run: Item, names: Iterable[str], known: Mapping[str, Object], runs: Iterable[Item]) -> dict[str, str]:
    """Return the pools that another run config claims, each with the name of that run config (MUT-44).

    A claim of a deleted run config does not count.
    """
    own, there = run["metadata"]["uid"], {each["metadata"]["uid"]: each for each in runs}
    found = {name: pools.claimed_by(known[name]) for name in names if name in known}
    return {name: full_name(there[uid]) for name, uid in found.items() if uid and uid != own and uid in there}


def under_way(run: Item, runs: Iterable[Item]) -> list[str]:
    """Return the other active runs; until they end, a new run claims and records nothing (MUT-44, MUT-49)."""
    return [full_name(each) for each in _others(run, runs)]


def ahead(run: Item, runs: Iterable[Item]) -> list[str]:
    """Return the active runs that precede this one: those that have the turn, and those that began earlier (MUT-44).

    Runs with different pools also exclude each other, because a canary pool selects every node without its run's
    labels.
    """
    return [full_name(each) for each in _others(run, runs) if _has_turn(each) or _began(each) < _began(run)]


def at_turn(run: Item, runs: Iterable[Item]) -> list[str]:
    """Return the other active runs that have taken the turn to upgrade nodes (`turnAt` in their record)."""
    return [full_name(each) for each in _others(run, runs) if _has_turn(each)]


def _others(run: Item, runs: Iterable[Item]) -> list[Item]:
    return [each for each in runs if is_active(each) and each["metadata"]["uid"] != run["metadata"]["uid"]]


def _has_turn(run: Item) -> bool:
    return bool(record_of(run).get("turnAt"))


def _began(run: Item) -> tuple[str, str]:
    return str(record_of(run).get("startedAt") or ""), str(run["metadata"]["uid"])


def claimed(uid: str, known: Iterable[Object]) -> list[Object]:
    """Return the pools that a run config claims."""
    return [pool for pool in known if pools.claimed_by(pool) == uid]


def leftovers(run: Item, names: Iterable[str], known: Iterable[Object]) -> list[Object]:
    """Return the claimed pools that an inactive run config must release before it begins a run over `names`.

    These are the pools that it no longer needs, for which other runs may wait. They also include pools that were edited
    for a run whose record is lost. Otherwise the next run would record the edited selector as the original one.
    """
    wanted = set(names)
    own = claimed(run["metadata"]["uid"], known)
    return [pool for pool in own if pools.is_edited(pool) or pools.name_of(pool) not in wanted]


def holders(runs: Iterable[Item]) -> set[str]:
    """Return the uids of the run configs whose claim on a recorded pool is valid (MUT-44).

    These are the active ones. A claim of a deleted or inactive run config was restored by a user who applied an old
    manifest.
    """
    return {str(run["metadata"]["uid"]) for run in runs if is_active(run)}


def to_restore(run: Item, known: Collection[Object], runs: Iterable[Item]) -> list[Object]:
    """Return the pools that a run must restore: those that it claims, and those in its record that no other run holds.

    A pool that was already restored is included only if it was claimed or edited for this run again.
    """
    others = holders(runs)
    uid, record = run["metadata"]["uid"], record_of(run)
    names = {*record["pools"], record["canary"]["name"]} if is_active(run) else set()
    names -= set(record.get("restored") or ()) - {pools.name_of(pool) for pool in known if pools.is_edited(pool)}
    return [
        pool
        for pool in known
        if (owner := pools.claimed_by(pool)) == uid or (owner not in others and pools.name_of(pool) in names)
    ]


def left_behind(known: Iterable[Object], runs: Iterable[Item]) -> list[Object]:
    """Return the pools that no run would restore, because their run config is gone or has lost its record.

    These are pools claimed by a run config that no longer exists, and pools with the selector of a run that are in no
    record.
    """
    runs = list(runs)
    there = {"", *(run["metadata"]["uid"] for run in runs)}
    records = [record_of(run) for run in runs if is_active(run)]
    kept = {name for record in records for name in (*record["pools"], record["canary"].get("name"))}
    found = [pool for pool in known if pools.claimed_by(pool) not in there or pools.is_edited(pool)]
    return [pool for pool in found if pools.name_of(pool) not in kept]


def takes_strays(known: Iterable[Object], left: Iterable[Object]) -> bool:
    """Return whether a canary pool that is not in `left` would select a node as soon as the node loses its labels."""
    names = {pools.name_of(pool) for pool in left}
    return any(pools.takes_released(pool) for pool in known if pools.name_of(pool) not in names)


def selectors(record: Record) -> dict[str, Object]:
    """Return the selector of each pool during the run.

    The canary comes last: no node may be released before the canary has its selector (MUT-36, MUT-37).
    """
    labels = [rule_label(rule) for rule in rules_of(record)]
    gated = {
        name: pools.gated_selector(before["selector"], labels)
        for name, before in record["pools"].items()
        if "selector" in before
    }
    return {**gated, record["canary"]["name"]: pools.released_selector(record["canary"]["selector"], labels)}


def are_paused(record: Record, known: Mapping[str, Object]) -> bool:
    """Return whether all existing pools of the targets are paused."""
    return all(pools.is_paused(known[name]) for name in record["pools"] if name in known)


def are_edited(record: Record, known: Mapping[str, Object]) -> bool:
    """Return whether all existing pools have the run's selectors."""
    return all(pools.selector(known[name]) == wanted for name, wanted in selectors(record).items() if name in known)


def at_rest(record: Record, word: str, known: Mapping[str, Object], now: datetime) -> dict[str, Object]:
    """Return the pools without those that are in cooldown after a repeated correction and wait for the tick.

    `word` names the correction: `paused`, `edited` or `claimed`.
    """
    again = record.get(f"{word}Again") or {}
    busy = {name for name, moment in again.items() if is_fresh(moment, now)}
    return {name: pool for name, pool in known.items() if name not in busy}


def are_claimed(record: Record, known: Mapping[str, Object]) -> bool:
    """Return whether the run still claims all existing pools in its record, including the canary."""
    names = [*record["pools"], record["canary"]["name"]]
    return all(pools.claimed_by(known[name]) == uid_of(record) for name in names if name in known)
