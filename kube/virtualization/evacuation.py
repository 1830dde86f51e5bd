"""Decides which VMI migrates next, and determines what each other VMI on a drained node waits for.

Slots limit the number of concurrent migrations. Before a migration is created, its name is claimed in a single Lease.
Otherwise, concurrent passes would use the same free slots. A claim names its attempt and lasts longer than the creation
can take. Until it expires, no other attempt creates the migration, and the slot stays occupied, whatever happens to the
VMI.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
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
    get_vmi_key,
    group_by_vmi,
    has_failed,
    is_finished,
    is_migrated_by,
    is_protected,
)

DEFAULT_MIGRATIONS_PER_CLUSTER, DEFAULT_MIGRATIONS_PER_NODE = 5, 2
"""KubeVirt's default limits for concurrent migrations."""
MIN_BACKOFF, MAX_BACKOFF = timedelta(seconds=10), timedelta(minutes=5)
"""Bounds of the backoff after a failed migration; each backoff is twice the previous one."""
MAX_KEPT_MIGRATIONS = 6
"""Number of finished migrations to keep for each VMI; this many failures lead to the longest backoff."""
MAX_MESSAGE_CHARACTERS = 512
MIGRATING, NOT_MIGRATABLE, WAITS_FOR_SLOT, MIGRATION_FAILED, _ = VIRT_LAUNCHER_REASONS


class MigrationSlots(NamedTuple):
    """Limits for concurrent migrations: in the cluster, and from one node."""

    per_cluster: int = DEFAULT_MIGRATIONS_PER_CLUSTER
    per_node: int = DEFAULT_MIGRATIONS_PER_NODE

    @classmethod
    def from_environment(cls, environment: Mapping[str, str]) -> MigrationSlots:
        """Read the limits from the environment. Raises `ValueError` if a limit is not a positive number."""
        return cls(
            _parse_positive_integer(environment, "MIGRATIONS_PER_CLUSTER", DEFAULT_MIGRATIONS_PER_CLUSTER),
            _parse_positive_integer(environment, "MIGRATIONS_PER_NODE", DEFAULT_MIGRATIONS_PER_NODE),
        )


def _parse_positive_integer(environment: Mapping[str, str], name: str, default: int) -> int:
    text = environment.get(name) or str(default)
    if not (text.isascii() and text.isdecimal() and int(text[:9]) > 0 and len(text) < 9):
        raise ValueError(f"{name}={text} is not a number above 0: set the maximum number of concurrent migrations")
    return int(text)


class Wait(NamedTuple):
    """What a VMI on a drained node waits for: the node, a reason in one word, and a message for users."""

    node: str
    reason: str
    message: str


@dataclass
class EvacuationPlan:
    """The actions of one pass, and the state that it reports.

    Attributes:
        due_migrations: Name of a migration → its VMI; the pass claims all these migrations, then creates them.
        held_claims: Claims under which other attempts may still create migrations.
        waits: Namespace and name of a VMI that is still on a drained node → what the VMI waits for.
        outdated_migrations: Our finished migrations that may be deleted, without the newest ones of each VMI.
    """

    due_migrations: dict[str, Resource] = field(default_factory=dict)
    held_claims: ClaimsByName = field(default_factory=dict)
    waits: dict[tuple[str, str], Wait] = field(default_factory=dict)
    outdated_migrations: list[Resource] = field(default_factory=list)


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
    """Compute what an attempt must do for the VMIs with `LiveMigrate` on the nodes `drained_nodes`.

    `vmis` and `migrations` are those of the whole cluster; `claims` and `refusals` come from the Lease. VMIs are sorted
    by name, so that concurrent passes choose the same VMI next. VMIs whose migration was refused before come last, so
    that they do not take another VMI's slot.
    """
    refusals = refusals or {}
    vmis_by_key = {get_key(vmi): vmi for vmi in vmis}
    migrations_by_vmi, running_by_vmi = group_by_vmi(migrations), _find_unfinished_migrations(vmis_by_key, migrations)
    held_claims = select_held_claims(claims, {item["metadata"]["name"] for item in migrations}, now)
    plan = EvacuationPlan(
        held_claims={name: claim for name, claim in held_claims.items() if claim.attempt != attempt_id}
    )
    plan.outdated_migrations = [
        migration
        for vmi_key, vmi in vmis_by_key.items()
        for migration in _find_outdated_migrations(vmi, migrations_by_vmi[vmi_key])
    ]
    candidates: list[tuple[int, str, Resource]] = []
    for vmi_key, vmi in sorted(vmis_by_key.items()):
        if get_node_name(vmi) not in drained_nodes or not is_protected(vmi):
            continue
        name = build_next_migration_name(vmi, migrations_by_vmi[vmi_key])
        wait = _find_wait(vmi, running_by_vmi.get(vmi_key), migrations_by_vmi[vmi_key], refusals.get(name), now)
        if wait is None:
            candidates.append((refusals[name].times if name in refusals else 0, name, vmi))
        else:
            plan.waits[vmi_key] = wait
    used_slots = Counter(
        get_source_node(item) or get_node_name(vmis_by_key[vmi_key]) for vmi_key, item in running_by_vmi.items()
    )
    used_slots.update(claim.node for claim in held_claims.values())
    _assign_slots(
        plan,
        [(name, vmi) for _, name, vmi in sorted(candidates, key=lambda candidate: candidate[0])],
        held_claims,
        used_slots,
        slots,
    )
    return plan


def _find_unfinished_migrations(
    vmis_by_key: Mapping[tuple[str, str], Resource], migrations: Iterable[Resource]
) -> dict[tuple[str, str], Resource]:
    """Return the unfinished migration of each VMI, by the VMI's namespace and name.

    A migration whose VMI no longer exists occupies no slot.
    """
    unfinished = ((get_vmi_key(item), item) for item in migrations if not is_finished(item))
    return {
        vmi_key: item
        for vmi_key, item in unfinished
        if vmi_key in vmis_by_key and is_migrated_by(vmis_by_key[vmi_key], item)
    }


def _assign_slots(
    plan: EvacuationPlan,
    candidates: Iterable[tuple[str, Resource]],
    claimed_names: Collection[str],
    used_slots: Counter[str],
    slots: MigrationSlots,
) -> None:
    """Plan a migration for as many VMIs as there are free slots, and record that the other VMIs wait for a slot.

    `used_slots` counts the occupied slots by node.
    """
    for name, vmi in candidates:
        node, used_in_cluster = get_node_name(vmi), sum(used_slots.values())
        if name not in claimed_names and (used_in_cluster >= slots.per_cluster or used_slots[node] >= slots.per_node):
            plan.waits[get_key(vmi)] = Wait(
                node, WAITS_FOR_SLOT, _format_slot_usage(used_in_cluster, used_slots[node], node, slots)
            )
            continue
        used_slots[node] += name not in claimed_names
        if name not in plan.held_claims:
            plan.due_migrations[name] = vmi
        plan.waits[get_key(vmi)] = Wait(node, MIGRATING, f"migration {name} is about to be created")


def _format_slot_usage(used_in_cluster: int, used_on_node: int, node_name: str, slots: MigrationSlots) -> str:
    if used_in_cluster >= slots.per_cluster:
        return f"{used_in_cluster} of {slots.per_cluster} concurrent migrations run in the cluster"
    return f"{used_on_node} of {slots.per_node} concurrent migrations run from node {node_name}"


def _find_wait(
    vmi: Resource,
    unfinished: Resource | None,
    migrations: Iterable[Resource],
    refusal: MigrationRefusal | None,
    now: datetime,
) -> Wait | None:
    """Return what the VMI waits for, apart from a slot; None if the VMI waits for nothing else."""
    node = get_node_name(vmi)
    if unfinished is not None:
        return Wait(node, MIGRATING, format_progress(unfinished, vmi))
    if blocker := find_migration_blocker(vmi):
        return Wait(node, NOT_MIGRATABLE, truncate(blocker, MAX_MESSAGE_CHARACTERS))
    if refusal is not None and now < refusal.until:
        retry_note = f"is retried {_format_retry_time(refusal.until)}"
        message = f"its migration could not be created, and {retry_note}: {refusal.words}"
        return Wait(node, MIGRATION_FAILED, truncate(message, MAX_MESSAGE_CHARACTERS))
    return _find_backoff(vmi, migrations, now)


def _find_backoff(vmi: Resource, migrations: Iterable[Resource], now: datetime) -> Wait | None:
    """Return the backoff after the migrations that failed since the last success, or None if the backoff is over."""
    own_migrations = _index_migrations_by_number(vmi, migrations)
    success = max(
        (number for number, item in own_migrations.items() if is_finished(item) and not has_failed(item)), default=0
    )
    failures = (item for number, item in own_migrations.items() if number > success and has_failed(item))
    failed = sorted((_get_failure_time(item, now), item["metadata"]["name"]) for item in failures)
    if not failed:
        return None
    retry_at = failed[-1][0] + min(MIN_BACKOFF * 2 ** min(len(failed) - 1, 10), MAX_BACKOFF)
    if now >= retry_at:
        return None
    times = (
        "once" if len(failed) == 1 else f"{len(failed)} times{' or more' if len(failed) >= MAX_KEPT_MIGRATIONS else ''}"
    )
    message = f"its migration failed {times}, last {failed[-1][1]}; it is retried {_format_retry_time(retry_at)}"
    return Wait(get_node_name(vmi), MIGRATION_FAILED, message)


def _format_retry_time(retry_at: datetime) -> str:
    """Format the time of the retry; only the tick retries, because no event signals the end of a backoff."""
    return f"at the first tick after {format_time(retry_at)}"


def format_progress(migration: Resource, vmi: Resource) -> str:
    """Describe the progress of a migration in a sentence.

    The VMI's migration state is used only if it describes this migration and not the previous one.
    """
    state = (vmi.get("status") or {}).get("migrationState") or {}
    is_current = state.get("migrationUid") == migration["metadata"].get("uid")
    target = f" to node {state['targetNode']}" if is_current and state.get("targetNode") else ""
    phase = (migration.get("status") or {}).get("phase") or "Pending"
    return f"migration {migration['metadata']['name']}{target} is {phase}"


def _get_failure_time(migration: Resource, now: datetime) -> datetime:
    """Return when the migration failed: the end time unless it is in the future, else the creation time."""
    state = (migration.get("status") or {}).get("migrationState") or {}
    ended_at = parse_time_or_none(state.get("endTimestamp"))
    created_at = parse_time_or_none(migration["metadata"].get("creationTimestamp"))
    return min(ended_at if ended_at and ended_at <= now else created_at or now, now)


def _index_migrations_by_number(vmi: Resource, migrations: Iterable[Resource]) -> dict[int, Resource]:
    """Return the migrations that we created for the VMI with this uid, by the number in the migration's name."""
    name_pattern = re.compile(rf"evacuation-{re.escape(vmi['metadata']['uid'])}-([1-9]\d{{0,8}})", re.ASCII)
    matches = ((name_pattern.fullmatch(item["metadata"]["name"]), item) for item in migrations)
    return {int(match[1]): item for match, item in matches if match}


def _find_outdated_migrations(vmi: Resource, migrations: Collection[Resource]) -> list[Resource]:
    """Return the finished migrations that we created for this VMI, without the newest `MAX_KEPT_MIGRATIONS`."""
    if len(migrations) <= MAX_KEPT_MIGRATIONS:
        return []
    return [item for _, item in sorted(_index_migrations_by_number(vmi, migrations).items()) if is_finished(item)][
        :-MAX_KEPT_MIGRATIONS
    ]


def build_next_migration_name(vmi: Resource, migrations: Iterable[Resource]) -> str:
    """Return the name of the VMI's next migration.

    Two processes that read the same state compute the same name, so only one of them can create the object.
    """
    return f"evacuation-{vmi['metadata']['uid']}-{max(_index_migrations_by_number(vmi, migrations), default=0) + 1}"
