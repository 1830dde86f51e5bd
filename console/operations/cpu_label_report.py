"""Reports which CPU labels the nodes have, and on which nodes the function `label-cpu` will change them.

The report reads the same objects as `label-cpu` (ConfigMaps, HyperConvergeds and nodes), and applies the same rules.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from enum import Enum
from typing import NamedTuple

from kube.client.api import METADATA_ONLY, Api, gather_all
from kube.client.discovery import has_kubevirt
from kube.client.paging import list_all
from kube.cpu_labels import capabilities, hyperconverged, lookup, node_patch
from kube.cpu_labels.capabilities import CapabilityInput
from kube.cpu_labels.hyperconverged import CpuModelSettings
from kube.cpu_labels.problems import Problem
from kube.nodes import NODES_PATH
from kube.paths import Object


class LabelState(Enum):
    """State of a node's CPU labels, compared with the node's entry in a ConfigMap; the values are shown to users."""

    CURRENT = "labelled"
    PENDING = "change pending"
    UNDETERMINED = "not changed"
    SKIPPED = "skipped"
    MISSING = "no such node"
    FOREIGN = "labelled by KubeVirt"


class LabelGroup(NamedTuple):
    """Nodes with equal CPU labels, state and source.

    Attributes:
        source: The ConfigMap and its entry that name the nodes, "" if no entry names them.
    """

    state: LabelState
    models: tuple[str, ...]
    features: tuple[str, ...]
    source: str
    nodes: tuple[str, ...]


class CpuLabelReport(NamedTuple):
    """Report on the CPU labels of all nodes.

    Attributes:
        groups: The nodes with a ConfigMap entry or with CPU labels, grouped by labels, in the order of their names.
        unlisted_count: Number of nodes that have neither a ConfigMap entry nor CPU labels.
        has_configmaps: Whether a ConfigMap with CPU capabilities exists.
        is_passive: Whether KubeVirt is installed, so that its virt-handler labels the nodes.
        settings: The obsolete CPU models and the minimum CPU model; None if the HyperConverged is malformed.
        hyperconverged: Namespace and name of the HyperConverged with the settings, "" for the default settings.
        problems: The problems that an administrator must fix.
    """

    groups: Sequence[LabelGroup]
    unlisted_count: int
    has_configmaps: bool
    is_passive: bool
    settings: CpuModelSettings | None
    hyperconverged: str
    problems: Sequence[Problem]


class _Rules(NamedTuple):
    """The inputs that determine a node's labels; `settings` is None if the HyperConverged is malformed."""

    capability_input: CapabilityInput
    settings: CpuModelSettings | None
    is_passive: bool


async def read_cpu_labels(api: Api, namespace: str) -> CpuLabelReport:
    """Read the ConfigMaps in the product's namespace, the HyperConvergeds and all nodes, and build the report."""
    configmaps, hyperconvergeds, is_passive, nodes = await gather_all(
        lookup.list_capability_configmaps(api, namespace),
        lookup.list_hyperconvergeds(api),
        has_kubevirt(api),
        list_all(api, NODES_PATH, accept=METADATA_ONLY),
    )
    return build_report(configmaps, hyperconvergeds, nodes.items, is_passive=is_passive)


def build_report(
    configmaps: Sequence[Object], hyperconvergeds: Iterable[Object], nodes: Iterable[Object], *, is_passive: bool
) -> CpuLabelReport:
    """Build the report from the objects that `label-cpu` reads; of the nodes, only the metadata is used."""
    selected, problems = hyperconverged.select_hyperconverged(hyperconvergeds)
    settings, capability_input = hyperconverged.parse_settings(selected), capabilities.parse_capabilities(configmaps)
    nodes_by_name = {node["metadata"]["name"]: node for node in nodes}
    problems += capability_input.problems
    if isinstance(settings, Problem):
        problems.insert(0, settings)
    else:
        problems += hyperconverged.find_unknown_models(selected, settings)
    problems += capabilities.find_unknown_nodes(capability_input, nodes_by_name)
    problems += filter(None, map(node_patch.find_skip_problem, nodes_by_name.values()))
    rules = _Rules(capability_input, None if isinstance(settings, Problem) else settings, is_passive)
    names = [name for name in nodes_by_name if _has_entry_or_cpu_labels(nodes_by_name[name], capability_input)]
    missing = [name for name in capability_input.nodes if name not in nodes_by_name]
    return CpuLabelReport(
        groups=_group_nodes([*names, *missing], nodes_by_name, rules),
        unlisted_count=len(nodes_by_name) - len(names),
        has_configmaps=bool(configmaps),
        is_passive=is_passive,
        settings=rules.settings,
        hyperconverged=f"{selected['metadata']['namespace']}/{selected['metadata']['name']}" if selected else "",
        problems=problems,
    )


def _has_entry_or_cpu_labels(node: Object, capability_input: CapabilityInput) -> bool:
    """Return whether a ConfigMap entry names the node, or the node has CPU labels."""
    has_labels = any(node_patch.list_label_names(node, prefix) for prefix in node_patch.OWN_LABEL_PREFIXES)
    return has_labels or node["metadata"]["name"] in capability_input.nodes


def _group_nodes(names: Iterable[str], nodes_by_name: Mapping[str, Object], rules: _Rules) -> list[LabelGroup]:
    names_by_labels: dict[tuple[LabelState, tuple[str, ...], tuple[str, ...], str], list[str]] = {}
    sources = rules.capability_input.sources
    for name in sorted(names):
        node = nodes_by_name.get(name)
        models, features = (
            tuple(node_patch.list_label_names(node, prefix)) if node else ()
            for prefix in (node_patch.MODEL_LABEL_PREFIX, node_patch.FEATURE_LABEL_PREFIX)
        )
        source = sources[name][1] if name in sources else ""
        names_by_labels.setdefault((_compute_label_state(node, rules), models, features, source), []).append(name)
    return [LabelGroup(*labels, tuple(members)) for labels, members in names_by_labels.items()]


def _compute_label_state(node: Object | None, rules: _Rules) -> LabelState:
    """Return the state of a node's CPU labels; `node` is None if a ConfigMap entry names a node that does not exist."""
    if node is None:
        return LabelState.MISSING
    if rules.is_passive:
        return LabelState.FOREIGN
    if node_patch.is_skipped(node):
        return LabelState.SKIPPED
    if rules.settings is None:
        return LabelState.UNDETERMINED
    if node_patch.build_node_patch(node, rules.capability_input, rules.settings):
        return LabelState.PENDING
    has_capability = rules.capability_input.nodes.get(node["metadata"]["name"]) is not None
    return LabelState.CURRENT if has_capability else LabelState.UNDETERMINED
