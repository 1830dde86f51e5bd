"""Formats upgrade runs for the terminal: a table, the details of one, and one line for a pipe. Pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.text import Text

from console.operations.descriptions import age
from console.operations.run_reports import DONE, NOW, STOPPED, WAITING
from console.terminal.maintenance_display import headed
from kube.mutex.jobs import Outcome
from kube.text_limits import counted

Report = Mapping[str, Any]
COLORS = {"Failed": "red", "Invalid": "red", "Finished": "green", "Waiting": "", "New": ""}
"""Colors of a run's step; every other step is in progress, and yellow."""
STATES = {DONE: "green", NOW: "yellow", STOPPED: "red"}
RESULTS = {Outcome.COMPLETE.value: "green", Outcome.FAILED.value: "red"}


def line(run: Report) -> str:
    """Return one line for a pipe: name, step, node, and what the run waits for."""
    words = [f"{run['namespace']}/{run['name']}", run["step"], run["progress"]]
    return " ".join(filter(None, words)) + (f": {run['waits']['what']}" if run["waits"] else "")


def overview(runs: Sequence[Report], now: datetime) -> RenderableType:
    """Build a table with a row per run config, and below it what each run waits for."""
    if not runs:
        return Text("No MutexRunConfig.")
    rows = headed("NAMESPACE", "NAME", "STEP", "NODE", "VERSION", "AGE")
    for run in runs:
        shown = (run["namespace"], run["name"], _step(run), run["progress"], run["version"], age(run["created"], now))
        rows.add_row(*shown)
    waits = [Text(f"{run['namespace']}/{run['name']} waits {_wait(run, now)}") for run in runs if run["waits"]]
    return Group(rows, *waits)


def details(run: Report, now: datetime) -> RenderableType:
    """Build the view of one run config: its steps, its nodes, and the Jobs of the latest node that has any."""
    version = f" to {run['version']}" if run["version"] else ""
    head = Text.assemble((f"{run['namespace']}/{run['name']}{version}  ", "bold"), _step(run))
    parts: list[RenderableType] = [head]
    if run["waits"]:
        parts.append(Text(f"Waits {_wait(run, now)}", "red" if run["step"] in ("Failed", "Invalid") else ""))
    parts += [Text(""), _steps(run, now)]
    if run["nodes"]:
        parts += [Text(""), _nodes(run["nodes"], now)]
    return Group(*parts, *_jobs(run["nodes"], now))


def _step(run: Report) -> Text:
    return Text(run["step"], COLORS.get(run["step"], "yellow"))


def _wait(run: Report, now: datetime) -> str:
    wait = run["waits"]
    since = f" (since {age(wait['since'], now)})" if wait["since"] else ""
    remedy = f"\n{wait['remedy']}" if wait["remedy"] else ""  # on its own line, so that the user can copy the command
    return f"for: {wait['what']}{since}{remedy}"


def _steps(run: Report, now: datetime) -> RenderableType:
    rows = headed("STEP", "STATE", "AGO")
    for each in run["steps"]:
        ago = age(each["at"], now) if each["at"] else ""
        rows.add_row(each["step"], Text(each["state"], STATES.get(each["state"], "dim")), ago)
    return rows


def _nodes(nodes: Sequence[Report], now: datetime) -> RenderableType:
    rows = headed("NODE", "STATE", "FOR", "JOBS")
    for each in nodes:
        complete = sum(job["result"] == Outcome.COMPLETE.value for job in each["jobs"])
        jobs = f"{complete} of {counted(len(each['jobs']), 'Job')} complete" if each["jobs"] else ""
        since = age(each["since"], now) if each["since"] and each["state"] != WAITING else ""
        rows.add_row(each["node"], each["state"], since, jobs)
    return rows


def _jobs(nodes: Sequence[Report], now: datetime) -> list[RenderableType]:
    """Build the table of the Jobs of the last node that has any; the JSON output contains the Jobs of all nodes."""
    found = [each for each in nodes if each["jobs"]]
    if not found:
        return []
    rows = headed("JOB", "OF RULE", "RESULT", "AGO", "ITS LOG")
    for job in found[-1]["jobs"]:
        result = Text(job["result"], RESULTS.get(job["result"], "yellow"))
        rows.add_row(job["name"], job["rule"], result, age(job["created"], now) if job["created"] else "", job["logs"])
    return [Text(""), Text(f"Jobs of {found[-1]['node']}", "bold"), rows]
