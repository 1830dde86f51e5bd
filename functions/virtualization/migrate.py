"""Migrate virtual machines away from drained nodes, each with a VirtualMachineInstanceMigration (DRN-8, OSV-2).

A drain taint of either API group on a node requests the migrations, whether this product or an administrator added the
taint. Before the step creates migrations, it claims their names in a Lease. The claims keep concurrent processes within
the limit on concurrent migrations, and prevent duplicates after a crash.

A slow process stops creating migrations before its claims expire. If a create request got no response, the redelivered
event retries it with the same claim. After a second create request without a response, the migration backs off. The
step deletes all of its finished migrations of a VM except the newest one. If KubeVirt's own controllers are installed,
they migrate the virtual machines, and this step does nothing (DRN-10).

In: `node.tainted`; a PingSource tick; an updated VirtualMachineInstance, an updated or deleted
VirtualMachineInstanceMigration, by reference. Out: nothing.
Touches: virtualmachineinstances list; virtualmachineinstancemigrations list, create, delete; kubevirts list;
nodes get, list; leases get, create, patch in medik8s-leases.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.failures import Retry
from functions.installs import is_active_install
from functions.round_robin import RoundRobin
from functions.steps import step
from functions.work_queue import HintPolicy, WorkKey
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import get_seconds_left, set_deadline
from kube.client.discovery import has_kubevirt
from kube.client.sync_client import SyncClient
from kube.paths import LEASE_NAMESPACE, LEASES_PATH, Object
from kube.text_limits import format_count
from kube.virtualization import lookup
from kube.virtualization.evacuation import MigrationSlots
from kube.virtualization.lookup import MigrationSnapshot
from kube.virtualization.migration_claims import (
    LEASE_PATH,
    NO_ATTEMPT,
    WRITE_TIMEOUT_SECONDS,
    add_refusals,
    build_claims,
    build_lease,
    build_lease_patch,
    parse_claims,
    parse_refusals,
)
from kube.virtualization.vmis import (
    HINT_KINDS,
    Resource,
    build_migration,
    build_migration_path,
    build_migrations_path,
    get_key,
    requests_live_migration,
)

MAX_PASSES_PER_EVENT = 3
"""Maximum number of passes for one event.

After a pass with rejected migrations, the next pass uses their migration slots for other VMIs.
"""
WRITE_TIME_SHARE = 0.8
"""Fraction of the remaining time that writes may use.

If a write hangs, enough time remains to record the failure in the Lease.
"""
AMBIGUOUS_STATUSES = (0, 504)
"""HTTP statuses after which the API server may still create the migration: 0 (no response) and 504 (its timeout)."""
MAX_DELETIONS_PER_PASS = 20
"""Maximum number of finished migrations that one pass deletes."""
DELETION_ROTATION = RoundRobin()
"""Round-robin position for the migrations to delete; each process has its own."""
log = logging.getLogger("functions")


class CreateFailure(NamedTuple):
    """Error of a create request for a migration.

    Attributes:
        message: The error message.
        is_transient: Whether a retry may succeed.
        is_ambiguous: Whether the API server may still create the migration.
    """

    message: str
    is_transient: bool
    is_ambiguous: bool


@step(
    "migrate",
    consumes=(events.NODE_TAINTED, events.TICK, events.REFERENCE_UPDATED, events.REFERENCE_DELETED),
    emits=(),
    coalescing=HintPolicy(lambda _event: WorkKey("VMIs to migrate")),
)
def migrate(event: BaseCloudEvent, client: SyncClient) -> list[BaseCloudEvent]:
    """Create the migrations that are due; if no virtual machine requests live migration, send only one request.

    Raises `Retry` if another process claims migrations at the same time, or if a create request got no response for the
    first time. Raises `Unavailable` if the deadline passes.
    """
    if event.get_extension("kind") not in HINT_KINDS:
        return []
    vmis = list(filter(requests_live_migration, client.run(lookup.list_vmis(client.api))))
    if not vmis or client.run(has_kubevirt(client.api)) or not is_active_install(client):
        return []
    attempt, slots = event.get_id(), parse_migration_slots(os.environ)
    for _ in range(MAX_PASSES_PER_EVENT):
        snapshot = client.run(lookup.read_migration_snapshot(client.api, vmis, slots, attempt))
        if not snapshot.evacuation.due_migrations or not _create_due_migrations(snapshot, attempt, client):
            break
    _delete_outdated_migrations(snapshot.evacuation.outdated_migrations, client)
    return []


def parse_migration_slots(environment: Mapping[str, str]) -> MigrationSlots:
    """Return the limits on concurrent migrations. Raises `ValueError` if an environment variable is invalid."""
    return MigrationSlots.from_environment(environment)


def _delete_outdated_migrations(outdated_migrations: Iterable[Resource], client: SyncClient) -> None:
    """Delete at most `MAX_DELETIONS_PER_PASS` outdated migrations concurrently, because every pass has to read them.

    If migrations cannot be deleted, the function logs an error, and a later pass retries.
    """
    selected = DELETION_ROTATION.take(map(dict, outdated_migrations), MAX_DELETIONS_PER_PASS)
    errors = [
        error for error in client.gather_all(*(_delete_migration(item, client.api) for item in selected)) if error
    ]
    if errors:
        log.warning("cannot delete %s: %s", format_count(len(errors), "finished migration"), errors[0])


async def _delete_migration(migration: Resource, api: Api) -> str:
    """Delete a migration; return the error message, or "" on success."""
    try:
        with set_deadline(WRITE_TIME_SHARE * get_seconds_left()):
            await api.delete(build_migration_path(migration), uid=migration["metadata"]["uid"])
    except (NotFound, Conflict):
        return ""
    except ApiError as error:
        return error.message or "the API server gave no reason"
    return ""


def _create_due_migrations(snapshot: MigrationSnapshot, attempt: str, client: SyncClient) -> bool:
    """Claim and create the due migrations; return whether a migration was rejected, so that its slot is free again.

    If a create request got no response or a server error, raises `Retry` after trying all migrations. The redelivered
    event then retries with the same claim. If that retry fails in the same way, the migration counts as rejected.
    """
    due = snapshot.evacuation.due_migrations
    with set_deadline(min(get_seconds_left(), WRITE_TIMEOUT_SECONDS)):
        lease = _write_claims(snapshot, attempt, client)
        outcomes = client.gather_all(*(_create_migration(name, vmi, client.api) for name, vmi in due.items()))
        failures = {name: failure for name, failure in zip(due, outcomes, strict=True) if failure}
        resumed = {name for name, claim in parse_claims(snapshot.lease).items() if claim.attempt == attempt}
        to_retry = [name for name, failure in failures.items() if failure.is_transient and name not in resumed]
        refused = {name: failure for name, failure in failures.items() if name not in to_retry}
        _release_claims(due.keys() - to_retry, refused, lease, snapshot.now, client)
    if to_retry:
        raise Retry(f"cannot create migrations yet, retrying after a backoff: {', '.join(to_retry)}")
    return any(not failure.is_ambiguous for failure in failures.values())


def _release_claims(
    settled: Collection[str], refused: Mapping[str, CreateFailure], lease: Object, now: datetime, client: SyncClient
) -> None:
    """Remove the claims on `settled` migrations (created or refused), because each claim occupies a migration slot.

    The Lease stores the error message of a refused migration, which then backs off. A migration that the API server may
    still create keeps its claim and thus its slot, but no redelivered event retries it. A pass reads the Lease before
    the migrations, so if a claim has been removed, the pass finds the created migration.
    """
    claims = parse_claims(lease)
    for name in claims.keys() & settled:
        if name in refused and refused[name].is_ambiguous:
            claims[name] = claims[name]._replace(attempt=NO_ATTEMPT)
        else:
            del claims[name]
    messages = {name: failure.message for name, failure in refused.items()}
    refusals = add_refusals(parse_refusals(lease, now), messages, now)
    try:
        client.patch(LEASE_PATH, build_lease_patch(lease, claims, refusals))
    except (Conflict, NotFound):
        return  # Another process has changed the Lease, so these claims occupy their slots until they expire.


def _write_claims(snapshot: MigrationSnapshot, attempt: str, client: SyncClient) -> Object:
    """Add claims on the due migrations to the Lease, keep the claims of other attempts, and return the Lease."""
    evacuation = snapshot.evacuation
    claims = {**evacuation.held_claims, **build_claims(attempt, evacuation.due_migrations, snapshot.now)}
    try:
        if snapshot.lease is None:
            return client.create(LEASES_PATH, build_lease(claims))
        refusals = parse_refusals(snapshot.lease, snapshot.now)
        return client.patch(LEASE_PATH, build_lease_patch(snapshot.lease, claims, refusals))
    except Conflict:
        raise Retry("another process claimed migrations at the same time") from None
    except NotFound:
        raise Retry(f'namespace "{LEASE_NAMESPACE}" not found: apply the manifests again') from None


async def _create_migration(name: str, vmi: Resource, api: Api) -> CreateFailure | None:
    """Create the migration `name` of the VMI; return None if it was created or already exists, else the failure.

    The request also passes its timeout to the API server, in case this process dies and cannot cancel the request.
    """
    (namespace, instance), path = get_key(vmi), build_migrations_path(get_key(vmi)[0])
    query = {"timeout": f"{WRITE_TIMEOUT_SECONDS:g}s"}
    try:
        with set_deadline(WRITE_TIME_SHARE * get_seconds_left()):
            await api.request("POST", path, query=query, body=build_migration(name, vmi))
    except Conflict:
        return None
    except ApiError as error:
        log.warning("cannot create the migration of VMI %s/%s: %s", namespace, instance, error.message)
        return CreateFailure(
            error.message or "the API server gave no reason",
            isinstance(error, Unavailable),
            error.status in AMBIGUOUS_STATUSES,
        )
    log.info("migrating VMI %s/%s with migration %s", namespace, instance, name)
    return None
