"""Snapshot that both steps use: VMIs that request migration, their migrations, and which of their nodes are drained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from kube.client.api import get_or_none
from kube.client.sync_client import SyncClient
from kube.paths import Object
from kube.virtualization import lookup
from kube.virtualization.evacuation import EvacuationPlan, MigrationSlots, Wait, plan_evacuation
from kube.virtualization.kubevirt_evacuation import find_waits, is_protected_by
from kube.virtualization.migration_claims import LEASE_PATH, parse_claims, parse_refusals
from kube.virtualization.vmis import Resource, requests_live_migration

HINT_KINDS = (None, "VirtualMachineInstance", "VirtualMachineInstanceMigration")
"""Kinds of the objects that the consumed events are about; None stands for events from steps, which have no kind."""
WaitsByVmi = dict[tuple[str, str], Wait]
"""Namespace and name of a VMI → what it waits for."""


@dataclass(frozen=True)
class MigrationSnapshot:
    """Snapshot of the cluster's VMIs, migrations and claims; the Lease is read first.

    Attributes:
        vmis: The VMIs that request migration.
        lease: The Lease with the claims, or None if the Lease does not exist or was not read.
        now: The time of the snapshot.
        evacuation: The migrations and waits that follow from the snapshot.
    """

    vmis: list[Object]
    lease: Object | None
    now: datetime
    evacuation: EvacuationPlan


def parse_migration_slots(environment: Mapping[str, str]) -> MigrationSlots:
    """Return how many migrations may run concurrently. Raises `ValueError` for an invalid setting."""
    return MigrationSlots.from_environment(environment)


def read_kubevirt_waits(kubevirt: Resource, vmis: list[Object], client: SyncClient) -> WaitsByVmi:
    """Return what the VMIs that KubeVirt migrates wait for.

    If none of these VMIs is on a drained node, only their nodes are read.
    """
    api = client.api
    drained = client.run(lookup.read_drained_nodes(api, [vmi for vmi in vmis if is_protected_by(kubevirt, vmi)]))
    if not drained:
        return {}
    # Migrations are listed before VMIs: if a migration ends in between, its VMI has already moved.
    migrations = client.run(lookup.list_migrations(api))
    return find_waits(client.run(lookup.list_vmis(api)), migrations, drained, kubevirt)


def read_snapshot(vmis: list[Object], client: SyncClient, attempt: str = "") -> MigrationSnapshot:
    """Return the snapshot for these VMIs, evaluated for `attempt`.

    If none of these VMIs is on a drained node, only their nodes are read.
    """
    api = client.api
    drained = client.run(lookup.read_drained_nodes(api, vmis))
    if not drained:
        return MigrationSnapshot(vmis, None, datetime.now(timezone.utc), EvacuationPlan())
    # The Lease is read first: if another process claims a migration later, our write fails with a conflict.
    lease = client.run(get_or_none(api.get(LEASE_PATH)))
    # Migrations are listed before VMIs: if a migration ends in between, its VMI needs no other migration.
    migrations = client.run(lookup.list_migrations(api))
    current_vmis = client.run(lookup.list_vmis(api))
    now = datetime.now(timezone.utc)
    state = parse_claims(lease), parse_migration_slots(os.environ), now, attempt, parse_refusals(lease, now)
    evacuation = plan_evacuation(current_vmis, migrations, drained.keys(), *state)
    return MigrationSnapshot([vmi for vmi in current_vmis if requests_live_migration(vmi)], lease, now, evacuation)
