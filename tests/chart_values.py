"""Reads the Helm chart's values and their comments in values.yaml, for the reference page and its test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

import yaml

from tests.sources import ROOT

CHART = ROOT / "charts" / "node-maintenance"
VALUES_FILE, SCHEMA_FILE = CHART / "values.yaml", CHART / "values.schema.json"


class ChartValue(NamedTuple):
    """A value of the chart: its path, its default as JSON, and its comment in values.yaml."""

    path: str
    default: str
    description: str


def list_chart_values() -> Iterator[ChartValue]:
    """Yield the chart's values in the order of values.yaml; a value without a comment has an empty description."""
    lines = VALUES_FILE.read_text().splitlines()
    for path, node, line in _list_leaves(yaml.compose(VALUES_FILE.read_text(), Loader=yaml.SafeLoader)):
        default = yaml.safe_load(yaml.serialize(node))
        comment: list[str] = []
        while lines[line - 1].lstrip().startswith("#"):
            line -= 1
            comment.insert(0, lines[line].lstrip()[1:].strip())
        yield ChartValue(path, json.dumps(default), " ".join(comment))


def _list_leaves(node: Any, prefix: str = "") -> Iterator[tuple[str, yaml.Node, int]]:
    """Yield the path, the node and the line number of each value below a mapping."""
    for key, child in node.value:
        path = f"{prefix}{key.value}"
        if isinstance(child, yaml.MappingNode):
            yield from _list_leaves(child, f"{path}.")
        else:
            yield path, child, key.start_mark.line


def read_schema(path: str) -> dict[str, Any]:
    """Return the schema of the value at this path. Raises `KeyError` if the schema does not contain it."""
    schema: dict[str, Any] = json.loads(SCHEMA_FILE.read_text())
    for name in path.split("."):
        schema = schema["properties"][name]
    return schema
