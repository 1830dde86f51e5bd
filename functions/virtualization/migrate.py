"""Migrate virtual machines away from drained nodes, each with a VirtualMachineInstanceMigration (DRN-8, OSV-2).

A drain taint with either key requests this, whether this system or an administrator has set it. Before the step creates
migrations, it claims their names in one Lease. The claims keep concurrent processes within the limits, and prevent
duplicates after a crash.

A delayed process stops creating migrations before its claims expire. A redelivered event continues with its own claim,
also after a creation without a response. After a second creation without a response, the migration backs off. Of its
own finished migrations, the step keeps the newest and deletes the others. If KubeVirt is installed, KubeVirt migrates
the virtual machines, and this step does nothing (DRN-10).

In: `node.tainted`; a PingSource tick; an updated VirtualMachineInstance, an updated or deleted
VirtualMachineInstanceMigration, by reference. Out: nothing.
Touches: virtualmachineinstances list; virtualmachineinstancemigrations list, create, delete; kubevirts list;
nodes get, list; leases get, create, patch in medik8s-leases.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.failures import Retry
from functions.pass_strategies import LookingAtState
from functions.installs import acts
from functions.round_robin import Turns
from functions.virtualization.migration_snapshot import KINDS, Scene, seen
from kube.client.api import Api
from kube.client.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.client.deadline import seconds_left, within
from kube.client.discovery import has_kubevirt
from kube.client.sync_client import Cluster
from kube.paths import LEASE_NAMESPACE, LEASES, Object
from kube.virtualization import lookup
from kube.virtualization.vmis import Item, key, migration_body, migration_path, migrations_path
from kube.virtualization.migration_claims import (
    CLAIM_PATH,
    WRITE_SECONDS,
    abandoned,
    again_refused,
    claimed,
    claims_of,
    lease_of,
    lease_patch,
    refused,
)
from kube.text_limits import counted

CONSUMES = (events.NODE_TAINTED, events.TICK, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
EMITS = ()
LOOKS = 3
"""Maximum number of passes for one event.

After a pass with rejected migrations, the next pass gives their slots to other VMIs.
"""
WRITE_SHARE = 0.8
"""Share of a pass's remaining time that its writes may use.

If a write hangs, enough time is left to record that in the Lease.
"""
MAY_COME = (0, 504)
"""Statuses after which the API server may still carry out a creation: no response, and a timeout in the server."""
DELETED_AT_ONCE = 20
"""Maximum number of migrations that one pass deletes."""
TURNS = Turns()
"""Rotation that selects the migrations to delete. Each process has its own position."""
LOOKING = LookingAtState(lambda _event: "virtual machines to migrate")
log = logging.getLogger("functions")


class NotCreated(NamedTuple):
    """Why a migration was not created.

    Attributes:
        words: The error message.
        may_pass: Whether a retry may succeed.
        may_come: Whether the API server may still carry out the request.
    """

    words: str
    may_pass: bool
    may_come: bool


def migrate(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Create the migrations that are due; this costs one request if no virtual machine asks for migration.

    Raises `Retry` if another process is claiming at the same time, or if a creation had no response for the first time.
    Raises `Unavailable` if the time is over.
    """
    if event.get_extension("kind") not in KINDS:
        return []
    vmis = cluster.run(lookup.instances(cluster.api))
    if not vmis or cluster.run(has_kubevirt(cluster.api)) or not acts(cluster):
        return []
    for _ in range(LOOKS):
        scene = seen(vmis, cluster, event.get_id())
        if not scene.evacuation.due or not _begin(scene, event.get_id(), cluster):
            break
    _tidy(scene.evacuation.outdated, cluster)
    return []


def _tidy(outdated: Iterable[Item], cluster: Cluster) -> None:
    """Delete some outdated migrations, concurrently, because every pass has to read them.

    A migration that cannot be deleted stays, and is tried again later.
    """
    some = TURNS.take(map(dict, outdated), DELETED_AT_ONCE)
    words = [said for said in cluster.together(*(_delete(item, cluster.api) for item in some)) if said]
    if words:
        log.warning("%s could not be deleted: %s", counted(len(words), "finished migration"), words[0])


async def _delete(migration: Item, api: Api) -> str:
    """Delete a migration; return the error message, "" for success."""
    try:
        with within(WRITE_SHARE * seconds_left()):
            await api.delete(migration_path(migration), uid=migration["metadata"]["uid"])
    except (NotFound, Conflict):
        return ""
    except ApiError as error:
        return error.message or "without a word"
    return ""


def _begin(scene: Scene, attempt: str, cluster: Cluster) -> bool:
    """Claim and create the due migrations; return whether any was rejected, so that its slot is free for others.

    Raises `Retry`, after all were tried, if a creation had no response or a server error; the redelivered event then
    continues with its claim. If the event had already continued with its claim, the migration counts as rejected.
    """
    due = scene.evacuation.due
    with within(min(seconds_left(), WRITE_SECONDS)):
        lease = _claim(scene, attempt, cluster)
        outcomes = cluster.together(*(_create(name, vmi, cluster.api) for name, vmi in due.items()))
        tried = dict(zip(due, outcomes, strict=True))
        before = {name for name, claim in claimed(scene.lease).items() if claim.attempt == attempt}
        again = [name for name, failure in tried.items() if failure and failure.may_pass and name not in before]
        _release({name: failure for name, failure in tried.items() if name not in again}, lease, scene, cluster)
    if again:
        raise Retry(f"not created, and tried again after a pause: {', '.join(again)}")
    return any(failure and not failure.may_come for failure in tried.values())


def _release(tried: Mapping[str, NotCreated | None], lease: Object, scene: Scene, cluster: Cluster) -> None:
    """Remove the claims on migrations that were created or rejected, so that a deleted one no longer occupies a slot.

    The Lease stores the error message of a migration that was not created, which then backs off. A migration that the
    API server may still create keeps its slot, but no attempt continues with its claim. A pass that finds no claim in
    the Lease finds the created migration instead, because it reads the Lease first.
    """
    failed = {name: failure for name, failure in tried.items() if failure}
    words = {name: failure.words for name, failure in failed.items()}
    refusals = again_refused(refused(lease, scene.now), words, scene.now)
    known = claimed(lease)
    coming = {name: claim for name, claim in known.items() if name in failed and failed[name].may_come}
    claims = {name: claim for name, claim in known.items() if name not in tried} | abandoned(coming)
    try:
        cluster.patch(CLAIM_PATH, lease_patch(lease, claims, refusals))
    except (Conflict, NotFound):
        return  # another process has changed the Lease: these claims count until they expire


def _claim(scene: Scene, attempt: str, cluster: Cluster) -> Object:
    """Add claims on the due migrations to those of other attempts in the Lease, and return the Lease."""
    found = scene.evacuation
    claims = {**found.held, **claims_of(attempt, found.due, scene.now)}
    try:
        if scene.lease is None:
            return cluster.create(LEASES, lease_of(claims))
        return cluster.patch(CLAIM_PATH, lease_patch(scene.lease, claims, refused(scene.lease, scene.now)))
    except Conflict:
        raise Retry("another process was just claiming migrations") from None
    except NotFound:
        raise Retry(f"the namespace {LEASE_NAMESPACE} is missing: apply the manifests again") from None


async def _create(name: str, vmi: Item, api: Api) -> NotCreated | None:
    """Create a migration; return why it was not created, or None. One with the same name counts as created.

    The request may be rejected by a quota, a webhook or KubeVirt, or it may hang; other migrations do not wait for it.
    The request passes its time limit to the API server as well, in case this process dies and cannot cancel it.
    """
    (namespace, instance), path = key(vmi), migrations_path(key(vmi)[0])
    limit = {"timeout": f"{WRITE_SECONDS:g}s"}
    try:
        with within(WRITE_SHARE * seconds_left()):
            await api.request("POST", path, query=limit, body=migration_body(name, vmi))
    except Conflict:
        return None
    except ApiError as error:
        log.warning("the migration of %s/%s was not created: %s", namespace, instance, error.message)
        return NotCreated(error.message or "without a word", isinstance(error, Unavailable), error.status in MAY_COME)
    log.info("migrating %s/%s by %s", namespace, instance, name)
    return None
