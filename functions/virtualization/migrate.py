"""Migrate virtual machines away from drained nodes: one VirtualMachineInstanceMigration each (DRN-8, OSV-2).

A drain taint of either key asks for it, by us or by hand. The names of the migrations are claimed in one Lease before
the first is created, so that no two processes have more at once than may be, and a crash makes none twice. Who was held
up creates nothing any more once his claim may be another one's. An event that is delivered again goes on with its own
claim, also after a creation without an answer; without one twice, the migration rests. Of the finished ones that are
ours the newest stay, and the others are deleted. Where KubeVirt is installed this is its job, and nothing is done
(DRN-10).

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
from functions.hints import LookingAtState
from functions.installs import acts
from functions.rotation import Turns
from functions.virtualization.scene import KINDS, Scene, seen
from kube.door.api import Api
from kube.door.api_errors import ApiError, Conflict, NotFound, Unavailable
from kube.door.deadline import seconds_left, within
from kube.door.discovery import has_kubevirt
from kube.door.sync_client import Cluster
from kube.paths import LEASE_NAMESPACE, LEASES, Object
from kube.virtualization import lookup
from kube.virtualization.machines import Item, key, migration_body, migration_path, migrations_path
from kube.virtualization.migration_claim import (
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
from kube.words import counted

CONSUMES = (events.NODE_TAINTED, events.TICK, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
EMITS = ()
LOOKS = 3
"""Of one event: each after one whose slots were refused, for those that come behind."""
WRITE_SHARE = 0.8
"""Of the time that a look has left: what hangs leaves enough for it to be noted in the Lease."""
MAY_COME = (0, 504)
"""Statuses after which a creation may still be carried out: no answer, and none in the server's time."""
DELETED_AT_ONCE = 20
"""Migrations that a look deletes at most."""
TURNS = Turns()
"""Which are deleted. Each process has its own turns."""
LOOKING = LookingAtState(lambda _event: "virtual machines to migrate")
log = logging.getLogger("functions")


class NotCreated(NamedTuple):
    """By which words a migration was not created, whether it may be when it is tried again, and whether that request
    may still be carried out."""

    words: str
    may_pass: bool
    may_come: bool


def migrate(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Create the migrations that are due; without a virtual machine that asks for any, one request.

    Raises `Retry` when another process was just claiming, when a creation had no answer for the first time, and when no
    time is left.
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
    """Delete some of what is finished and old, side by side, since each costs every look. What cannot be deleted stays,
    and has its turn again."""
    some = TURNS.take(map(dict, outdated), DELETED_AT_ONCE)
    words = [said for said in cluster.together(*(_delete(item, cluster.api) for item in some)) if said]
    if words:
        log.warning("%s could not be deleted: %s", counted(len(words), "finished migration"), words[0])


async def _delete(migration: Item, api: Api) -> str:
    """Delete one; the words by which it was refused."""
    try:
        with within(WRITE_SHARE * seconds_left()):
            await api.delete(migration_path(migration), uid=migration["metadata"]["uid"])
    except (NotFound, Conflict):
        return ""
    except ApiError as error:
        return error.message or "without a word"
    return ""


def _begin(scene: Scene, attempt: str, cluster: Cluster) -> bool:
    """Claim what is due, and create it; whether any of it was refused, so that others may have its slots.

    Raises `Retry`, once all that is due was tried, when the creation of one had no answer, or an error of the server's:
    the same event goes on with its claim. Where that went on with one already, it is taken for refused.
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
    """Take the claims off what is created, or refused: a migration that somebody deletes takes no slot any more.

    What was not created stands in the Lease by the words of its error, and rests. What may still be created stays
    claimed, though nobody goes on with it. Who reads the Lease without a claim lists the migration that was created
    under it: the Lease is the oldest part of what he sees.
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
        return  # somebody claims by what was written before: then these count until their claims are over


def _claim(scene: Scene, attempt: str, cluster: Cluster) -> Object:
    """Write the claims on what is due into the Lease, beside those of others; the Lease with them."""
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
    """One migration; one that is there already is the one that was meant. Gives why it was not created.

    That is a quota's, a webhook's or KubeVirt's, or nobody's, where it hangs: no other one shall wait for it. The
    server, too, is told when to give it up: nobody may be there any more to break the connection.
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
