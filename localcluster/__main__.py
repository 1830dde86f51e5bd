"""Command line `python -m localcluster up|build`, which the Makefile calls.

`python -m localcluster.up` has the commands for a running cluster. The commands in this module import the modules that
start a cluster inside their functions. On a busy machine, these imports take seconds, which must not delay the first
line of output.
"""

from __future__ import annotations

from pathlib import Path

import click

from kube.client.api_errors import ApiError
from localcluster.components import selection
from localcluster.errors import LocalClusterError
from localcluster.up import state_directory

directory_option = click.option(
    "--directory",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path(".cluster"),
    show_default=True,
    help="Directory of the cluster's files.",
)
engine_option = click.option(
    "--delivery",
    "engine",
    default="local",
    show_default=True,
    metavar="NAME",
    help="Engine that delivers the events. local, knative and rabbitmq run as processes; pods and serving run on real "
    "nodes, with the functions as Deployments or as Knative Services.",
)

real_nodes_option = click.option(
    "--real",
    "real_nodes",
    type=click.IntRange(0, 16),
    default=0,
    show_default=True,
    help="Number of additional real nodes, which run containers; requires root.",
)


@click.group()
def main() -> None:
    """Run a real Kubernetes cluster as local processes, with the product installed."""


@main.command()
@directory_option
@click.option("--nodes", type=click.IntRange(1, 2000), default=3, show_default=True, help="Number of fake nodes.")
@click.option(
    "--control-planes",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Number of fake nodes with the label and the taint of control-plane nodes.",
)
@engine_option
@click.option(
    "--components",
    default=",".join(selection.DEFAULT_COMPONENTS),
    show_default=True,
    metavar="NAMES",
    help=f"Comma-separated list of components to install: {', '.join(selection.ALL_COMPONENTS)}.",
)
@click.option(
    "--simulators",
    "fakes",
    type=click.Choice(selection.FAKE_MODES),
    default=selection.FAKES_OFF,
    show_default=True,
    help="`on` simulates OpenShift's operators (for mutex) and KubeVirt (for virtualization); `kubevirt` runs "
    "KubeVirt's own control plane and simulates only its nodes.",
)
@real_nodes_option
def up(
    directory: Path, nodes: int, control_planes: int, engine: str, components: str, fakes: str, real_nodes: int
) -> None:
    """Start a cluster and the product; return when both are ready."""
    spec = state_directory.ClusterSpec(
        nodes, control_planes, engine, selection.parse_components(components), fakes, real_nodes
    )
    spec.validate()
    if not state_directory.is_running(directory):
        print(f"starting a cluster: {spec.format_title()}", flush=True)
    from localcluster.up import start

    start.start_cluster(directory, spec)


@main.command("build")
@engine_option
@real_nodes_option
def build_command(engine: str, real_nodes: int) -> None:
    """Build the server binaries, and print the directory of the Kubernetes binaries."""
    from localcluster import delivery_engines
    from localcluster.programs import build

    delivery_engines.get_engine(engine).build(with_real_nodes=bool(real_nodes))
    print(build.get_target_dir())


@main.command(hidden=True)
@click.argument("directory", type=click.Path(path_type=Path))
@click.argument("spec")
def supervise(directory: Path, spec: str) -> None:
    """Start the cluster's servers, and keep them running until SIGTERM; `up` starts this supervisor process."""
    from localcluster.up import supervisor

    supervisor.supervise(directory, state_directory.parse_spec(spec))


if __name__ == "__main__":
    try:
        main()
    except (LocalClusterError, ApiError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
