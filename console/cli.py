"""Command group of `kubectl maintenance`: kubectl runs the executable `kubectl-maintenance` on PATH as a plugin.

Each command's module is imported only when that command is invoked, so no command waits for another's imports.
"""

from __future__ import annotations

from importlib import import_module

import click

from console.terminal.errors import CommandGroup
from console.terminal.options import cluster_options

COMMANDS = {
    "start": "Take NODE out of service: cordon it, taint it and evict its pods.",
    "console": "Serve the web console until Ctrl-C.",
    "stop": "End every maintenance of NODE, including those started by other users: remove the taints and the cordon.",
    "status": "Show all maintenances, or NODE with its pending and blocked pods and what would unblock them.",
    "cordon": "Mark NODE unschedulable until it is uncordoned; its pods keep running.",
    "drain": "Cordon NODE and evict its pods, as kubectl drain does; NODE stays cordoned until it is uncordoned.",
    "uncordon": "Make NODE schedulable again after a drain.",
    "certificates": "List certificates, with serial, dates and next renewal; or renew one now.",
    "mutex": "Show upgrade runs, or resume a run that has stopped.",
    "must-gather": "Write maintenances, runs, nodes, virtual machines, budgets, events, pods and logs "
    "into one archive.",
    "events": "Show recorded events: the tree of a maintenance shows which step was slow, failed, or is missing.",
    "replay": "Replay recorded events, and compare each function's new response with the recorded one.",
    "deadletters": "List dead letters, each with the event, the function that did not accept it, and the reason.",
    "redrive": "Deliver dead letters again, each only to the function that did not accept it; "
    "responses go to the broker.",
}
"""Command name → first sentence of its help text.

Each command's module in `console.commands` is named after the command without hyphens, its function with underscores.
"""


class LazyGroup(CommandGroup):
    """A click group of the commands in `COMMANDS` that imports each command only when it is invoked."""

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command, or return None if no command has this name."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"console.commands.{cmd_name.replace('-', '')}")
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands without importing any of them."""
        click.Group(commands=self.commands).format_commands(ctx, formatter)


@click.group(
    cls=LazyGroup,
    commands=[click.Command(name, help=summary) for name, summary in COMMANDS.items()],
    context_settings={"help_option_names": ["-h", "--help"]},
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


def main() -> None:
    """Run the CLI as `kubectl maintenance`, the name that users type and that the help texts show."""
    cli(prog_name="kubectl maintenance")


if __name__ == "__main__":
    main()
