"""`kubectl maintenance`: the list of commands. kubectl finds the script `kubectl-maintenance` on PATH as a plugin."""

from __future__ import annotations

import click

from console.commands.console import console
from console.commands.deadletters import deadletters
from console.commands.drain import drain
from console.commands.events import events
from console.commands.mustgather import must_gather
from console.commands.redrive import redrive
from console.commands.replay import replay
from console.commands.start import start
from console.commands.status import status
from console.commands.stop import stop
from console.commands.uncordon import uncordon
from console.terminal.errors import Commands
from console.terminal.options import cluster_options


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
def commands() -> None:
    """Take nodes out of service and give them back.

    \b
    Example:
      kubectl maintenance start node-1 --reason "new disk" --wait
      kubectl maintenance status --watch
      kubectl maintenance stop node-1
    """


commands.add_command(start)
commands.add_command(console)
commands.add_command(stop)
commands.add_command(status)
commands.add_command(drain)
commands.add_command(uncordon)
commands.add_command(must_gather)
commands.add_command(events)
commands.add_command(replay)
commands.add_command(deadletters)
commands.add_command(redrive)


def main() -> None:
    """Entry point of the script; the help names the program as kubectl calls it."""
    commands(prog_name="kubectl maintenance")


if __name__ == "__main__":
    main()
