"""What both steps look at: the VMIs that ask for migration, their migrations, and the drained nodes among theirs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from kube.door.api import absent_ok
from kube.door.sync_client import Cluster
from kube.paths import Object
from kube.virtualization import lookup
from kube.virtualization.evacuation import Evacuation, Slots, Wait, evacuation
from kube.virtualization.kubevirt_evacuation import is_kept_by, waits
from kube.virtualization.machines import Item, stays_alive
from kube.virtualization.migration_claim import CLAIM_PATH, claimed, refused

KINDS = (None, "VirtualMachineInstance", "VirtualMachineInstanceMigration")
"""Whom a source's event may be about; our own are about none of them."""
Waits = dict[tuple[str, str], Wait]
"""Namespace and name of a VMI → what it waits for."""


@dataclass(frozen=True)
class Scene:
    """The newest state, in which the lease is the oldest part.

    Attributes:
        vmis: those that ask for migration.
        lease: the one with the claims, None before the first one.
        now: when it was seen.
        evacuation: what follows from it.
    """

    vmis: list[Object]
    lease: Object | None
    now: datetime
    evacuation: Evacuation


def slots(environment: Mapping[str, str]) -> Slots:
    """How many migrations may run at once. Raises `ValueError` for a setting that is none."""
    return Slots.of(environment)


def seen_beside(kubevirt: Item, vmis: list[Object], cluster: Cluster) -> Waits:
    """What VMIs wait for where KubeVirt migrates; where none of these is on a drained node, a request for each node."""
    api = cluster.api
    drained = cluster.run(lookup.drained_nodes(api, [vmi for vmi in vmis if is_kept_by(kubevirt, vmi)]))
    if not drained:
        return {}
    # Migrations before instances: one that ends between the two has moved its instance.
    migrations = cluster.run(lookup.migrations(api))
    return waits(cluster.run(lookup.all_instances(api)), migrations, drained, kubevirt)


def seen(vmis: list[Object], cluster: Cluster, attempt: str = "") -> Scene:
    """The scene around these VMIs, as `attempt` has it; on nodes that are not drained they cost a request for each."""
    api = cluster.api
    drained = cluster.run(lookup.drained_nodes(api, vmis))
    if not drained:
        return Scene(vmis, None, datetime.now(timezone.utc), Evacuation())
    # The lease comes first: what another one claims after it, the write of ours is refused for.
    lease = cluster.run(absent_ok(api.get(CLAIM_PATH)))
    # Migrations before instances: one that ends between the two has moved its instance, and asks for no second one.
    migrations = cluster.run(lookup.migrations(api))
    again = cluster.run(lookup.all_instances(api))
    now = datetime.now(timezone.utc)
    stands = claimed(lease), slots(os.environ), now, attempt, refused(lease, now)
    found = evacuation(again, migrations, drained.keys(), *stands)
    return Scene([vmi for vmi in again if stays_alive(vmi)], lease, now, found)
