"""Decides which VMIs on drained nodes to migrate next, and determines what the other VMIs wait for.

Migration slots limit the number of concurrent migrations. Before a migration is created, its name is claimed in a
Lease. Otherwise, concurrent passes would use the same free slots. A claim contains the id of its attempt, and is valid
for longer than the creation can take. Until the claim expires, no other attempt creates the migration, and the slot
stays occupied, even if the VMI no longer exists.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cached_property
from operator import itemgetter
from typing import NamedTuple

from kube.budgets import VIRT_LAUNCHER_REASONS
from kube.text_limits import truncate
from kube.times import format_time, parse_time_or_none
from kube.virtualization.migration_claims import ClaimsByName, MigrationClaim, MigrationRefusal, select_held_claims
from kube.virtualization.vmis import (
    Resource,
    find_migration_blocker,
    get_key,
    get_node_name,
    get_source_node,
    group_by_vmi,
    has_failed,
    is_finished,
    is_migration_of_vmi,
    requires_migration_before_eviction,
)

DEFAULT_MIGRATIONS_PER_CLUSTER, DEFAULT_MIGRATIONS_PER_NODE = 5, 2
"""KubeVirt's default limits on concurrent migrations."""
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(minutes=5)
"""Minimum and maximum backoff after a failed migration; each backoff is twice the previous one."""
MAX_KEPT_MIGRATIONS = 6
"""Number of finished migrations to keep per VMI; the backoff after this many failures is the maximum."""
MAX_MESSAGE_CHARACTERS = 512
MIGRATING, NOT_MIGRATABLE, WAITS_FOR_SLOT, MIGRATION_FAILED, _ = VIRT_LAUNCHER_REASONS


class MigrationSlots(NamedTuple):
    """Limits on concurrent migrations: in the cluster, and from one node."""

    per_cluster: int = DEFAULT_MIGRATIONS_PER_CLUSTER
    per_node: int = DEFAULT_MIGRATIONS_PER_NODE

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> MigrationSlots:
        """Read the limits from environment variables. Raises `ValueError` if a limit is not a positive number."""
        return cls(
            _parse_positive_integer(environment, "MIGRATIONS_PER_CLUSTER", DEFAULT_MIGRATIONS_PER_CLUSTER),
            _parse_positive_integer(environment, "MIGRATIONS_PER_NODE", DEFAULT_MIGRATIONS_PER_NODE),
        )


def _parse_positive_integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and len(text) < 9 and int(text) > 0):
        raise ValueError(f"{name}={text} is not a number above 0: set the maximum number of concurrent migrations")
    return int(text)


class Wait(NamedTuple):
    """What a VMI on a drained node waits for: the VMI's node, a reason in CamelCase, and a message for users."""

    node: str
    reason: str
    message: str


@dataclass
class EvacuationPlan:
    """The actions of one pass, and the state that the pass reports.

    Attributes:
        due_migrations: The VMIs to migrate, by migration name; the pass claims all of them, then creates the
        migrations.
        held_claims: Claims with which other attempts may still create migrations.
        waits: What each VMI that is still on a drained node waits for, by the VMI's namespace and name.
        outdated_migrations: Finished migrations that this project created and may delete; they exclude the newest ones
            of each VMI.
    """

    due_migrations: dict[str, Resource] = field(default_factory=dict)
    held_claims: ClaimsByName = field(default_factory=dict)
    waits: dict[tuple[str, str], Wait] = field(default_factory=dict)
    outdated_migrations: list[Resource] = field(default_factory=list)


@dataclass(frozen=True)
class MigrationHistory:
    """A VMI with all migrations that refer to it; those that this project created have numbered names."""

    vmi: Resource
    migrations: Collection[Resource]

    @cached_property
    def unfinished(self) -> Resource | None:
        """Return the VMI's unfinished migration, None if there is none."""
        own = [item for item in self.migrations if not is_finished(item) and is_migration_of_vmi(self.vmi, item)]
        return own[-1] if own else None

    @cached_property
    def created_by_number(self) -> dict[int, Resource]:
        """Return the migrations that this project created for this VMI, by the number in the migration's name."""
        name_pattern = re.compile(rf"evacuation-{re.escape(self.vmi['metadata']['uid'])}-([1-9]\d{{0,8}})", re.ASCII)
        matches = ((name_pattern.fullmatch(item["metadata"]["name"]), item) for item in self.migrations)
        return {int(match[1]): item for match, item in matches if match}

    @property
    def next_name(self) -> str:
        """Return the name of the VMI's next migration.

        Processes that read the same state compute the same name, so that only one of them can create the object.
        """
        return f"evacuation-{self.vmi['metadata']['uid']}-{max(self.created_by_number, default=0) + 1}"

    def list_outdated_migrations(self) -> list[Resource]:
        """Return the finished migrations that this project created, except for the newest `MAX_KEPT_MIGRATIONS`."""
        if len(self.migrations) <= MAX_KEPT_MIGRATIONS:
            return []
        numbered = sorted(self.created_by_number.items())
        return [item for _, item in numbered if is_finished(item)][:-MAX_KEPT_MIGRATIONS]

    def find_wait(self, refusal: MigrationRefusal | None, now: datetime) -> Wait | None:
        """Return what the VMI waits for besides a migration slot; None if it waits for nothing else."""
        node = get_node_name(self.vmi)
        if self.unfinished is not None:
            return Wait(node, MIGRATING, format_progress(self.unfinished, self.vmi))
        if blocker := find_migration_blocker(self.vmi):
            return Wait(node, NOT_MIGRATABLE, truncate(blocker, MAX_MESSAGE_CHARACTERS))
        if refusal is not None and now < refusal.until:
            retry_note = f"is retried {_format_retry_time(refusal.until)}"
            message = f"its migration could not be created, and {retry_note}: {refusal.words}"
            return Wait(node, MIGRATION_FAILED, truncate(message, MAX_MESSAGE_CHARACTERS))
        return self._find_backoff(now)

    def _find_backoff(self, now: datetime) -> Wait | None:
        """Return the backoff after the migrations that failed since the last success; None if it has ended."""
        failed: list[tuple[datetime, str]] = []
        for _, item in sorted(self.created_by_number.items()):
            if has_failed(item):
                failed.append((_get_failure_time(item, now), item["metadata"]["name"]))
            elif is_finished(item):
                failed.clear()
        if not failed:
            return None
        count, (failed_at, name) = len(failed), max(failed)
        retry_at = failed_at + min(MIN_BACKOFF * 2 ** min(count - 1, 10), MAX_BACKOFF)
        if now >= retry_at:
            return None
        times = "once" if count == 1 else f"{count} times{' or more' if count >= MAX_KEPT_MIGRATIONS else ''}"
        message = f"its migration failed {times}, last {name}; it is retried {_format_retry_time(retry_at)}"
        return Wait(get_node_name(self.vmi), MIGRATION_FAILED, message)


def plan_evacuation(
    vmis: Iterable[Resource],
    migrations: Collection[Resource],
    drained_nodes: Collection[str],
    claims: Mapping[str, MigrationClaim],
    slots: MigrationSlots,
    now: datetime,
    attempt_id: str = "",
    refusals: Mapping[str, MigrationRefusal] | None = None,
) -> EvacuationPlan:
    """Compute what an attempt must do for the VMIs with the eviction strategy `LiveMigrate` on `drained_nodes`.

    `vmis` and `migrations` are those of the whole cluster; `claims` and `refusals` come from the Lease. VMIs are sorted
    by name, so that concurrent passes choose the same VMI next. VMIs whose migration was refused before come last, so
    that they do not take another VMI's slot.
    """
    migrations_by_vmi = group_by_vmi(migrations)
    histories = [MigrationHistory(vmi, migrations_by_vmi[get_key(vmi)]) for vmi in sorted(vmis, key=get_key)]
    held_claims = select_held_claims(claims, {item["metadata"]["name"] for item in migrations}, now)
    plan = EvacuationPlan(
        held_claims={name: claim for name, claim in held_claims.items() if claim.attempt != attempt_id},
        outdated_migrations=[item for history in histories for item in history.list_outdated_migrations()],
    )
    candidates: list[tuple[int, MigrationHistory]] = []
    for history in histories:
        if get_node_name(history.vmi) not in drained_nodes or not requires_migration_before_eviction(history.vmi):
            continue
        refusal = (refusals or {}).get(history.next_name)
        if wait := history.find_wait(refusal, now):
            plan.waits[get_key(history.vmi)] = wait
        else:
            candidates.append((refusal.times if refusal else 0, history))
    candidates.sort(key=itemgetter(0))
    _assign_slots(
        plan, [history for _, history in candidates], held_claims, _count_used_slots(histories, held_claims), slots
    )
    return plan


def _count_used_slots(histories: Iterable[MigrationHistory], claims: Mapping[str, MigrationClaim]) -> Counter[str]:
    """Count the occupied slots by source node; a migration whose VMI no longer exists occupies no slot."""
    used_slots = Counter(
        get_source_node(history.unfinished) or get_node_name(history.vmi) for history in histories if history.unfinished
    )
    used_slots.update(claim.node for claim in claims.values())
    return used_slots


def _assign_slots(
    plan: EvacuationPlan,
    candidates: Iterable[MigrationHistory],
    claimed_names: Collection[str],
    used_slots: Counter[str],
    slots: MigrationSlots,
) -> None:
    """Plan as many migrations as there are free slots, and record that the other VMIs wait for a slot."""
    for history in candidates:
        name, vmi, node = history.next_name, history.vmi, get_node_name(history.vmi)
        if name not in claimed_names:
            if usage := _find_exhausted_limit(used_slots, node, slots):
                plan.waits[get_key(vmi)] = Wait(node, WAITS_FOR_SLOT, usage)
                continue
            used_slots[node] += 1
        if name not in plan.held_claims:
            plan.due_migrations[name] = vmi
        plan.waits[get_key(vmi)] = Wait(node, MIGRATING, f"migration {name} is about to be created")


def _find_exhausted_limit(used_slots: Counter[str], node: str, slots: MigrationSlots) -> str:
    """Describe the limit that prevents a further migration from the node; "" if no limit does."""
    if used_slots.total() >= slots.per_cluster:
        return f"{used_slots.total()} of {slots.per_cluster} concurrent migrations run in the cluster"
    if used_slots[node] >= slots.per_node:
        return f"{used_slots[node]} of {slots.per_node} concurrent migrations run from node {node}"
    return ""


def _format_retry_time(retry_at: datetime) -> str:
    """Format the retry time; `resync` triggers the retry, because no event signals the end of a backoff."""
    return f"at the first resync after {format_time(retry_at)}"


def format_progress(migration: Resource, vmi: Resource) -> str:
    """Describe the progress of a migration in one sentence.

    The VMI's migration state is used only if it describes this migration instead of the previous one.
    """
    state = (vmi.get("status") or {}).get("migrationState") or {}
    is_current = state.get("migrationUid") == migration["metadata"].get("uid")
    target = f" to node {state['targetNode']}" if is_current and state.get("targetNode") else ""
    phase = (migration.get("status") or {}).get("phase") or "Pending"
    return f"migration {migration['metadata']['name']}{target} is {phase}"


def _get_failure_time(migration: Resource, now: datetime) -> datetime:
    """Return when the migration failed: its end time unless that is in the future, else its creation time."""
    state = (migration.get("status") or {}).get("migrationState") or {}
    ended_at = parse_time_or_none(state.get("endTimestamp"))
    created_at = parse_time_or_none(migration["metadata"].get("creationTimestamp"))
    return min(ended_at if ended_at and ended_at <= now else created_at or now, now)
