"""Formats upgrade runs for the terminal: a table, a run's details, and a line for a pipe. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from console.operations.descriptions import format_age
from console.operations.run_reports import NODE_WAITING, STEP_CURRENT, STEP_DONE, STEP_HALTED
from console.terminal.maintenance_display import create_table
from kube.mutex.jobs import JobOutcome
from kube.text_limits import format_count

Report = Mapping[str, Any]
STEP_COLORS = {"Failed": "red", "Invalid": "red", "Finished": "green", "Waiting": "", "New": ""}
"""Colors of a run's step; all other steps are in progress and shown in yellow."""
STATE_COLORS = {STEP_DONE: "green", STEP_CURRENT: "yellow", STEP_HALTED: "red"}
RESULT_COLORS = {JobOutcome.COMPLETE.value: "green", JobOutcome.FAILED.value: "red"}


def format_line(run: Report) -> str:
    """Return a line for a pipe: name, step, node, and what the run waits for."""
    words = [f"{run['namespace']}/{run['name']}", run["step"], run["progress"]]
    return " ".join(filter(None, words)) + (f": {run['waits']['what']}" if run["waits"] else "")


def render_overview(runs: Sequence[Report], now: datetime) -> RenderableType:
    """Build a table with one row per run, and below it what each run waits for."""
    if not runs:
        return Text("No MutexRunConfigs found.")
    table = create_table("NAMESPACE", "NAME", "STEP", "NODE", "VERSION", "AGE")
    for run in runs:
        cells = (
            run["namespace"],
            run["name"],
            _render_current_step(run),
            run["progress"],
            run["version"],
            format_age(run["created"], now),
        )
        table.add_row(*cells)
    waits = [Text(f"{run['namespace']}/{run['name']} waits {_format_wait(run, now)}") for run in runs if run["waits"]]
    return Group(table, *waits)


def render_details(run: Report, now: datetime) -> RenderableType:
    """Build the view of one run: its steps, its nodes, and the Jobs of the last node that has Jobs."""
    version = f" to {run['version']}" if run["version"] else ""
    head = Text.assemble((f"{run['namespace']}/{run['name']}{version}  ", "bold"), _render_current_step(run))
    parts: list[RenderableType] = [head]
    if run["waits"]:
        parts.append(Text(f"Waits {_format_wait(run, now)}", "red" if run["step"] in ("Failed", "Invalid") else ""))
    parts += [Text(""), _render_steps(run, now)]
    if run["nodes"]:
        parts += [Text(""), _render_nodes(run["nodes"], now)]
    return Group(*parts, *_render_jobs(run["nodes"], now))


def _render_current_step(run: Report) -> Text:
    return Text(run["step"], STEP_COLORS.get(run["step"], "yellow"))


def _format_wait(run: Report, now: datetime) -> str:
    wait = run["waits"]
    since = f" (since {format_age(wait['since'], now)})" if wait["since"] else ""
    remedy = f"\n{wait['remedy']}" if wait["remedy"] else ""  # on its own line, so that the user can copy the command
    return f"for: {wait['what']}{since}{remedy}"


def _render_steps(run: Report, now: datetime) -> RenderableType:
    table = create_table("STEP", "STATE", "AGE")
    for step in run["steps"]:
        age = format_age(step["at"], now) if step["at"] else ""
        table.add_row(step["step"], Text(step["state"], STATE_COLORS.get(step["state"], "dim")), age)
    return table


def _render_nodes(nodes: Sequence[Report], now: datetime) -> RenderableType:
    table = create_table("NODE", "STATE", "FOR", "JOBS")
    for node in nodes:
        complete = sum(job["result"] == JobOutcome.COMPLETE.value for job in node["jobs"])
        jobs = f"{complete} of {format_count(len(node['jobs']), 'Job')} complete" if node["jobs"] else ""
        since = format_age(node["since"], now) if node["since"] and node["state"] != NODE_WAITING else ""
        table.add_row(node["node"], node["state"], since, jobs)
    return table


def _render_jobs(nodes: Sequence[Report], now: datetime) -> list[RenderableType]:
    """Build a table of the Jobs of the last node that has Jobs; the JSON output contains the Jobs of all nodes."""
    nodes_with_jobs = [node for node in nodes if node["jobs"]]
    if not nodes_with_jobs:
        return []
    table = create_table("JOB", "RULE", "RESULT", "AGE", "LOG COMMAND")
    for job in nodes_with_jobs[-1]["jobs"]:
        result = Text(job["result"], RESULT_COLORS.get(job["result"], "yellow"))
        table.add_row(
            job["name"], job["rule"], result, format_age(job["created"], now) if job["created"] else "", job["logs"]
        )
    return [Text(""), Text(f"Jobs of {nodes_with_jobs[-1]['node']}", "bold"), table]
