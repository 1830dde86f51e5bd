"""`kubectl maintenance mutex`: shows upgrade runs of OpenShift's worker nodes, and resumes a halted run."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from datetime import datetime, timezone

import click
from rich.console import Group, RenderableType
from rich.text import Text

from console.operations import upgrade_runs
from console.operations.descriptions import format_age
from console.operations.run_reports import (
    NODE_WAITING,
    STEP_CURRENT,
    STEP_DONE,
    STEP_HALTED,
    STOPPED_STEPS,
    build_report,
)
from console.terminal.connection import run_with_api
from console.terminal.options import NonEmptyText, cluster_options, output_option, watch_option
from console.terminal.output import create_table, escape_all, print_note, show, show_json, show_live
from kube.client.api import Api
from kube.mutex.jobs import JobOutcome
from kube.mutex.objects import format_full_name
from kube.paths import Object
from kube.text_limits import format_count

STEP_COLORS = {"Failed": "red", "Invalid": "red", "Finished": "green", "Waiting": "", "New": ""}
"""Map from a run's step to its color; all other steps are in progress and are shown in yellow."""
STATE_COLORS = {STEP_DONE: "green", STEP_CURRENT: "yellow", STEP_HALTED: "red"}
RESULT_COLORS = {JobOutcome.COMPLETE.value: "green", JobOutcome.FAILED.value: "red"}


@click.group
@cluster_options
def mutex() -> None:
    """Show upgrade runs, or resume a run that has stopped.

    \b
    Example:
      kubectl maintenance mutex status example --watch
      kubectl maintenance mutex retry example
    """


@mutex.command(short_help="Show upgrade runs, and what they wait for")
@click.argument("name", type=NonEmptyText(), required=False, default="")
@watch_option
@output_option
@cluster_options
def status(name: str, watch: bool, output: str) -> None:
    """Show all MutexRunConfigs, or NAME: its steps, its nodes with their Jobs, and what it waits for.

    NAME may be NAMESPACE/NAME.

    \b
    Example:
      kubectl maintenance mutex status
      kubectl maintenance mutex status example --watch
    """
    if watch:
        run_with_api(lambda api: _watch_state(api, name, output))
        return
    state = run_with_api(lambda api: _read_state(api, name))
    show_json(state, output)
    if output == "table":
        show(_render_state(state))


@mutex.command(short_help="Resume a halted upgrade run where it stopped")
@click.argument("name", type=NonEmptyText())
@output_option
@cluster_options
def retry(name: str, output: str) -> None:
    """Resume the run of NAME where it stopped: a failed Job gets another attempt, a late node gets more time.

    Completed nodes are not processed again. NAME may be NAMESPACE/NAME.

    \b
    Example:
      kubectl maintenance mutex retry example
      kubectl maintenance mutex retry openshift-machine-config-operator/example
    """
    run = run_with_api(lambda api: upgrade_runs.request_retry(api, name))
    print_note(f"the run of {format_full_name(run)} resumes where it stopped", output)
    show_json(build_report(run), output)


async def _read_state(api: Api, name: str) -> Object:
    """Return the JSON output: the report on the run with this name, or `{runs}` with the reports on all runs."""
    if name:
        return build_report(await upgrade_runs.get_run(api, name))
    return {"runs": [build_report(run) for run in await upgrade_runs.list_runs(api)]}


async def _watch_state(api: Api, name: str, output: str) -> None:
    full_name = format_full_name(await upgrade_runs.get_run(api, name)) if name else ""
    with show_live(_render_state, _format_run_lines, output) as show_state:
        async with aclosing(upgrade_runs.watch_runs(api)) as states:
            async for runs in states:
                reports = [build_report(run) for run in runs if full_name in ("", format_full_name(run))]
                show_state(reports[0] if full_name and reports else {"runs": reports})


def _render_state(state: Object) -> RenderableType:
    now, escaped = datetime.now(timezone.utc), escape_all(state)
    return _render_overview(escaped["runs"], now) if "runs" in escaped else _render_details(escaped, now)


def _format_run_lines(state: Object) -> str:
    """Return one line of plain text for each run, for a pipe: name, step, node, and what the run waits for."""
    escaped = escape_all(state)
    return "\n".join(map(_format_run_line, escaped.get("runs", [escaped]))) or "No MutexRunConfigs found."


def _format_run_line(run: Object) -> str:
    words = [f"{run['namespace']}/{run['name']}", run["step"], run["progress"]]
    return " ".join(filter(None, words)) + (f": {run['waits']['what']}" if run["waits"] else "")


def _render_overview(runs: Sequence[Object], now: datetime) -> RenderableType:
    """Build a table with one row per run, followed by a line for each run that waits."""
    if not runs:
        return Text("No MutexRunConfigs found.")
    table = create_table("NAMESPACE", "NAME", "STEP", "NODE", "VERSION", "AGE")
    for run in runs:
        step, age = _render_current_step(run), format_age(run["created"], now)
        table.add_row(run["namespace"], run["name"], step, run["progress"], run["version"], age)
    waits = [Text(f"{run['namespace']}/{run['name']} waits {_format_wait(run, now)}") for run in runs if run["waits"]]
    return Group(table, *waits)


def _render_details(run: Object, now: datetime) -> RenderableType:
    """Build the detailed view of one run: its steps, its nodes, and the Jobs of the last node that has Jobs."""
    version = f" to {run['version']}" if run["version"] else ""
    head = Text.assemble((f"{run['namespace']}/{run['name']}{version}  ", "bold"), _render_current_step(run))
    parts: list[RenderableType] = [head]
    if run["waits"]:
        parts.append(Text(f"Waits {_format_wait(run, now)}", "red" if run["step"] in STOPPED_STEPS else ""))
    parts += [Text(""), _render_steps(run, now)]
    if run["nodes"]:
        parts += [Text(""), _render_nodes(run["nodes"], now)]
    return Group(*parts, *_render_jobs_of_last_node(run["nodes"], now))


def _render_current_step(run: Object) -> Text:
    return Text(run["step"], STEP_COLORS.get(run["step"], "yellow"))


def _format_wait(run: Object, now: datetime) -> str:
    wait = run["waits"]
    since = f" (since {format_age(wait['since'], now)})" if wait["since"] else ""
    remedy = f"\n{wait['remedy']}" if wait["remedy"] else ""  # A command on its own line is easy to copy.
    return f"for: {wait['what']}{since}{remedy}"


def _render_steps(run: Object, now: datetime) -> RenderableType:
    table = create_table("STEP", "STATE", "AGE")
    for step in run["steps"]:
        age = format_age(step["at"], now) if step["at"] else ""
        table.add_row(step["step"], Text(step["state"], STATE_COLORS.get(step["state"], "dim")), age)
    return table


def _render_nodes(nodes: Sequence[Object], now: datetime) -> RenderableType:
    table = create_table("NODE", "STATE", "FOR", "JOBS")
    for node in nodes:
        complete = sum(job["result"] == JobOutcome.COMPLETE.value for job in node["jobs"])
        jobs = f"{complete} of {format_count(len(node['jobs']), 'Job')} complete" if node["jobs"] else ""
        since = format_age(node["since"], now) if node["since"] and node["state"] != NODE_WAITING else ""
        table.add_row(node["node"], node["state"], since, jobs)
    return table


def _render_jobs_of_last_node(nodes: Sequence[Object], now: datetime) -> list[RenderableType]:
    """Build a table of the Jobs of the last node that has Jobs, followed by the command for each Job's log.

    The JSON output contains the Jobs of all nodes, and the namespace of each Job's rule.
    """
    nodes_with_jobs = [node for node in nodes if node["jobs"]]
    if not nodes_with_jobs:
        return []
    table, jobs = create_table("JOB", "RULE", "RESULT", "AGE"), nodes_with_jobs[-1]["jobs"]
    for job in jobs:
        result = Text(job["result"], RESULT_COLORS.get(job["result"], "yellow"))
        age = format_age(job["created"], now) if job["created"] else ""
        table.add_row(job["name"], job["rule"].rpartition("/")[2], result, age)
    head, commands = Text(f"Jobs of {nodes_with_jobs[-1]['node']}", "bold"), [Text(job["logs"]) for job in jobs]
    return [Text(""), head, table, Text(""), Text("To show the logs:"), *commands]
