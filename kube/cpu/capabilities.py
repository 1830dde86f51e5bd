"""CPU capabilities of nodes, from ConfigMaps labelled `nodemaintenance.dev/cpu-capabilities` (OSV-38). Pure functions.

Each key is an entry, in JSON: `{"nodes": ["a", "b"], "models": ["Haswell"], "features": ["avx2"], "cpu": "Haswell"}`.
Without `nodes`, the key is the node's name. `cpu` stands for all features of that model, and `features` adds more.
"""

from __future__ import annotations

import json
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from kube.cpu.models import features_of
from kube.cpu.problems import (
    ILLEGAL_NAME,
    MALFORMED_INPUT,
    UNKNOWN_MODEL,
    UNKNOWN_NODE,
    Problem,
    Wrong,
    listed,
    text,
    texts,
)
from kube.paths import Object

LABEL = "nodemaintenance.dev/cpu-capabilities"
FIELDS = ("nodes", "models", "features", "cpu")
LEGAL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""The part of a label key after its prefix, as the API server accepts it."""


class Capability(NamedTuple):
    """The CPU models and features that one node offers."""

    models: frozenset[str]
    features: frozenset[str]


class Input(NamedTuple):
    """The merged content of all ConfigMaps.

    Attributes:
        nodes: Node → its capability, None if it cannot be determined.
        is_whole: Whether every entry could be read, so that a node missing from `nodes` is in no entry.
        places: Node → the ConfigMap that names it, and the field there.
        problems: Problems that an administrator must fix.
    """

    nodes: Mapping[str, Capability | None]
    is_whole: bool
    problems: list[Problem]
    places: Mapping[str, tuple[Object, str]]


class _Entry(NamedTuple):
    place: str
    nodes: list[str]
    capability: Capability | None


def read(maps: Iterable[Object]) -> Input:
    """Merge all entries.

    A node that two entries name has no capability until one of them no longer names it.
    """
    entries, problems, is_whole = list[_Entry](), list[Problem](), True
    owners: dict[str, list[tuple[Object, _Entry]]] = {}
    for item in sorted(maps, key=lambda item: str(item["metadata"]["name"])):
        for key, value in sorted((item.get("data") or {}).items()):
            try:
                entry, said = _entry(item, key, value)
            except Wrong as error:
                problems.append(_problem(item, MALFORMED_INPUT, f"{error}; its nodes keep their labels until then"))
                is_whole = False
                continue
            entries.append(entry)
            problems += said
            for node in entry.nodes:
                owners.setdefault(node, []).append((item, entry))
    problems += _doubles(owners)
    return Input(
        {node: found[0][1].capability if len(found) == 1 else None for node, found in owners.items()},
        is_whole,
        problems,
        {node: (found[0][0], found[0][1].place) for node, found in owners.items()},
    )


def strangers(told: Input, known: Container[str]) -> list[Problem]:
    """Return one problem per place that names nonexistent nodes; these nodes may join the cluster later."""
    missing: dict[str, list[str]] = {}
    for node, (_, place) in told.places.items():
        if node not in known:
            missing.setdefault(place, []).append(node)
    return [_stranger(told.places[nodes[0]][0], place, nodes) for place, nodes in missing.items()]


def _entry(item: Object, key: str, value: str) -> tuple[_Entry, list[Problem]]:
    """Parse one entry, and return it with the problems of its unused parts. Raises `Wrong` if it is malformed."""
    field = f'data["{key}"]'
    told = _decoded(value, field)
    nodes = list(dict.fromkeys(texts(told.get("nodes"), f"{field}.nodes"))) or [key]
    models, features = (texts(told.get(name), f"{field}.{name}") for name in ("models", "features"))
    if told.get("cpu") is None and "features" not in told:
        raise Wrong(field, "has neither features nor cpu", 'add "features": [...], or "cpu" with the name of a model')
    entry = _Entry(f"{item['metadata']['name']} {field}", nodes, None)
    if told.get("cpu") is not None:
        cpu = text(told["cpu"], f"{field}.cpu")
        base = features_of(cpu)
        if base is None:
            return entry, [_unknown(item, field, cpu, nodes)]
        features = [*features, *base]
    offered = [*models, *features]
    legal = [{name for name in names if LEGAL.fullmatch(name)} for names in (models, features)]
    illegal = set(offered) - legal[0] - legal[1]
    said = [_illegal(item, field, illegal)] if illegal else []
    return entry._replace(capability=Capability(frozenset(legal[0]), frozenset(legal[1]))), said


def _decoded(value: str, field: str) -> dict[str, Any]:
    remedy = 'write {"models": [...], "features": [...]}'
    try:
        told = json.loads(value)
        json.dumps(told, ensure_ascii=False).encode()  # the API server rejects lone surrogates
    except (ValueError, RecursionError) as error:
        raise Wrong(field, f"is no JSON ({error})", remedy) from None
    if not isinstance(told, dict):
        raise Wrong(field, "is no object", remedy)
    if unknown := told.keys() - set(FIELDS):
        raise Wrong(field, f"has unknown fields ({listed(unknown)})", f"allowed are {listed(FIELDS)}")
    if told.get("models") is None:
        raise Wrong(f"{field}.models", "is missing", "write the models that the nodes offer, [] for none")
    return told


def _doubles(owners: Mapping[str, list[tuple[Object, _Entry]]]) -> Iterator[Problem]:
    """Yield one problem for each combination of entries that name the same nodes."""
    shared: dict[tuple[str, ...], list[str]] = {}
    first: dict[tuple[str, ...], Object] = {}
    for node, found in sorted(owners.items()):
        if len(found) > 1:
            places = tuple(entry.place for _, entry in found)
            shared.setdefault(places, []).append(node)
            first.setdefault(places, found[0][0])
    for places, nodes in shared.items():
        message = f"{' and '.join(places)} both name {listed(nodes)}: name a node once; its labels stay until then"
        yield _problem(first[places], MALFORMED_INPUT, message)


def _unknown(item: Object, field: str, cpu: str, nodes: list[str]) -> Problem:
    remedy = "write a model of libvirt's CPU map, case matters, or name the features in its place"
    message = f'{field}.cpu "{cpu}" is not known: {remedy}; the labels of {listed(nodes)} stay until then'
    return _problem(item, UNKNOWN_MODEL, message)


def _stranger(item: Object, place: str, nodes: list[str]) -> Problem:
    words = f"{listed(nodes)}, and no such node is there: kubectl get nodes has the names"
    return _problem(item, UNKNOWN_NODE, f"{place} names {words}; its labels come when it comes")


def _illegal(item: Object, field: str, names: Iterable[str]) -> Problem:
    quoted = listed(f'"{name}"' for name in names)
    remedy = "letters, digits, - _ . between letters or digits, 63 at most; take them out"
    return _problem(
        item, ILLEGAL_NAME, f"{field} has {quoted}, which no label can be named: {remedy}; the others are used"
    )


def _problem(item: Mapping[str, Any], reason: str, message: str) -> Problem:
    return Problem.at(item, "v1", "ConfigMap", reason, message)
