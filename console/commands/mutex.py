"""`kubectl maintenance mutex`: shows upgrade runs of OpenShift's workers, and resumes a stopped run."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from datetime import datetime, timezone

import click
from rich.console import RenderableType

from console.operations import upgrade_runs
from console.operations.run_reports import build_report
from console.terminal.connection import run_with_api
from console.terminal.escaping import escape_all
from console.terminal.options import cluster_options, output_option, watch_option
from console.terminal.output import print_note, show, show_json, show_json_line, show_live
from console.terminal.param_types import NonEmptyText
from console.terminal.run_display import format_line, render_details, render_overview
from kube.client.api import Api
from kube.mutex.objects import format_full_name
from kube.paths import Object


@click.group
@cluster_options
def mutex() -> None:
    """Show upgrade runs, or resume a run that has stopped.

    \b
    Example:
      kubectl maintenance mutex status example --watch
      kubectl maintenance mutex retry example
    """


@mutex.command
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
    if output == "json":
        show_json(state)
    else:
        show(_render_state(state))


@mutex.command
@click.argument("name", type=NonEmptyText())
@output_option
@cluster_options
def retry(name: str, output: str) -> None:
    """Resume the run of NAME where it stopped: a failed Job gets another attempt, a late node gets more time.

    Completed nodes are not processed again. NAME may be NAMESPACE/NAME.

    \b
    Example:
      kubectl maintenance mutex retry example
    """
    run = run_with_api(lambda api: upgrade_runs.request_retry(api, name))
    print_note(f"the run of {format_full_name(run)} resumes where it stopped", output)
    if output == "json":
        show_json(build_report(run))


async def _read_state(api: Api, name: str) -> Object:
    """Return the JSON output: `{runs}`, or the report on the run that `name` refers to."""
    if name:
        return build_report(await upgrade_runs.get_run(api, name))
    return {"runs": [build_report(run) for run in await upgrade_runs.list_runs(api)]}


async def _watch_state(api: Api, name: str, output: str) -> None:
    full_name = format_full_name(await upgrade_runs.get_run(api, name)) if name else ""
    display = show_live(_render_state, _format_lines) if output == "table" else nullcontext(show_json_line)
    with display as show_state:
        async with aclosing(upgrade_runs.watch_runs(api)) as states:
            async for runs in states:
                reports = [build_report(run) for run in runs if full_name in ("", format_full_name(run))]
                show_state(reports[0] if full_name and reports else {"runs": reports})


def _render_state(state: Object) -> RenderableType:
    now, escaped = datetime.now(timezone.utc), escape_all(state)
    return render_overview(escaped["runs"], now) if "runs" in escaped else render_details(escaped, now)


def _format_lines(state: Object) -> str:
    escaped = escape_all(state)
    return "\n".join(map(format_line, escaped.get("runs", [escaped]))) or "No MutexRunConfigs found."
