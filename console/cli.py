"""Command group of `kubectl maintenance`: kubectl runs the executable `kubectl-maintenance` on PATH as a plugin.

Each command's module is imported only when that command is invoked, so that the imports of other commands do not delay
it.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

import click

from console.operations.errors import OperationError
from console.operations.versions import read_client_version
from console.terminal.options import cluster_options
from console.terminal.output import INTERRUPT_NOTE_KEY, escape

COMMANDS = {
    "preview": "Show what a maintenance of each NODE would do, what would block it, and change nothing.",
    "start": "Take NODE out of service: cordon it, taint it and evict its pods.",
    "console": "Serve the web console until Ctrl-C.",
    "stop": "End every maintenance of NODE, including those started by other users: remove the taints and the cordon.",
    "status": "Show all maintenances, or NODE with its pending and blocked pods and what would unblock them.",
    "cordon": "Mark NODE unschedulable until it is uncordoned; its pods keep running.",
    "drain": "Cordon NODE and evict its pods, as kubectl drain does; NODE stays cordoned until it is uncordoned.",
    "uncordon": "Make NODE schedulable again after a drain.",
    "certificates": "List certificates, with expiry and next renewal; or renew one now.",
    "mutex": "Show upgrade runs, or resume a run that has stopped.",
    "must-gather": "Write maintenances, runs, nodes, virtual machines, budgets, events, pods and logs "
    "into one archive.",
    "history": "Show past and running maintenances, the newest first: who requested each, how long it took, and its "
    "outcome.",
    "events": "Show recorded events: the tree of a maintenance shows which step was slow, failed, or is missing.",
    "replay": "Replay recorded events, and compare each function's new response with the recorded one.",
    "deadletters": "List dead letters, each with the event, the function that did not accept it, and the reason.",
    "redrive": "Deliver dead letters again, each only to the function that did not accept it; "
    "responses go to the broker.",
    "version": "Show the version of this command, and the images of the functions in the cluster.",
}
"""Map from a command's name to the first sentence of its help text.

The command's Python function has the same name, with underscores instead of hyphens.
"""
SHORT_HELPS = {
    "preview": "Show what maintenances would do and what would block them",
    "start": "Cordon, taint and drain nodes",
    "console": "Serve the web console until Ctrl-C",
    "stop": "End maintenances, and return the nodes to service",
    "status": "Show maintenances, their progress and what blocks them",
    "cordon": "Mark nodes unschedulable; their pods keep running",
    "drain": "Cordon nodes and evict their pods, as kubectl drain does",
    "uncordon": "Make nodes schedulable again",
    "certificates": "List certificates, or renew one now",
    "mutex": "Show upgrade runs, or resume a halted run",
    "must-gather": "Write everything that support needs into one archive",
    "history": "Show past and running maintenances, and their outcomes",
    "events": "Show recorded events, such as the tree of a maintenance",
    "replay": "Replay recorded events, and compare the responses",
    "deadletters": "List the events that a function did not accept",
    "redrive": "Deliver dead letters again, or discard them",
    "version": "Show the versions of this command and the functions",
}
"""Map from a command's name to its summary in the list of commands.

Click truncates a summary of more than `MAX_SHORT_HELP` characters.
"""
MAX_SHORT_HELP = 60
MODULES = {"redrive": "deadletters", "uncordon": "cordon"}
"""Map from a command's Python function to its module in `console.commands`, if the names differ."""
INTERRUPTED_EXIT_STATUS = 130
"""Exit status of a command that Ctrl-C has interrupted: 128 + SIGINT, by the convention of shells."""


class CommandGroup(click.Group):
    """Click group that reports an error of its command, or Ctrl-C, with a one-line message and an exit status."""

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command; print its error as a one-line message, and exit with the error's status."""
        try:
            return super().invoke(ctx)
        except OperationError as error:
            message, exit_status = str(error), error.exit_status
        except click.UsageError:
            raise  # Click itself prints usage errors.
        except click.ClickException as error:
            message, exit_status = error.message, error.exit_code
        except KeyboardInterrupt:
            if build_note := ctx.meta.get(INTERRUPT_NOTE_KEY):
                click.echo(f"\nInterrupted: {escape(build_note())}", err=True)
            raise click.exceptions.Exit(INTERRUPTED_EXIT_STATUS) from None
        click.ClickException(escape(message)).show()
        raise click.exceptions.Exit(exit_status)


class LazyGroup(CommandGroup):
    """Command group that imports a command only when it is invoked; listing the commands imports none of them."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the name of the invoked command, the command imported from its module, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, import_command(name) if name and command else None, rest


def import_command(name: str) -> click.Command:
    """Import and return the command `name`, which is a key of `COMMANDS`."""
    function = name.replace("-", "_")
    command: click.Command = getattr(import_module(f"console.commands.{MODULES.get(function, function)}"), function)
    return command


def _show_version(ctx: click.Context, _option: click.Parameter, is_set: bool) -> None:
    if is_set and not ctx.resilient_parsing:
        click.echo(f"kubectl maintenance {read_client_version()}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    commands=[
        click.Command(name, help=summary, short_help=SHORT_HELPS.get(name)) for name, summary in COMMANDS.items()
    ],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version of this command.",
)
@cluster_options
def cli() -> None:
    """Take nodes out of service for maintenance and return them to service.

    \b
    Example:
      kubectl maintenance start node-1 --reason "new disk" --wait
      kubectl maintenance status --watch
      kubectl maintenance stop node-1
    """
    if os.environ.get("NO_COLOR"):  # See https://no-color.org. The library rich also reads this variable.
        click.get_current_context().color = False


def main() -> None:
    """Run the CLI under the name `kubectl maintenance`, which the help texts show."""
    cli(prog_name="kubectl maintenance")


if __name__ == "__main__":
    main()
