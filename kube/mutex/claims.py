"""Whether pools are as a run wants them: claimed, paused, with its selectors; and who else claims them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from datetime import datetime

from kube.mutex import pools
from kube.mutex.objects import Item, canary_name, full_name, rule_label
from kube.mutex.run_record import Record, is_active, is_fresh, record_of, rules_of, uid_of
from kube.paths import Object


def wanted_names(run: Item, targets: Iterable[str]) -> list[str]:
    """The pools that a run claims, sorted: two runs that want the same ones never wait for each other."""
    return sorted({*targets, canary_name(run)})


def rivals(run: Item, names: Iterable[str], known: Mapping[str, Object], runs: Iterable[Item]) -> dict[str, str]:
    """Pool → who claims it, of those that another run config has; one that is gone claims nothing (MUT-44)."""
    own, there = run["metadata"]["uid"], {each["metadata"]["uid"]: each for each in runs}
    found = {name: pools.claimed_by(known[name]) for name in names if name in known}
    return {name: full_name(there[uid]) for name, uid in found.items() if uid and uid != own and uid in there}


def under_way(run: Item, runs: Iterable[Item]) -> list[str]:
    """The other runs under way: until they end one that has not begun claims and records nothing (MUT-44, MUT-49)."""
    return [full_name(each) for each in _others(run, runs)]


def ahead(run: Item, runs: Iterable[Item]) -> list[str]:
    """The runs under way that come before this one: those that have the turn, and those that began earlier (MUT-44).

    A canary takes whoever carries none of its run's labels, so runs over other pools open each other's gates, too.
    """
    return [full_name(each) for each in _others(run, runs) if _has_turn(each) or _began(each) < _began(run)]


def at_turn(run: Item, runs: Iterable[Item]) -> list[str]:
    """The other runs under way that have the turn."""
    return [full_name(each) for each in _others(run, runs) if _has_turn(each)]


def _others(run: Item, runs: Iterable[Item]) -> list[Item]:
    return [each for each in runs if is_active(each) and each["metadata"]["uid"] != run["metadata"]["uid"]]


def _has_turn(run: Item) -> bool:
    return bool(record_of(run).get("turnAt"))


def _began(run: Item) -> tuple[str, str]:
    return str(record_of(run).get("startedAt") or ""), str(run["metadata"]["uid"])


def claimed(uid: str, known: Iterable[Object]) -> list[Object]:
    """The pools that a run config claims."""
    return [pool for pool in known if pools.claimed_by(pool) == uid]


def leftovers(run: Item, names: Iterable[str], known: Iterable[Object]) -> list[Object]:
    """The pools that a run config without a run is to give back before it begins one over these.

    Those that it claimed and does not want any more, for which others wait; and those that are as a run has edited them
    whose record was lost: what comes next shall not take that for its own selector.
    """
    wanted = set(names)
    own = claimed(run["metadata"]["uid"], known)
    return [pool for pool in own if pools.is_edited(pool) or pools.name_of(pool) not in wanted]


def holders(runs: Iterable[Item]) -> set[str]:
    """The uids of the run configs whose claim counts against a run that has the pool in its record (MUT-44).

    One that is gone, or has no run under way, has not claimed it since: somebody applied a file that had its claim.
    """
    return {str(run["metadata"]["uid"]) for run in runs if is_active(run)}


def to_restore(run: Item, known: Collection[Object], runs: Iterable[Item]) -> list[Object]:
    """The pools that a run has changed: those that it claims, and those of its record that no other run has.

    Of those that it gave back while others were refused only what somebody has claimed or edited for it again.
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
    """The pools that nobody would give back any more, since their run is gone or has lost its record.

    Those that a run config claims which is gone, and those that have a selector of a run and are in no record.
    """
    runs = list(runs)
    there = {"", *(run["metadata"]["uid"] for run in runs)}
    records = [record_of(run) for run in runs if is_active(run)]
    kept = {name for record in records for name in (*record["pools"], record["canary"].get("name"))}
    found = [pool for pool in known if pools.claimed_by(pool) not in there or pools.is_edited(pool)]
    return [pool for pool in found if pools.name_of(pool) not in kept]


def takes_strays(known: Iterable[Object], left: Iterable[Object]) -> bool:
    """Whether a canary, beside the pools that were left behind, would have a node at once that loses its labels."""
    names = {pools.name_of(pool) for pool in left}
    return any(pools.takes_released(pool) for pool in known if pools.name_of(pool) not in names)


def selectors(record: Record) -> dict[str, Object]:
    """Pool → its selector during the run. The canary comes last: until then nobody may be released (MUT-36, 37)."""
    labels = [rule_label(rule) for rule in rules_of(record)]
    gated = {
        name: pools.gated_selector(before["selector"], labels)
        for name, before in record["pools"].items()
        if "selector" in before
    }
    return {**gated, record["canary"]["name"]: pools.released_selector(record["canary"]["selector"], labels)}


def are_paused(record: Record, known: Mapping[str, Object]) -> bool:
    """Whether each pool of the targets is paused; one that was deleted is no pool any more."""
    return all(pools.is_paused(known[name]) for name in record["pools"] if name in known)


def are_edited(record: Record, known: Mapping[str, Object]) -> bool:
    """Whether each pool has the selector of the run."""
    return all(pools.selector(known[name]) == wanted for name, wanted in selectors(record).items() if name in known)


def at_rest(record: Record, word: str, known: Mapping[str, Object], now: datetime) -> dict[str, Object]:
    """The pools without those that were `paused`, `edited` or `claimed` again seconds ago, which wait for the tick."""
    again = record.get(f"{word}Again") or {}
    busy = {name for name, moment in again.items() if is_fresh(moment, now)}
    return {name: pool for name, pool in known.items() if name not in busy}


def are_claimed(record: Record, known: Mapping[str, Object]) -> bool:
    """Whether the pools of the record are still the run's own, the canary too."""
    names = [*record["pools"], record["canary"]["name"]]
    return all(pools.claimed_by(known[name]) == uid_of(record) for name in names if name in known)
