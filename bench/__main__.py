"""`make bench`: compares ways to drain a node: the product, `kubectl drain`, and a bare client as the lower bound.

These drainers take turns on a cluster as `make up` starts it. Another operator that serves the same CRD is compared too
if one is given, on its own cluster. An observer in a separate process timestamps what happens. The command prints
tables and writes `bench/results.json`.
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
from bench.cases import FULL, QUICK, USUAL, Case, Measured, Observation, chosen, clusters
from bench.costs import Meter
from bench.evict_processes import evictors
from bench.findings import Finding
from bench.background_writer import writing
from bench.workload import Load
from bench.observations.idle import observe
from bench.peer_operator import Operator
from bench.page import tables
from bench.results import Failure, Results, Round
from bench.rig import Rig, up
from bench.drainers import Floor, Kubectl, Ours, Way
from kube.client.api_errors import ApiError
from localcluster import delivery_engines
from localcluster.errors import LocalClusterError

RESULTS = Path(__file__).parent / "results.json"
TROUBLE = (TimeoutError, asyncio.TimeoutError, ApiError, RuntimeError, subprocess.SubprocessError, LocalClusterError)
"""Errors of a case that does not finish or of a cluster that does not start; the other cases are still measured."""
QUICK_ROUNDS = 3


@click.command()
@click.option("--engines", default="local", show_default=True, help="Of local, knative, rabbitmq; with commas.")
@click.option("--cases", "words", default="", help="Words of the cases' names, with commas; all without.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Of every way, in turn.")
@click.option("--quick", "subset", flag_value=QUICK, help="Two cases, three rounds.")
@click.option("--full", "subset", flag_value=FULL, help="All cases, those of a thousand nodes, too.")
@click.option("--add", is_flag=True, help="Keep what the file has of cases until they are measured.")
@click.option(
    "--results", "file", type=click.Path(path_type=Path), default=RESULTS, help="Where all rounds are written."
)
@click.option("--operator", "line", envvar="OPERATOR", default="", help="A program that serves the same CRD.")
@click.option("--operator-crd", "crd", envvar="OPERATOR_CRD", default="", help="The file with its CRD.")
def main(engines: str, words: str, rounds: int, subset: str | None, add: bool, file: Path, line: str, crd: str) -> None:
    """Run the measurements, print tables, and write every round to a file."""
    subset, other = subset or USUAL, peer_operator.named(line, crd)
    try:
        cases = chosen(words, subset)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    wanted = [engine.strip() for engine in engines.split(",")]
    for engine in wanted:
        delivery_engines.named(engine).check()  # reports missing programs before the first round
    kept = results.read(file) if add and file.exists() else Results()
    found, failed = kept.continued(results.machine()), False
    for engine in wanted:
        delivery_engines.named(engine).build()
        with closing(_measured(engine, cases, QUICK_ROUNDS if subset == QUICK else rounds, other)) as measured:
            for each in measured:
                say(each.line)
                found.add(each)
                failed = failed or isinstance(each, Failure)
                results.write(file, found)  # written after each one, since the next may fail
    print(tables.everything(found.ordered()))
    if failed:
        raise SystemExit(1)


def _measured(
    engine: str, cases: Sequence[Measured], rounds: int, other: Operator | None
) -> Generator[Round | Finding | Failure, None, None]:
    """Yield the measurements of every case, on clusters of this engine; after a failure, continue on a new cluster."""
    for nodes, found in clusters(cases, engine).items():
        left = list(found)
        while left:
            try:
                yield from _on_a_cluster(engine, nodes, left, rounds, other)
            except TROUBLE as error:
                yield Failure(engine, left.pop(0).name, said(error))


def _on_a_cluster(
    engine: str, nodes: int, left: list[Measured], rounds: int, other: Operator | None
) -> Generator[Round | Finding, None, None]:
    """Yield the measurements of the remaining cases on one cluster, and of the other operator on a second one.

    Each case is removed from `left` when it is done.
    """
    upgrades = any(isinstance(case, Observation) and case.upgrades for case in left)
    meets = any(isinstance(case, Case) and case.compares(peer_operator.Served.name) for case in left)
    with (
        tempfile.TemporaryDirectory(prefix="nodemaintenance-bench-") as folder,
        peer_operator.up(other if meets else None, engine, nodes, Path(folder) / "operator") as others,
        up(engine, nodes, Path(folder) / "up", upgrades=upgrades) as rig,
    ):
        door, watching = rig.cluster, rig.watching
        ways: tuple[Way, ...] = (Ours(door, watching), Kubectl(rig.kubeconfig, watching), Floor(door, watching))
        everywhere = [*((rig, way) for way in ways), *others]
        while left:
            case = left[0]
            say(f"{engine}: {case.name}")
            if isinstance(case, Case):
                yield from _drains(rig, case, min(rounds, case.rounds or rounds), everywhere)
            else:
                yield from observe(rig, case)
            left.pop(0)


def _drains(rig: Rig, case: Case, rounds: int, everywhere: Sequence[tuple[Rig, Way]]) -> Generator[Round, None, None]:
    """Yield the rounds of a case; in each round all drainers take turns."""
    compared = [(where, way) for where, way in everywhere if case.compares(way.name)]
    with evictors(rig, case.evictors), writing(rig.kubeconfig, case.writes):
        for number, (where, way) in itertools.product(range(rounds), compared):
            yield _round(where, case, way, number)


def _round(rig: Rig, case: Case, way: Way, number: int) -> Round:
    """Run one drain, from filling the nodes until they are schedulable again and empty."""
    nodes = [f"node-{number}" for number in range(1, case.nodes + 1)]
    load = Load(rig.cluster, case, nodes, f"node-{case.nodes + 1}")
    rig.watching.forget()
    pods = load.fill()
    meter = Meter(rig) if way.name == "ours" else None
    started = time.monotonic()
    done = way.drain(case, nodes, pods)
    gone = rig.watching.last_gone({pod["metadata"]["name"] for pod in pods})
    spent = asdict(meter.spent()) if meter else {}
    asked = time.monotonic()
    back = way.give_back(nodes)
    load.clear()
    return Round(rig.engine, case.name, way.name, number, done - started, done - gone, back - asked, spent)


def said(error: BaseException) -> str:
    """Return an error as one line."""
    return " ".join(f"{type(error).__name__}: {error}".split())


def say(text: str) -> None:
    """Print a progress line."""
    print(text, file=sys.stderr, flush=True)


def _end(number: int, frame: object) -> None:
    """Exit on SIGTERM as on Ctrl-C, so that the clusters are stopped."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        main()
    except (LocalClusterError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
