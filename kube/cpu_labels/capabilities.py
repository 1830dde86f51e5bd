"""Parses the nodes' CPU capabilities in ConfigMaps labelled `nodemaintenance.dev/cpu-capabilities` (OSV-34, OSV-38).

Each entry is JSON: `{"nodes": ["a", "b"], "models": ["Haswell"], "features": ["avx2"], "cpu": "Haswell"}`. Without
`nodes`, the entry's key is the node's name. `cpu` adds all features of that CPU model, and `features` adds further
ones. The file models.json lists the features of each CPU model; `python -m localcluster.cpumap` generates it from
libvirt's CPU map.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from kube.cpu_labels.problems import (
    ILLEGAL_NAME,
    MALFORMED_INPUT,
    UNKNOWN_MODEL,
    UNKNOWN_NODE,
    InvalidField,
    Problem,
    format_names,
    parse_string,
    parse_string_list,
)
from kube.paths import Object

CAPABILITIES_LABEL = "nodemaintenance.dev/cpu-capabilities"
MODELS_FILE = Path(__file__).with_name("models.json")
ENTRY_FIELDS = ("nodes", "models", "features", "cpu")
LABEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""Matches the part of a label key after its prefix that the API server accepts."""


class Capability(NamedTuple):
    """The CPU models and CPU features that a node supports."""

    models: frozenset[str]
    features: frozenset[str]


class CapabilityInput(NamedTuple):
    """The merged content of all ConfigMaps with CPU capabilities.

    Attributes:
        nodes: The nodes' capabilities by node name; None for a node whose capability is unknown.
        is_complete: Whether every entry could be parsed, so that a node that is missing in `nodes` is in no entry.
        sources: The ConfigMap that names a node, and the field in it, by node name.
        problems: Problems in the ConfigMaps that an administrator must fix.
    """

    nodes: Mapping[str, Capability | None]
    is_complete: bool
    problems: list[Problem]
    sources: Mapping[str, tuple[Object, str]]


class _Entry(NamedTuple):
    configmap: Object
    source: str
    nodes: list[str]
    capability: Capability | None = None


def get_model_features(model: str) -> frozenset[str] | None:
    """Return the features of a CPU model, None if the model is unknown. Model names are case-sensitive."""
    features = _load_features_by_model().get(model)
    return None if features is None else frozenset(features.split())


@cache
def _load_features_by_model() -> dict[str, str]:
    """Return the features of each CPU model as one string; the file is read only once, at the first call."""
    features_by_model: dict[str, str] = json.loads(MODELS_FILE.read_text())["models"]
    return features_by_model


def parse_capabilities(configmaps: Iterable[Object]) -> CapabilityInput:
    """Parse and merge the entries of all ConfigMaps.

    The capability of a node that several entries name is unknown.
    """
    problems, is_complete = list[Problem](), True
    entries_by_node: dict[str, list[_Entry]] = {}
    for configmap in sorted(configmaps, key=lambda item: str(item["metadata"]["name"])):
        for key, value in sorted((configmap.get("data") or {}).items()):
            try:
                entry, entry_problems = _parse_entry(configmap, key, value)
            except InvalidField as error:
                message = f"{error}; until then, the labels of the entry's nodes stay unchanged"
                problems.append(_build_problem(configmap, MALFORMED_INPUT, message))
                is_complete = False
                continue
            problems += entry_problems
            for node in entry.nodes:
                entries_by_node.setdefault(node, []).append(entry)
    problems += _find_nodes_in_several_entries(entries_by_node)
    return CapabilityInput(
        {node: entries[0].capability if len(entries) == 1 else None for node, entries in entries_by_node.items()},
        is_complete,
        problems,
        {node: (entries[0].configmap, entries[0].source) for node, entries in entries_by_node.items()},
    )


def find_unknown_nodes(capability_input: CapabilityInput, node_names: Container[str]) -> list[Problem]:
    """Return one problem per entry that names nonexistent nodes, which may join the cluster later."""
    missing: dict[str, list[str]] = {}
    for node, (_, place) in capability_input.sources.items():
        if node not in node_names:
            missing.setdefault(place, []).append(node)
    problems: list[Problem] = []
    for place, nodes in missing.items():
        message = (
            f"{place} names nodes that do not exist ({format_names(nodes)}): use the names that kubectl get nodes "
            "lists; a node that joins later gets its labels then"
        )
        problems.append(_build_problem(capability_input.sources[nodes[0]][0], UNKNOWN_NODE, message))
    return problems


def _parse_entry(configmap: Object, key: str, value: str) -> tuple[_Entry, list[Problem]]:
    """Parse one entry; return the entry, and problems with those of its parts that are ignored.

    Raises `InvalidField` if the entry is malformed.
    """
    field = f'data["{key}"]'
    fields = _decode_entry(value, field)
    nodes = list(dict.fromkeys(parse_string_list(fields.get("nodes"), f"{field}.nodes"))) or [key]
    models, features = (parse_string_list(fields.get(name), f"{field}.{name}") for name in ("models", "features"))
    if fields.get("cpu") is None and "features" not in fields:
        raise InvalidField(
            field, "has neither features nor cpu", 'add "features": [...], or "cpu" with the name of a model'
        )
    entry = _Entry(configmap, f"{configmap['metadata']['name']} {field}", nodes)
    if fields.get("cpu") is not None:
        cpu = parse_string(fields["cpu"], f"{field}.cpu")
        base = get_model_features(cpu)
        if base is None:
            return entry, [_build_unknown_model_problem(configmap, field, cpu, nodes)]
        features = [*features, *base]
    legal = [frozenset(filter(LABEL_NAME_PATTERN.fullmatch, names)) for names in (models, features)]
    illegal = {*models, *features} - legal[0] - legal[1]
    problems = [_build_illegal_name_problem(configmap, field, illegal)] if illegal else []
    return entry._replace(capability=Capability(*legal)), problems


def _decode_entry(value: str, field: str) -> dict[str, Any]:
    remedy = 'write {"models": [...], "features": [...]}'
    try:
        fields = json.loads(value)
        json.dumps(fields, ensure_ascii=False).encode()  # raises for lone surrogates, which the API server rejects
    except (ValueError, RecursionError) as error:
        raise InvalidField(field, f"is not valid JSON ({error})", remedy) from None
    if not isinstance(fields, dict):
        raise InvalidField(field, "is not an object", remedy)
    if unknown := fields.keys() - set(ENTRY_FIELDS):
        raise InvalidField(
            field, f"has unknown fields ({format_names(unknown)})", f"use only {format_names(ENTRY_FIELDS)}"
        )
    if fields.get("models") is None:
        raise InvalidField(
            f"{field}.models", "is missing", "list the models that the nodes offer, or write [] for none"
        )
    return fields


def _find_nodes_in_several_entries(entries_by_node: Mapping[str, list[_Entry]]) -> Iterator[Problem]:
    """Yield one problem for each set of entries that name the same nodes."""
    nodes_by_places: dict[tuple[str, ...], list[str]] = {}
    for node, entries in sorted(entries_by_node.items()):
        if len(entries) > 1:
            nodes_by_places.setdefault(tuple(entry.source for entry in entries), []).append(node)
    for places, nodes in nodes_by_places.items():
        message = (
            f"{' and '.join(places)} name the same nodes ({format_names(nodes)}): name each node in one entry only; "
            "until then, the labels of these nodes stay unchanged"
        )
        yield _build_problem(entries_by_node[nodes[0]][0].configmap, MALFORMED_INPUT, message)


def _build_unknown_model_problem(configmap: Object, field: str, cpu: str, nodes: list[str]) -> Problem:
    remedy = "use a model name of libvirt's CPU map (case-sensitive), or list the features instead"
    message = (
        f'{field}.cpu "{cpu}" is unknown: {remedy}; until then, the labels of {format_names(nodes)} stay unchanged'
    )
    return _build_problem(configmap, UNKNOWN_MODEL, message)


def _build_illegal_name_problem(configmap: Object, field: str, names: Iterable[str]) -> Problem:
    quoted = format_names(f'"{name}"' for name in names)
    message = (
        f"{field} contains names that are invalid in a label ({quoted}): remove them, or use at most 63 alphanumeric "
        "characters, '-', '_' or '.', starting and ending with an alphanumeric character; the other names are used"
    )
    return _build_problem(configmap, ILLEGAL_NAME, message)


def _build_problem(configmap: Mapping[str, Any], reason: str, message: str) -> Problem:
    return Problem.from_object(configmap, "v1", "ConfigMap", reason, message)
