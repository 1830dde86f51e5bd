"""`python -m localcluster up|down|status|build`: what the Makefile calls."""

from __future__ import annotations

from pathlib import Path

import click

from localcluster import build, supervisor
from localcluster.errors import LocalClusterError

directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=supervisor.DIRECTORY,
    show_default=True,
    help="Where the cluster keeps its files.",
)


@click.group()
def main() -> None:
    """Run a real Kubernetes cluster as local processes, with the product on it."""


@main.command()
@directory_option
@click.option("--nodes", type=click.IntRange(1, 500), default=3, show_default=True, help="How many fake nodes.")
@click.option("--delivery", default="local", show_default=True, help="What carries the events.")
def up(directory: Path, nodes: int, delivery: str) -> None:
    """Start a cluster and the product; return when both are ready."""
    supervisor.up(directory, nodes, delivery)


@main.command()
@directory_option
def down(directory: Path) -> None:
    """End all that `up` started."""
    supervisor.down(directory)


@main.command()
@directory_option
def status(directory: Path) -> None:
    """Say whether a cluster is up, and where."""
    supervisor.status(directory)


@main.command("build")
def build_command() -> None:
    """Build the servers, or say where they are."""
    print(build.servers())


@main.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("nodes", type=int)
def supervise(directory: Path, nodes: int) -> None:
    """Own the servers until SIGTERM; `up` starts this."""
    supervisor.supervise(directory, nodes)


if __name__ == "__main__":
    try:
        main()
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
