"""`make bench`: compares drainers: the product, `kubectl drain`, and a bare API client as the lower bound.

All drainers run one after another on a cluster that starts as with `make up`. If the user configures another operator
that serves the same CRD, it runs on its own cluster. An observer in a separate process timestamps the changes of pods,
nodes and maintenances. The command prints tables, and writes `bench/results.json`.
"""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from bench import peer_operator, results
from bench.background_writer import run_background_writer
from bench.cases import FULL, QUICK, USUAL, AnyCase, DrainCase, Observation, group_by_cluster_size, select_cases
from bench.costs import CostMeter
from bench.drainers import Drainer, FloorDrainer, KubectlDrainer, ProductDrainer
from bench.evict_processes import run_evict_processes
from bench.findings import Finding
from bench.observations.idle import observe
from bench.page import tables
from bench.peer_operator import Operator
from bench.results import Failure, Results, Round
from bench.rig import Rig, start_rig
from bench.workload import Workload
from kube.client.api_errors import ApiError
from localcluster import delivery_engines
from localcluster.errors import LocalClusterError

RESULTS_FILE = Path(__file__).parent / "results.json"
MEASUREMENT_ERRORS = (
    TimeoutError,
    asyncio.TimeoutError,
    ApiError,
    RuntimeError,
    subprocess.SubprocessError,
    LocalClusterError,
)
"""Errors that abort the measurement of one case or the start of one cluster; the other cases are still measured."""
QUICK_ROUNDS = 3


@click.command()
@click.option(
    "--engines",
    default="local",
    show_default=True,
    help="Comma-separated list of engines to measure: local, knative, rabbitmq.",
)
@click.option(
    "--cases",
    "case_names",
    default="",
    help="Comma-separated list of case names, or of parts of case names; default: all cases of the subset.",
)
@click.option(
    "--rounds",
    type=click.IntRange(1),
    default=5,
    show_default=True,
    help="Number of rounds per case; in each round, every drainer drains once.",
)
@click.option("--quick", "subset", flag_value=QUICK, help="Measure two cases, with three rounds per case.")
@click.option("--full", "subset", flag_value=FULL, help="Measure all cases, including those with 1000 nodes.")
@click.option("--add", is_flag=True, help="Keep the earlier results of cases that are not measured again.")
@click.option(
    "--results",
    "results_file",
    type=click.Path(path_type=Path),
    default=RESULTS_FILE,
    help="File to which the results of all rounds are written.",
)
@click.option(
    "--operator",
    "operator_command",
    envvar="OPERATOR",
    default="",
    help="Command of another operator that serves the same CRD.",
)
@click.option("--operator-crd", envvar="OPERATOR_CRD", default="", help="Path of that operator's CRD.")
def main(
    engines: str,
    case_names: str,
    rounds: int,
    subset: str | None,
    add: bool,
    results_file: Path,
    operator_command: str,
    operator_crd: str,
) -> None:
    """Run the measurements, print tables, and write the results of every round to a file."""
    subset, other_operator = subset or USUAL, peer_operator.parse_operator(operator_command, operator_crd)
    try:
        cases = select_cases(case_names, subset)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    engine_names = [engine.strip() for engine in engines.split(",")]
    for engine in engine_names:
        delivery_engines.get_engine(engine).check()  # Report missing programs before the first measurement.
    earlier = results.read_results(results_file) if add and results_file.exists() else Results()
    run_results, has_failed = earlier.continue_run(results.describe_host()), False
    for engine in engine_names:
        delivery_engines.get_engine(engine).build()
        with closing(
            _measure_cases(engine, cases, QUICK_ROUNDS if subset == QUICK else rounds, other_operator)
        ) as measurements:
            for measurement in measurements:
                print_progress(measurement.line)
                run_results.add(measurement)
                has_failed = has_failed or isinstance(measurement, Failure)
                results.write_results(results_file, run_results)  # Write now, since the next measurement may fail.
    print(tables.render_all(run_results.sort()))
    if has_failed:
        raise SystemExit(1)


def _measure_cases(
    engine: str, cases: Sequence[AnyCase], rounds: int, other_operator: Operator | None
) -> Generator[Round | Finding | Failure, None, None]:
    """Yield the results of all cases on clusters with this engine; after a failure, continue on a new cluster."""
    for nodes, cluster_cases in group_by_cluster_size(cases, engine).items():
        remaining = list(cluster_cases)
        while remaining:
            try:
                yield from _measure_on_cluster(engine, nodes, remaining, rounds, other_operator)
            except MEASUREMENT_ERRORS as error:
                yield Failure(engine, remaining.pop(0).name, format_error(error))


def _measure_on_cluster(
    engine: str, nodes: int, remaining: list[AnyCase], rounds: int, other_operator: Operator | None
) -> Generator[Round | Finding, None, None]:
    """Yield the results of the remaining cases; start the product's cluster, and another operator's one if needed.

    Remove each case from `remaining` when it is done.
    """
    needs_mutex = any(isinstance(case, Observation) and case.with_mutex for case in remaining)
    needs_operator = any(
        isinstance(case, DrainCase) and case.includes_drainer(peer_operator.OperatorDrainer.name) for case in remaining
    )
    with (
        tempfile.TemporaryDirectory(prefix="nodemaintenance-bench-") as directory,
        peer_operator.start_operator(
            other_operator if needs_operator else None, engine, nodes, Path(directory) / "operator"
        ) as operator_drainers,
        start_rig(engine, nodes, Path(directory) / "up", with_mutex=needs_mutex) as rig,
    ):
        drainers: tuple[Drainer, ...] = (
            ProductDrainer(rig.client, rig.observer),
            KubectlDrainer(rig.kubeconfig, rig.observer),
            FloorDrainer(rig.client, rig.observer),
        )
        rigs_and_drainers = [*((rig, drainer) for drainer in drainers), *operator_drainers]
        while remaining:
            case = remaining[0]
            print_progress(f"{engine}: {case.name}")
            if isinstance(case, DrainCase):
                yield from _run_rounds(rig, case, min(rounds, case.max_rounds or rounds), rigs_and_drainers)
            else:
                yield from observe(rig, case)
            remaining.pop(0)


def _run_rounds(
    rig: Rig, case: DrainCase, rounds: int, rigs_and_drainers: Sequence[tuple[Rig, Drainer]]
) -> Generator[Round, None, None]:
    """Yield the results of all rounds of a case; in each round, every drainer drains once."""
    compared = [
        (drainer_rig, drainer) for drainer_rig, drainer in rigs_and_drainers if case.includes_drainer(drainer.name)
    ]
    with run_evict_processes(rig, case.evict_processes), run_background_writer(rig.kubeconfig, case.writes_per_second):
        for round_number, (drainer_rig, drainer) in itertools.product(range(rounds), compared):
            yield _run_round(drainer_rig, case, drainer, round_number)


def _run_round(rig: Rig, case: DrainCase, drainer: Drainer, round_number: int) -> Round:
    """Measure one drain: create pods on the nodes, drain the nodes, restore the nodes, and delete the pods."""
    nodes = [f"node-{node_number}" for node_number in range(1, case.nodes + 1)]
    workload = Workload(rig.client, case, nodes, f"node-{case.nodes + 1}")
    rig.observer.reset()
    pods = workload.deploy()
    meter = CostMeter(rig) if drainer.name == "ours" else None
    started_at = time.monotonic()
    done_at = drainer.drain(case, nodes, pods)
    gone_at = rig.observer.wait_until_pods_gone({pod["metadata"]["name"] for pod in pods})
    costs = asdict(meter.read_costs()) if meter else {}
    restore_started_at = time.monotonic()
    restored_at = drainer.uncordon_nodes(nodes)
    workload.delete()
    return Round(
        rig.engine,
        case.name,
        drainer.name,
        round_number,
        done_at - started_at,
        done_at - gone_at,
        restored_at - restore_started_at,
        costs,
    )


def format_error(error: BaseException) -> str:
    """Format an error's class and message as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def print_progress(text: str) -> None:
    """Print a progress line to standard error."""
    print(text, file=sys.stderr, flush=True)


def _handle_sigterm(signal_number: int, frame: object) -> None:
    """Exit on SIGTERM as on Ctrl-C, so that the context managers stop the clusters."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + signal_number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _handle_sigterm)
    try:
        main()
    except (LocalClusterError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
