"""`kubectl maintenance`: the list of commands. kubectl finds the script `kubectl-maintenance` on PATH as a plugin.

A command is imported when it is called, so that none waits for what another one needs.
"""

from __future__ import annotations

from importlib import import_module

import click

from console.terminal.errors import Commands
from console.terminal.options import cluster_options

COMMANDS = {
    "start": "Take NODE out of service: cordon it, taint it and evict its pods.",
    "console": "Serve the web console until Ctrl-C.",
    "stop": "End every maintenance of NODE, whoever started it: take off taints and cordon.",
    "status": "Show all maintenances, or NODE with its pending and blocked pods and what would unblock them.",
    "cordon": "Have NODE take no new pods; those on it stay, and it stays cordoned until uncordon.",
    "drain": "Cordon NODE and evict its pods, as kubectl drain does; it stays cordoned until uncordon.",
    "uncordon": "Let NODE take new pods again after a drain.",
    "certificates": "List certificates, with serial, dates and next renewal; or renew one now.",
    "mutex": "Show runs of the upgrade mutex, or resume one that has stopped.",
    "must-gather": "Write maintenances, runs, nodes, machines, budgets, events, pods and logs into one archive.",
    "events": "Show recorded events: the tree of a maintenance shows which step was slow, failed, or is missing.",
    "replay": "Replay recorded events, and show what each function answered then and what it answers now.",
    "deadletters": "List dead letters: the event, the function that it could not be delivered to, "
    "and that function's answer.",
    "redrive": "Deliver dead letters again: each to the one function that it was meant for; "
    "the answer goes to the broker.",
}
"""Name → first sentence of its help. In `console.commands` its module bears the name without -, its function with _."""


class Listed(Commands):
    """The group of the commands in the list."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import the command; None where there is none of this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"console.commands.{cmd_name.replace('-', '')}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list, which imports no command."""
        click.Group(commands=self.commands).format_commands(ctx, formatter)


@click.group(
    cls=Listed,
    commands=[click.Command(name, help=summary) for name, summary in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
)
@cluster_options
def commands() -> None:
    """Take nodes out of service and give them back.

    \b
    Example:
      kubectl maintenance start node-1 --reason "new disk" --wait
      kubectl maintenance status --watch
      kubectl maintenance stop node-1
    """


def main() -> None:
    """Entry point of the script; the help names the program as kubectl calls it."""
    commands(prog_name="kubectl maintenance")


if __name__ == "__main__":
    main()
