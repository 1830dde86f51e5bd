"""Formats upgrade runs for the terminal: a table, the details of one, and one line for a pipe. Pure functions."""

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
"""Colors of a run's step; every other step is in progress, and yellow."""
STATE_COLORS = {STEP_DONE: "green", STEP_CURRENT: "yellow", STEP_HALTED: "red"}
RESULT_COLORS = {JobOutcome.COMPLETE.value: "green", JobOutcome.FAILED.value: "red"}


def format_line(run: Report) -> str:
    """Return one line for a pipe: name, step, node, and what the run waits for."""
    words = [f"{run['namespace']}/{run['name']}", run["step"], run["progress"]]
    return " ".join(filter(None, words)) + (f": {run['waits']['what']}" if run["waits"] else "")


def render_overview(runs: Sequence[Report], now: datetime) -> RenderableType:
    """Build a table with a row per run config, and below it what each run waits for."""
    if not runs:
        return Text("No MutexRunConfigs found.")
    rows = create_table("NAMESPACE", "NAME", "STEP", "NODE", "VERSION", "AGE")
    for run in runs:
        cells = (
            run["namespace"],
            run["name"],
            _render_step(run),
            run["progress"],
            run["version"],
            format_age(run["created"], now),
        )
        rows.add_row(*cells)
    waits = [Text(f"{run['namespace']}/{run['name']} waits {_format_wait(run, now)}") for run in runs if run["waits"]]
    return Group(rows, *waits)


def render_details(run: Report, now: datetime) -> RenderableType:
    """Build the view of one run config: its steps, its nodes, and the Jobs of the latest node that has any."""
    version = f" to {run['version']}" if run["version"] else ""
    head = Text.assemble((f"{run['namespace']}/{run['name']}{version}  ", "bold"), _render_step(run))
    parts: list[RenderableType] = [head]
    if run["waits"]:
        parts.append(Text(f"Waits {_format_wait(run, now)}", "red" if run["step"] in ("Failed", "Invalid") else ""))
    parts += [Text(""), _render_steps(run, now)]
    if run["nodes"]:
        parts += [Text(""), _render_nodes(run["nodes"], now)]
    return Group(*parts, *_render_jobs(run["nodes"], now))


def _render_step(run: Report) -> Text:
    return Text(run["step"], STEP_COLORS.get(run["step"], "yellow"))


def _format_wait(run: Report, now: datetime) -> str:
    wait = run["waits"]
    since = f" (since {format_age(wait['since'], now)})" if wait["since"] else ""
    remedy = f"\n{wait['remedy']}" if wait["remedy"] else ""  # on its own line, so that the user can copy the command
    return f"for: {wait['what']}{since}{remedy}"


def _render_steps(run: Report, now: datetime) -> RenderableType:
    rows = create_table("STEP", "STATE", "AGE")
    for each in run["steps"]:
        age = format_age(each["at"], now) if each["at"] else ""
        rows.add_row(each["step"], Text(each["state"], STATE_COLORS.get(each["state"], "dim")), age)
    return rows


def _render_nodes(nodes: Sequence[Report], now: datetime) -> RenderableType:
    rows = create_table("NODE", "STATE", "FOR", "JOBS")
    for each in nodes:
        complete = sum(job["result"] == JobOutcome.COMPLETE.value for job in each["jobs"])
        jobs = f"{complete} of {format_count(len(each['jobs']), 'Job')} complete" if each["jobs"] else ""
        since = format_age(each["since"], now) if each["since"] and each["state"] != NODE_WAITING else ""
        rows.add_row(each["node"], each["state"], since, jobs)
    return rows


def _render_jobs(nodes: Sequence[Report], now: datetime) -> list[RenderableType]:
    """Build the table of the Jobs of the last node that has any; the JSON output contains the Jobs of all nodes."""
    with_jobs = [each for each in nodes if each["jobs"]]
    if not with_jobs:
        return []
    rows = create_table("JOB", "RULE", "RESULT", "AGE", "LOG COMMAND")
    for job in with_jobs[-1]["jobs"]:
        result = Text(job["result"], RESULT_COLORS.get(job["result"], "yellow"))
        rows.add_row(
            job["name"], job["rule"], result, format_age(job["created"], now) if job["created"] else "", job["logs"]
        )
    return [Text(""), Text(f"Jobs of {with_jobs[-1]['node']}", "bold"), rows]
