"""Command line `python -m localcluster.deploy apply|remove OVERLAY`, where OVERLAY is a name or a directory."""

from __future__ import annotations

import argparse

from localcluster.deploy.apply import deploy
from localcluster.deploy.removal import remove
from localcluster.errors import LocalClusterError


def main() -> None:
    """Parse the command line, and install or remove the overlay."""
    parser = argparse.ArgumentParser(prog="python -m localcluster.deploy", description="Install or remove an overlay.")
    commands = parser.add_subparsers(dest="command", required=True)
    apply_command, remove_command = commands.add_parser("apply"), commands.add_parser("remove")
    for command in (apply_command, remove_command):
        command.add_argument("overlay", help="Name of an overlay in manifests/overlays, or directory of an overlay.")
    apply_command.add_argument("--image", default="", help="Image that replaces the overlay's placeholder image.")
    apply_command.add_argument("--pushed-image", default="", help="Replacement of the placeholder without --image.")
    remove_command.add_argument("--force", action="store_true", help="First end all maintenances and upgrade runs.")
    arguments = parser.parse_args()
    if arguments.command == "apply":
        deploy(arguments.overlay, arguments.image, arguments.pushed_image)
    else:
        remove(arguments.overlay, arguments.force)


if __name__ == "__main__":
    try:
        main()
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
