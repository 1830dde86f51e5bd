"""Migrate virtual machines away from drained nodes: one VirtualMachineInstanceMigration each (DRN-8, OSV-2).

A drain taint of either key asks for it, by us or by hand. The names of the migrations are claimed in one Lease before
the first is created, so that no two processes have more at once than may be, and a crash makes none twice. Who was held
up creates nothing any more once his claim may be another one's. An event that is delivered again goes on with its own
claim. Where KubeVirt is installed this is its job, and nothing is done (DRN-10).

In: `node.tainted`; a PingSource tick; an updated VirtualMachineInstance, an updated or deleted
VirtualMachineInstanceMigration, by reference. Out: nothing.
Touches: virtualmachineinstances list; virtualmachineinstancemigrations list, create; kubevirts list; nodes get, list;
leases get, create, patch in medik8s-leases.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.failures import Retry
from functions.hints import LookingAtState
from functions.installs import acts
from functions.virtualization.scene import KINDS, Scene, seen
from kube.door.api_errors import ApiError, Conflict, Denied, NotFound, Rejected
from kube.door.deadline import seconds_left, within
from kube.door.discovery import has_kubevirt
from kube.door.sync_client import Cluster
from kube.paths import LEASE_NAMESPACE, LEASES, Object
from kube.virtualization import lookup
from kube.virtualization.machines import Item, key, migration_body, migrations_path
from kube.virtualization.migration_claim import (
    CLAIM_PATH,
    WRITE_SECONDS,
    again_refused,
    claimed,
    claims_of,
    lease_of,
    lease_patch,
    refused,
)

CONSUMES = (events.NODE_TAINTED, events.TICK, events.REFERENCE_UPDATED, events.REFERENCE_DELETED)
EMITS = ()
LOOKS = 3
"""Of one event: each after one whose slots were refused, for those that come behind."""
LOOKING = LookingAtState(lambda _event: "virtual machines to migrate")
log = logging.getLogger("functions")


def migrate(event: BaseCloudEvent, cluster: Cluster) -> list[BaseCloudEvent]:
    """Create the migrations that are due; without a virtual machine that asks for any, one request.

    Raises `Retry` when another process was just claiming, and when there is no time left.
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
    return []


def _begin(scene: Scene, attempt: str, cluster: Cluster) -> bool:
    """Claim what is due, and create it; whether any of it was refused, so that others may have its slots."""
    with within(min(seconds_left(), WRITE_SECONDS)):
        lease = _claim(scene, attempt, cluster)
        tried = {name: _create(name, vmi, cluster) for name, vmi in scene.evacuation.due.items()}
        words = {name: said for name, said in tried.items() if said}
        _release(tried, words, lease, scene, cluster)
    return bool(words)


def _release(tried: Collection[str], words: Mapping[str, str], lease: Object, scene: Scene, cluster: Cluster) -> None:
    """Take the claims off what is created, or refused: a migration that somebody deletes takes no slot any more.

    What was refused stands in the Lease by its words, and rests. Who reads the Lease without a claim lists the
    migration that was created under it: the Lease is the oldest part of what he sees.
    """
    refusals = again_refused(refused(lease, scene.now), words, scene.now)
    claims = {name: claim for name, claim in claimed(lease).items() if name not in tried}
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


def _create(name: str, vmi: Item, cluster: Cluster) -> str:
    """One migration; one that is there already is the one that was meant. Gives the words by which it was refused.

    The server, too, is told when to give it up: nobody may be there any more to break the connection.
    """
    (namespace, instance), path = key(vmi), migrations_path(key(vmi)[0])
    limit = {"timeout": f"{WRITE_SECONDS:g}s"}
    try:
        cluster.run(cluster.api.request("POST", path, query=limit, body=migration_body(name, vmi)))
    except Conflict:
        return ""
    except (Denied, Rejected) as error:  # a quota's words, a webhook's or KubeVirt's; no other one shall wait for it
        log.warning("the migration of %s/%s was refused: %s", namespace, instance, error.message)
        return error.message or "without a word"
    except ApiError as error:
        raise Retry(f"the migration of {namespace}/{instance} was not created: {error.message}") from None
    log.info("migrating %s/%s by %s", namespace, instance, name)
    return ""
