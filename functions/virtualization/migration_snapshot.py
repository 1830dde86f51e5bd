"""Snapshot for both steps: VMIs that ask for migration, their migrations, and which of their nodes are drained."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from kube.client.api import absent_ok
from kube.client.sync_client import Cluster
from kube.paths import Object
from kube.virtualization import lookup
from kube.virtualization.evacuation import Evacuation, Slots, Wait, evacuation
from kube.virtualization.kubevirt_evacuation import is_kept_by, waits
from kube.virtualization.vmis import Item, stays_alive
from kube.virtualization.migration_claims import CLAIM_PATH, claimed, refused

KINDS = (None, "VirtualMachineInstance", "VirtualMachineInstanceMigration")
"""Kinds that the events of sources may be about; None stands for events from steps."""
Waits = dict[tuple[str, str], Wait]
"""Namespace and name of a VMI → what it waits for."""


@dataclass(frozen=True)
class Scene:
    """Snapshot of the cluster; the Lease is its oldest part.

    Attributes:
        vmis: The VMIs that ask for migration.
        lease: The Lease with the claims, None if it does not exist or was not read.
        now: The time of the snapshot.
        evacuation: The migrations and waits that follow from the snapshot.
    """

    vmis: list[Object]
    lease: Object | None
    now: datetime
    evacuation: Evacuation


def slots(environment: Mapping[str, str]) -> Slots:
    """Return how many migrations may run at once. Raises `ValueError` for an invalid setting."""
    return Slots.of(environment)


def seen_beside(kubevirt: Item, vmis: list[Object], cluster: Cluster) -> Waits:
    """Return what VMIs wait for if KubeVirt migrates them.

    If none of these VMIs is on a drained node, only their nodes are read.
    """
    api = cluster.api
    drained = cluster.run(lookup.drained_nodes(api, [vmi for vmi in vmis if is_kept_by(kubevirt, vmi)]))
    if not drained:
        return {}
    # Migrations are read before instances: if one ends in between, its instance has already moved.
    migrations = cluster.run(lookup.migrations(api))
    return waits(cluster.run(lookup.all_instances(api)), migrations, drained, kubevirt)


def seen(vmis: list[Object], cluster: Cluster, attempt: str = "") -> Scene:
    """Return the snapshot for these VMIs, evaluated for `attempt`.

    If none of these VMIs is on a drained node, only their nodes are read.
    """
    api = cluster.api
    drained = cluster.run(lookup.drained_nodes(api, vmis))
    if not drained:
        return Scene(vmis, None, datetime.now(timezone.utc), Evacuation())
    # The Lease is read first: if another process claims after that, our write fails with a conflict.
    lease = cluster.run(absent_ok(api.get(CLAIM_PATH)))
    # Migrations are read before instances: if one ends in between, its instance has already moved and needs no other.
    migrations = cluster.run(lookup.migrations(api))
    again = cluster.run(lookup.all_instances(api))
    now = datetime.now(timezone.utc)
    stands = claimed(lease), slots(os.environ), now, attempt, refused(lease, now)
    found = evacuation(again, migrations, drained.keys(), *stands)
    return Scene([vmi for vmi in again if stays_alive(vmi)], lease, now, found)
