"""Snapshot of the objects that runs depend on: rules, targets, pools, nodes, NodeMaintenances, versions and Jobs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kube.mutex.maintainers import Maintainer
from kube.mutex.objects import Reference, Resource, list_references
from kube.mutex.pools import list_members_of_pools
from kube.paths import Object


@dataclass(frozen=True)
class RunSnapshot:
    """Snapshot of the objects that runs depend on, by name.

    `jobs` contains only Jobs with our label, by namespace and name; None if they were not read. `maintainers` maps a
    node's name to the NodeMaintenance that owns the node, and contains only the nodes that were queried.
    """

    rules: Mapping[Reference, Object] = field(default_factory=dict)
    targets: Mapping[Reference, Object] = field(default_factory=dict)
    pools: Mapping[str, Object] = field(default_factory=dict)
    nodes: Mapping[str, Object] = field(default_factory=dict)
    cluster_version: Object | None = None
    jobs: Mapping[Reference, Object] | None = None
    maintainers: Mapping[str, Maintainer] = field(default_factory=dict)

    def list_rules(self, run: Resource) -> list[Object]:
        """Return the existing rules that a run config names, in the order of its spec."""
        references = list_references(run, "mutexRules")
        return [self.rules[reference] for reference in references if reference in self.rules]

    def list_pool_names(self, run: Resource) -> list[str]:
        """Return the names of the pools in the run's targets, existing or not, in order and without duplicates."""
        references = list_references(run, "mutexTargets")
        targets = [self.targets[reference] for reference in references if reference in self.targets]
        return list(dict.fromkeys(name for target in targets for name in get_pool_names(target)))

    def list_members(self, run: Resource) -> list[str]:
        """Return the names of the nodes in the run's targets, in the order of the pools and sorted by name in each."""
        pools = [self.pools[name] for name in self.list_pool_names(run) if name in self.pools]
        return list_members_of_pools(pools, self.nodes.values())


def get_pool_names(target: Resource) -> list[str]:
    """Return the names of the pools that a target lists."""
    return [str(name) for name in target["spec"].get("machineConfigPools") or []]
