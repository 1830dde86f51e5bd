"""Decides which VMI migrates next, and determines what each other VMI on a drained node waits for.

Slots limit the number of concurrent migrations. Before a migration is created, its name is claimed in a single Lease.
Otherwise, concurrent passes would use the same free slots. A claim names its attempt and lasts longer than the creation
may take. Until it expires, no other attempt creates the migration, and the slot stays occupied, whatever happens to the
VMI.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import NamedTuple

from kube.budgets import LAUNCHER_REASONS
from kube.times import moment_or_none, timestamp
from kube.virtualization.vmis import (
    Item,
    by_machine,
    has_failed,
    hindrance,
    is_finished,
    is_kept,
    is_moved_by,
    key,
    node_of,
    source_of,
    vmi_of,
)
from kube.virtualization.migration_claims import Claim, Claims, Refusal, holding
from kube.text_limits import shortened

PER_CLUSTER, PER_NODE = 5, 2
"""KubeVirt's default limits for concurrent migrations."""
SHORTEST, LONGEST = timedelta(seconds=10), timedelta(minutes=5)
"""Bounds of the backoff after a failed migration; each backoff is twice the previous one."""
KEPT = 6
"""Number of finished migrations to keep for each VMI; this many failures yield the longest backoff."""
LONGEST_MESSAGE = 512
MIGRATING, NOT_MIGRATABLE, WAITS_FOR_SLOT, FAILED, _ = LAUNCHER_REASONS


class Slots(NamedTuple):
    """Limits for concurrent migrations: in the cluster, and from one node."""

    cluster: int = PER_CLUSTER
    node: int = PER_NODE

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Slots:
        """Read the limits from the environment. Raises `ValueError` that names a value other than a number above 0."""
        return cls(
            _positive(environment, "MIGRATIONS_PER_CLUSTER", PER_CLUSTER),
            _positive(environment, "MIGRATIONS_PER_NODE", PER_NODE),
        )


def _positive(environment: Mapping[str, str], name: str, usual: int) -> int:
    told = environment.get(name) or str(usual)
    if not (told.isascii() and told.isdecimal() and int(told[:9]) > 0 and len(told) < 9):
        raise ValueError(f"{name}={told} is no number above 0: set how many migrations may run at once")
    return int(told)


class Wait(NamedTuple):
    """What a VMI on a drained node waits for: the node, a reason in one word, and a message for users."""

    node: str
    reason: str
    message: str


@dataclass
class Evacuation:
    """The result of one pass.

    Attributes:
        due: Name of a migration → its VMI; all are claimed, then created.
        held: Claims under which other attempts may still create migrations.
        waits: Namespace and name of a VMI that is still on a drained node → what it waits for.
        outdated: Our finished migrations that may be deleted; the newest ones of each VMI are kept.
    """

    due: dict[str, Item] = field(default_factory=dict)
    held: Claims = field(default_factory=dict)
    waits: dict[tuple[str, str], Wait] = field(default_factory=dict)
    outdated: list[Item] = field(default_factory=list)


def evacuation(
    vmis: Iterable[Item],
    migrations: Collection[Item],
    drained: Collection[str],
    claimed: Mapping[str, Claim],
    slots: Slots,
    now: datetime,
    attempt: str = "",
    refused: Mapping[str, Refusal] | None = None,
) -> Evacuation:
    """Compute what `attempt` must do for the VMIs with `LiveMigrate` on the nodes `drained`.

    In: all VMIs and migrations; the claims and the recent refusals in the Lease. VMIs are sorted by name, so that
    concurrent passes choose the same VMI next. VMIs whose migration was refused before come last, so that they take no
    other VMI's slot.
    """
    refused = refused or {}
    known = {key(vmi): vmi for vmi in vmis}
    of, running = by_machine(migrations), _running(known, migrations)
    held = holding(claimed, {item["metadata"]["name"] for item in migrations}, now)
    found = Evacuation(held={name: claim for name, claim in held.items() if claim.attempt != attempt})
    found.outdated = [item for one, vmi in known.items() for item in _outdated(vmi, of[one])]
    ready: list[tuple[int, str, Item]] = []
    for one, vmi in sorted(known.items()):
        if node_of(vmi) not in drained or not is_kept(vmi):
            continue
        name = next_name(vmi, of[one])
        wait = _wait(vmi, running.get(one), of[one], refused.get(name), now)
        if wait is None:
            ready.append((refused[name].times if name in refused else 0, name, vmi))
        else:
            found.waits[one] = wait
    busy = Counter(source_of(item) or node_of(known[one]) for one, item in running.items())
    busy.update(claim.node for claim in held.values())
    _share_slots(found, [(name, vmi) for _, name, vmi in sorted(ready, key=lambda each: each[0])], held, busy, slots)
    return found


def _running(known: Mapping[tuple[str, str], Item], migrations: Iterable[Item]) -> dict[tuple[str, str], Item]:
    """Return the unfinished migration of each VMI, by the VMI's namespace and name.

    A migration whose VMI no longer exists occupies no slot.
    """
    unfinished = ((vmi_of(item), item) for item in migrations if not is_finished(item))
    return {one: item for one, item in unfinished if one in known and is_moved_by(known[one], item)}


def _share_slots(
    found: Evacuation, ready: Iterable[tuple[str, Item]], held: Collection[str], busy: Counter[str], slots: Slots
) -> None:
    """Make as many VMIs due as there are free slots, and let the others wait; `busy` counts occupied slots by node."""
    for name, vmi in ready:
        node, count = node_of(vmi), sum(busy.values())
        if name not in held and (count >= slots.cluster or busy[node] >= slots.node):
            found.waits[key(vmi)] = Wait(node, WAITS_FOR_SLOT, _full(count, busy[node], node, slots))
            continue
        busy[node] += name not in held
        if name not in found.held:
            found.due[name] = vmi
        found.waits[key(vmi)] = Wait(node, MIGRATING, f"migration {name} is about to be created")


def _full(count: int, here: int, node: str, slots: Slots) -> str:
    if count >= slots.cluster:
        return f"{count} of {slots.cluster} migrations run"
    return f"{here} of {slots.node} migrations run from node {node}"


def _wait(
    vmi: Item, running: Item | None, migrations: Iterable[Item], refusal: Refusal | None, now: datetime
) -> Wait | None:
    """Return what the VMI waits for, apart from a slot; None for nothing."""
    node = node_of(vmi)
    if running is not None:
        return Wait(node, MIGRATING, progress(running, vmi))
    if why := hindrance(vmi):
        return Wait(node, NOT_MIGRATABLE, shortened(why, LONGEST_MESSAGE))
    if refusal is not None and now < refusal.until:
        again = f"tried again {_by_tick(refusal.until)}"
        said = f"its migration is not created, and {again}: {refusal.words}"
        return Wait(node, FAILED, shortened(said, LONGEST_MESSAGE))
    return _paused(vmi, migrations, now)


def _paused(vmi: Item, migrations: Iterable[Item], now: datetime) -> Wait | None:
    """Return the backoff after the migrations that failed since the last success, or None if it is over."""
    ours = _ours(vmi, migrations)
    success = max((number for number, item in ours.items() if is_finished(item) and not has_failed(item)), default=0)
    failures = (item for number, item in ours.items() if number > success and has_failed(item))
    failed = sorted((_ended(item, now), item["metadata"]["name"]) for item in failures)
    if not failed:
        return None
    again = failed[-1][0] + min(SHORTEST * 2 ** min(len(failed) - 1, 10), LONGEST)
    if now >= again:
        return None
    times = "once" if len(failed) == 1 else f"{len(failed)} times{' or more' if len(failed) >= KEPT else ''}"
    said = f"its migration failed {times}, last {failed[-1][1]}; it is tried again {_by_tick(again)}"
    return Wait(node_of(vmi), FAILED, said)


def _by_tick(moment: datetime) -> str:
    """Return when the retry happens, as text; only the tick retries, because no event signals the end of a backoff."""
    return f"with the first tick after {timestamp(moment)}"


def progress(migration: Item, vmi: Item) -> str:
    """Describe the progress of a migration in a sentence.

    The VMI's migration state is used only if it belongs to this migration and not to the previous one.
    """
    state = (vmi.get("status") or {}).get("migrationState") or {}
    is_its_own = state.get("migrationUid") == migration["metadata"].get("uid")
    target = f" to node {state['targetNode']}" if is_its_own and state.get("targetNode") else ""
    phase = (migration.get("status") or {}).get("phase") or "Pending"
    return f"migration {migration['metadata']['name']}{target} is {phase}"


def _ended(migration: Item, now: datetime) -> datetime:
    """Return when the migration failed: its end time unless that is in the future, else its creation time."""
    state = (migration.get("status") or {}).get("migrationState") or {}
    ended = moment_or_none(state.get("endTimestamp"))
    made = moment_or_none(migration["metadata"].get("creationTimestamp"))
    return min(ended if ended and ended <= now else made or now, now)


def _ours(vmi: Item, migrations: Iterable[Item]) -> dict[int, Item]:
    """Return the migrations that we created for this VMI, by number, without those of an earlier VMI of that name."""
    named = re.compile(rf"evacuation-{re.escape(vmi['metadata']['uid'])}-([1-9]\d{{0,8}})", re.ASCII)
    found = ((named.fullmatch(item["metadata"]["name"]), item) for item in migrations)
    return {int(match[1]): item for match, item in found if match}


def _outdated(vmi: Item, migrations: Collection[Item]) -> list[Item]:
    """Return the finished migrations that we created for this VMI, except the newest ones."""
    if len(migrations) <= KEPT:
        return []
    return [item for _, item in sorted(_ours(vmi, migrations).items()) if is_finished(item)][:-KEPT]


def next_name(vmi: Item, migrations: Iterable[Item]) -> str:
    """Return the name of the VMI's next migration.

    Two processes that read the same state compute the same name, so only one of them can create the object.
    """
    return f"evacuation-{vmi['metadata']['uid']}-{max(_ours(vmi, migrations), default=0) + 1}"
