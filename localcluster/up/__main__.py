"""`python -m localcluster.up env|down|status`: what looks at a cluster that is up, or ends it.

The Makefile calls it with any Python, of the environment or of the system: nothing is imported that is to be installed,
as a cluster outlives the environment from which it was started.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from localcluster.trouble import LocalClusterError
from localcluster.up import folder
from localcluster.up.down import down
from localcluster.up.status import status


def env(directory: Path) -> None:
    """Print the export lines of the cluster that is up, for a shell's eval."""
    print(folder.exports(directory), end="")


DEEDS = {"env": env, "down": down, "status": status}


def main() -> None:
    """Do what the command line says."""
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
