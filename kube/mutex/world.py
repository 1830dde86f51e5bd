"""What a run stands on, as it was read: rules, targets, pools, nodes and who maintains them, versions, Jobs. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kube.mutex.maintainers import Maintainer
from kube.mutex.objects import Item, Reference, references
from kube.mutex.pools import members_of_all
from kube.paths import Object


@dataclass(frozen=True)
class World:
    """Objects by name. `jobs` is by namespace and name, and of our own label; None where it was not read.

    `maintainers` is by node, of those nodes of which it was asked.
    """

    rules: Mapping[Reference, Object] = field(default_factory=dict)
    targets: Mapping[Reference, Object] = field(default_factory=dict)
    pools: Mapping[str, Object] = field(default_factory=dict)
    nodes: Mapping[str, Object] = field(default_factory=dict)
    cluster_version: Object | None = None
    jobs: Mapping[Reference, Object] | None = None
    maintainers: Mapping[str, Maintainer] = field(default_factory=dict)

    def rules_of(self, run: Item) -> list[Object]:
        """The rules that a run config names, those that are there, in its order."""
        return [self.rules[each] for each in references(run, "mutexRules") if each in self.rules]

    def pool_names(self, run: Item) -> list[str]:
        """The pools of its targets, those that are there or not, in their order, each once."""
        targets = [self.targets[each] for each in references(run, "mutexTargets") if each in self.targets]
        return list(dict.fromkeys(name for target in targets for name in pools_of(target)))

    def members_of(self, run: Item) -> list[str]:
        """The nodes of its targets: pools as listed, then by name."""
        pools = [self.pools[name] for name in self.pool_names(run) if name in self.pools]
        return members_of_all(pools, self.nodes.values())


def pools_of(target: Item) -> list[str]:
    """The pools that a target names."""
    return [str(name) for name in target["spec"].get("machineConfigPools") or []]
