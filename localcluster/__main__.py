"""Command line `python -m localcluster up|build`, which the Makefile calls.

`python -m localcluster.up` has the commands for a running cluster. The commands here import the modules that start a
cluster inside their functions: on a busy machine that takes seconds, and the first line of output should not wait.
"""

from __future__ import annotations

from pathlib import Path

import click

from kube.client.api_errors import ApiError
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory, cluster_spec
from localcluster.components import selection

directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cluster"),
    show_default=True,
    help="Where the cluster keeps its files.",
)
delivery_option = click.option(
    "--delivery",
    default="local",
    show_default=True,
    metavar="NAME",
    help="What carries the events: local, knative or rabbitmq.",
)

real_option = click.option(
    "--real", type=click.IntRange(0, 16), default=0, show_default=True, help="How many nodes with containers beside."
)


@click.group()
def main() -> None:
    """Run a real Kubernetes cluster as local processes, with the product installed."""


@main.command()
@directory_option
@click.option("--nodes", type=click.IntRange(1, 2000), default=3, show_default=True, help="How many fake nodes.")
@click.option(
    "--control-planes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="How many of them are control-plane nodes: labelled and tainted so.",
)
@delivery_option
@click.option(
    "--wings",
    default=",".join(selection.DEFAULT),
    show_default=True,
    metavar="NAMES",
    help=f"What is installed, of {', '.join(selection.KNOWN)}.",
)
@click.option(
    "--actors",
    type=click.Choice(selection.ACTORS),
    default=selection.OFF,
    show_default=True,
    help="Whether what a wing stands on is played, as OpenShift for the mutex; or KubeVirt itself runs.",
)
@real_option
def up(directory: Path, nodes: int, control_planes: int, delivery: str, wings: str, actors: str, real: int) -> None:
    """Start a cluster and the product; return when both are ready."""
    wanted = cluster_spec.Wish(nodes, control_planes, delivery, selection.chosen(wings), actors, real)
    wanted.check()
    if not state_directory.running(directory):
        print(f"starting a cluster: {wanted.title()}", flush=True)
    from localcluster.up import start

    start.up(directory, wanted)


@main.command("build")
@delivery_option
@real_option
def build_command(delivery: str, real: int) -> None:
    """Build the servers and print the directory of the Kubernetes binaries."""
    from localcluster import delivery_engines
    from localcluster.programs import build

    delivery_engines.named(delivery).build(real=bool(real))
    print(build.target())


@main.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("wanted")
def supervise(directory: Path, wanted: str) -> None:
    """Own the servers until SIGTERM; `up` starts this process."""
    from localcluster.up import supervisor

    supervisor.supervise(directory, cluster_spec.read(wanted))


if __name__ == "__main__":
    try:
        main()
    except (LocalClusterError, ApiError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
