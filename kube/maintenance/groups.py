"""The three API groups that serve NodeMaintenance; the drain taint is their only difference (X-7, C2, C3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ApiGroup:
    """An API group and version that serves NodeMaintenance.

    Attributes:
        api_version: Group and version, as in `apiVersion`.
        drain_taint: Key of the NoSchedule taint that this group's documentation names (NMO-4, KNM-4, DRN-13).
    """

    api_version: str
    drain_taint: str

    @property
    def path(self) -> str:
        """Return the API path of the group's cluster-scoped NodeMaintenances."""
        return f"/apis/{self.api_version}/nodemaintenances"


MEDIK8S = ApiGroup("nodemaintenance.medik8s.io/v1beta1", "medik8s.io/drain")
KUBEVIRT = ApiGroup("nodemaintenance.kubevirt.io/v1beta1", "kubevirt.io/drain")
KUBEVIRT_ALPHA = ApiGroup("kubevirt.io/v1alpha1", "kubevirt.io/drain")
"""Optional group: once its CRD is installed, the bare resource name `nodemaintenance` resolves to it (C7)."""

GROUPS = {group.api_version: group for group in (MEDIK8S, KUBEVIRT, KUBEVIRT_ALPHA)}
DRAIN_TAINTS = frozenset(group.drain_taint for group in GROUPS.values())
"""Drain taint keys of all API groups."""
