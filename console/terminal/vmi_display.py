"""Formats the virtual machines on a node for the terminal. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from console.terminal.maintenance_display import create_table
from kube.virtualization.drain_forecast import BLOCKS, MOVES, RESTARTS, STOPS

DRAIN_EFFECT_COLORS = {MOVES: "green", RESTARTS: "yellow", STOPS: "yellow", BLOCKS: "red"}


def render_vmis(reports: Sequence[Mapping[str, Any]], read_error: str) -> list[RenderableType]:
    """Build an empty line and a table with a row per report (`kube.virtualization.drain_forecast.build_vmi_reports`).

    Without reports, return an empty list. If `read_error` is not empty, that text replaces the table.
    """
    if read_error:
        return [Text(""), Text(read_error, "red")]
    if not reports:
        return []
    table = create_table(
        "VIRTUAL MACHINE", "PHASE", "EVICTION", "RUN STRATEGY", "MIGRATABLE", "DRAIN EFFECT", "MIGRATION"
    )
    for report in reports:
        table.add_row(
            f"{report['namespace']}/{report['name']}",
            report["phase"],
            report["evictionStrategy"] or "–",
            report["runStrategy"] or "–",
            Text("yes" if report["migratable"] else f"no: {report['unable']}"),
            Text.assemble((report["drain"], DRAIN_EFFECT_COLORS[report["drain"]]), f": {report['why']}"),
            Text(_format_migration(report["migration"])),
        )
    return [Text(""), table]


def _format_migration(migration: Mapping[str, str] | None) -> str:
    if migration is None:
        return ""
    target = f" to {migration['target']}" if migration["target"] else ""
    return f"{migration['phase']}{target}: {migration['name']}"
