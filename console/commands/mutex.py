"""`kubectl maintenance mutex`: shows upgrade runs of OpenShift's workers, and resumes a run that has stopped."""

from __future__ import annotations

from contextlib import aclosing, nullcontext
from datetime import datetime, timezone

import click
from rich.console import RenderableType

from console.operations import upgrade_runs
from console.operations.run_reports import report
from console.terminal.connection import with_api
from console.terminal.escaping import escaped_all
from console.terminal.options import cluster_options, output_option, watch_option
from console.terminal.run_display import details, line, overview
from console.terminal.output import live, note, show, show_json, show_json_line
from console.terminal.param_types import Name
from kube.client.api import Api
from kube.mutex.objects import full_name
from kube.paths import Object


@click.group
@cluster_options
def mutex() -> None:
    """Show runs of the upgrade mutex, or resume one that has stopped.

    \b
    Example:
      kubectl maintenance mutex status example --watch
      kubectl maintenance mutex retry example
    """


@mutex.command
@click.argument("name", type=Name(), required=False, default="")
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
        with_api(lambda api: _watch(api, name, output))
        return
    state = with_api(lambda api: _read(api, name))
    if output == "json":
        show_json(state)
    else:
        show(_render(state))


@mutex.command
@click.argument("name", type=Name())
@output_option
@cluster_options
def retry(name: str, output: str) -> None:
    """Resume the run of NAME where it stopped: a failed Job gets another attempt, a late node gets more time.

    Completed nodes are not processed again. NAME may be NAMESPACE/NAME.

    \b
    Example:
      kubectl maintenance mutex retry example
    """
    run = with_api(lambda api: upgrade_runs.retry(api, name))
    note(f"the run of {full_name(run)} is resumed where it stopped", output)
    if output == "json":
        show_json(report(run))


async def _read(api: Api, name: str) -> Object:
    """Return the JSON output: `{runs}`, or the report of the run that `name` refers to."""
    if name:
        return report(await upgrade_runs.named(api, name))
    return {"runs": [report(run) for run in await upgrade_runs.runs(api)]}


async def _watch(api: Api, name: str, output: str) -> None:
    chosen = full_name(await upgrade_runs.named(api, name)) if name else ""
    screen = live(_render, _lines) if output == "table" else nullcontext(show_json_line)
    with screen as show_state:
        async with aclosing(upgrade_runs.watched(api)) as states:
            async for found in states:
                shown = [report(run) for run in found if chosen in ("", full_name(run))]
                show_state(shown[0] if chosen and shown else {"runs": shown})


def _render(state: Object) -> RenderableType:
    now, shown = datetime.now(timezone.utc), escaped_all(state)
    return overview(shown["runs"], now) if "runs" in shown else details(shown, now)


def _lines(state: Object) -> str:
    shown = escaped_all(state)
    return "\n".join(map(line, shown.get("runs", [shown]))) or "No MutexRunConfig."
