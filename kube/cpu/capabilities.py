"""Parses CPU capabilities of nodes from ConfigMaps labelled `nodemaintenance.dev/cpu-capabilities` (OSV-38).

Each entry is in JSON: `{"nodes": ["a", "b"], "models": ["Haswell"], "features": ["avx2"], "cpu": "Haswell"}`. Without
`nodes`, the entry's key is the node's name. `cpu` adds all features of that model, and `features` adds more. Pure
functions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kube.cpu.models import get_model_features
from kube.cpu.problems import (
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
ENTRY_FIELDS = ("nodes", "models", "features", "cpu")
LABEL_NAME_PATTERN = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""The part of a label key after its prefix, as the API server accepts it."""


class Capability(NamedTuple):
    """The CPU models and features that one node offers."""

    models: frozenset[str]
    features: frozenset[str]


class CapabilityInput(NamedTuple):
    """The merged content of all ConfigMaps.

    Attributes:
        nodes: Node → its capability, None if it cannot be determined.
        is_complete: Whether every entry could be parsed, so that a node missing from `nodes` is in no entry.
        sources: Node → the ConfigMap that names it, and the field in it.
        problems: Problems that an administrator must fix.
    """

    nodes: Mapping[str, Capability | None]
    is_complete: bool
    problems: list[Problem]
    sources: Mapping[str, tuple[Object, str]]


class _Entry(NamedTuple):
    source: str
    nodes: list[str]
    capability: Capability | None


def parse_capabilities(configmaps: Iterable[Object]) -> CapabilityInput:
    """Parse and merge the entries in all ConfigMaps.

    If several entries name the same node, the node has no capability.
    """
    entries, problems, is_complete = list[_Entry](), list[Problem](), True
    entries_by_node: dict[str, list[tuple[Object, _Entry]]] = {}
    for item in sorted(configmaps, key=lambda item: str(item["metadata"]["name"])):
        for key, value in sorted((item.get("data") or {}).items()):
            try:
                entry, entry_problems = _parse_entry(item, key, value)
            except InvalidField as error:
                message = f"{error}; until then, the labels of the entry's nodes stay unchanged"
                problems.append(_build_problem(item, MALFORMED_INPUT, message))
                is_complete = False
                continue
            entries.append(entry)
            problems += entry_problems
            for node in entry.nodes:
                entries_by_node.setdefault(node, []).append((item, entry))
    problems += _find_shared_nodes(entries_by_node)
    return CapabilityInput(
        {node: naming[0][1].capability if len(naming) == 1 else None for node, naming in entries_by_node.items()},
        is_complete,
        problems,
        {node: (naming[0][0], naming[0][1].source) for node, naming in entries_by_node.items()},
    )


def find_unknown_nodes(capability_input: CapabilityInput, node_names: Container[str]) -> list[Problem]:
    """Return one problem per entry that names nonexistent nodes; these nodes may join the cluster later."""
    missing: dict[str, list[str]] = {}
    for node, (_, place) in capability_input.sources.items():
        if node not in node_names:
            missing.setdefault(place, []).append(node)
    return [
        _build_unknown_node_problem(capability_input.sources[nodes[0]][0], place, nodes)
        for place, nodes in missing.items()
    ]


def _parse_entry(configmap: Object, key: str, value: str) -> tuple[_Entry, list[Problem]]:
    """Parse one entry; return the entry, and the problems in the parts of the entry that are ignored.

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
    entry = _Entry(f"{configmap['metadata']['name']} {field}", nodes, None)
    if fields.get("cpu") is not None:
        cpu = parse_string(fields["cpu"], f"{field}.cpu")
        base = get_model_features(cpu)
        if base is None:
            return entry, [_build_unknown_model_problem(configmap, field, cpu, nodes)]
        features = [*features, *base]
    offered = [*models, *features]
    legal = [{name for name in names if LABEL_NAME_PATTERN.fullmatch(name)} for names in (models, features)]
    illegal = set(offered) - legal[0] - legal[1]
    problems = [_build_illegal_name_problem(configmap, field, illegal)] if illegal else []
    return entry._replace(capability=Capability(frozenset(legal[0]), frozenset(legal[1]))), problems


def _decode_entry(value: str, field: str) -> dict[str, Any]:
    remedy = 'write {"models": [...], "features": [...]}'
    try:
        fields = json.loads(value)
        json.dumps(fields, ensure_ascii=False).encode()  # the API server rejects lone surrogates
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


def _find_shared_nodes(entries_by_node: Mapping[str, list[tuple[Object, _Entry]]]) -> Iterator[Problem]:
    """Yield one problem for each group of entries that name the same nodes."""
    shared: dict[tuple[str, ...], list[str]] = {}
    first_configmap: dict[tuple[str, ...], Object] = {}
    for node, naming in sorted(entries_by_node.items()):
        if len(naming) > 1:
            places = tuple(entry.source for _, entry in naming)
            shared.setdefault(places, []).append(node)
            first_configmap.setdefault(places, naming[0][0])
    for places, nodes in shared.items():
        message = (
            f"{' and '.join(places)} name the same nodes ({format_names(nodes)}): name each node in one entry only; "
            "until then, the labels of these nodes stay unchanged"
        )
        yield _build_problem(first_configmap[places], MALFORMED_INPUT, message)


def _build_unknown_model_problem(configmap: Object, field: str, cpu: str, nodes: list[str]) -> Problem:
    remedy = "use a model name of libvirt's CPU map (case-sensitive), or list the features instead"
    message = (
        f'{field}.cpu "{cpu}" is unknown: {remedy}; until then, the labels of {format_names(nodes)} stay unchanged'
    )
    return _build_problem(configmap, UNKNOWN_MODEL, message)


def _build_unknown_node_problem(configmap: Object, source: str, nodes: list[str]) -> Problem:
    message = (
        f"{source} names nodes that do not exist ({format_names(nodes)}): use the names that kubectl get nodes lists; "
        "a node that joins later gets its labels then"
    )
    return _build_problem(configmap, UNKNOWN_NODE, message)


def _build_illegal_name_problem(configmap: Object, field: str, names: Iterable[str]) -> Problem:
    quoted = format_names(f'"{name}"' for name in names)
    message = (
        f"{field} contains names that are invalid in a label ({quoted}): remove them, or use at most 63 alphanumeric "
        "characters, '-', '_' or '.', starting and ending with an alphanumeric character; the other names are used"
    )
    return _build_problem(configmap, ILLEGAL_NAME, message)


def _build_problem(configmap: Mapping[str, Any], reason: str, message: str) -> Problem:
    return Problem.from_object(configmap, "v1", "ConfigMap", reason, message)
