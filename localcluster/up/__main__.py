"""Command line `python -m localcluster.up env|down|status`: shows or stops a running cluster.

A cluster may outlive the virtual environment that started it. So the Makefile may call this with any Python, and the
modules here must not import third-party packages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from localcluster.errors import LocalClusterError
from localcluster.up import state_directory
from localcluster.up.down import down
from localcluster.up.status import status


def env(directory: Path) -> None:
    """Print the export lines of the running cluster, for a shell's eval."""
    print(state_directory.exports(directory), end="")


DEEDS = {"env": env, "down": down, "status": status}


def main() -> None:
    """Run the command that the command line names."""
    parser = argparse.ArgumentParser(prog="python -m localcluster.up", description="Look at a cluster, or end it.")
    parser.add_argument("deed", choices=DEEDS)
    parser.add_argument("--directory", type=Path, default=Path(".cluster"), help="Where the cluster keeps its files.")
    wanted = parser.parse_args()
    DEEDS[wanted.deed](wanted.directory)


if __name__ == "__main__":
    try:
        main()
    except (LocalClusterError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
