"""`kubectl maintenance`: the list of commands. kubectl finds the script `kubectl-maintenance` on PATH as a plugin."""

from __future__ import annotations

import click

from console.drain import drain
from console.options import cluster_options
from console.start import start
from console.status import status
from console.stop import stop
from console.uncordon import uncordon


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@cluster_options
def main() -> None:
    """Take nodes out of service and give them back.

    \b
    Example:
      kubectl maintenance start node-1 --reason "new disk" --wait
      kubectl maintenance status --watch
      kubectl maintenance stop node-1
    """


main.add_command(start)
main.add_command(stop)
main.add_command(status)
main.add_command(drain)
main.add_command(uncordon)
