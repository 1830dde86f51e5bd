"""Formats the virtual machines of a node for the terminal. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from console.terminal.maintenance_display import create_table
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

DRAIN_EFFECT_COLORS = {MOVES: "green", RESTARTS: "yellow", STOPS: "yellow", BLOCKS: "red"}


def render_vmis(reports: Sequence[Mapping[str, Any]], unknown: str) -> list[RenderableType]:
    """Build an empty line and a table with a row per report (`kube.virtualization.drain_forecast.build_reports`).

    Without reports, the result is empty. If `unknown` is set, that text replaces the table.
    """
    if unknown:
        return [Text(""), Text(unknown, "red")]
    if not reports:
        return []
    rows = create_table(
        "VIRTUAL MACHINE", "PHASE", "EVICTION", "RUN STRATEGY", "MIGRATABLE", "DRAIN EFFECT", "MIGRATION"
    )
    for each in reports:
        rows.add_row(
            f"{each['namespace']}/{each['name']}",
            each["phase"],
            each["evictionStrategy"] or "–",
            each["runStrategy"] or "–",
            Text("yes" if each["migratable"] else f"no: {each['unable']}"),
            Text.assemble((each["drain"], DRAIN_EFFECT_COLORS[each["drain"]]), f": {each['why']}"),
            Text(_format_migration(each["migration"])),
        )
    return [Text(""), rows]


def _format_migration(migration: Mapping[str, str] | None) -> str:
    if migration is None:
        return ""
    target = f" to {migration['target']}" if migration["target"] else ""
    return f"{migration['phase']}{target}: {migration['name']}"
