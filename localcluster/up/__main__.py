"""Command line `python -m localcluster.up env|down|status`: shows or stops a running cluster.

A cluster may outlive the virtual environment that started it, so the Makefile calls this module with any Python. This
module, and the modules that it imports, must not import third-party packages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.up import state_directory
from localcluster.up.down import stop_cluster
from localcluster.up.status import print_status


def print_env(directory: Path) -> None:
    """Print the running cluster's `export` lines, for the shell's `eval`."""
    print(state_directory.read_export_lines(directory), end="")


COMMANDS = {"env": print_env, "down": stop_cluster, "status": print_status}


def main() -> None:
    """Parse the command line and run the command."""
    parser = argparse.ArgumentParser(prog="python -m localcluster.up", description="Show or stop a running cluster.")
    parser.add_argument("command", choices=COMMANDS)
    parser.add_argument("--directory", type=Path, default=Path(".cluster"), help="Directory of the cluster's files.")
    arguments = parser.parse_args()
    COMMANDS[arguments.command](arguments.directory)


if __name__ == "__main__":
    try:
        main()
    except (LocalClusterError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
