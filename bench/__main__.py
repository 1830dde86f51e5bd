"""`make bench`: ours beside `kubectl drain` and the floor, in turn, on a cluster as `make up` starts it.

An operator that serves the same CRD takes part where one is named, on a cluster of its own. A watch in a process of its
own says when something happened. Prints tables and writes `bench/results.json`.
"""

from __future__ import annotations

import itertools
import os
import platform
import signal
import sys
import tempfile
import time
from collections.abc import Generator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import click

from bench import costs, operator, results
from bench.cases import Case, chosen
from bench.load import Load
from bench.results import Round
from bench.rig import Rig, up
from bench.ways import Floor, Kubectl, Ours, Way
from localcluster import deliveries
from localcluster.trouble import LocalClusterError

RESULTS = Path(__file__).parent / "results.json"
HEAD = ("engine", "case", "way", "seconds", "ratio", "last pod gone to done", "back")
COSTS = ("engine", "case", "cost", "sum", "of that")


@click.command()
@click.option("--engines", default="local", show_default=True, help="Of local, knative, rabbitmq; with commas.")
@click.option("--cases", "words", default="", help="Words of the cases' names, with commas; all without.")
@click.option("--rounds", type=click.IntRange(1), default=5, show_default=True, help="Of every way, in turn.")
@click.option("--quick", is_flag=True, help="Two cases, three rounds.")
@click.option(
    "--results", "file", type=click.Path(path_type=Path), default=RESULTS, help="Where all rounds are written."
)
@click.option("--operator", "line", envvar="OPERATOR", default="", help="A program that serves the same CRD.")
@click.option("--operator-crd", "crd", envvar="OPERATOR_CRD", default="", help="The file with its CRD.")
def main(engines: str, words: str, rounds: int, quick: bool, file: Path, line: str, crd: str) -> None:
    """Measure, print tables, and write every round to a file."""
    other = operator.named(line, crd)
    try:
        cases = chosen(words, quick=quick)
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    wanted = [engine.strip() for engine in engines.split(",")]
    for engine in wanted:
        deliveries.named(engine).check()  # what is missing is said before the first round
    found: list[Round] = []
    about = {"date": time.strftime("%Y-%m-%d"), "cores": os.cpu_count(), "machine": platform.machine()}
    for engine in wanted:
        with closing(_measured(engine, cases, 3 if quick else rounds, other)) as measured:
            for each in measured:
                say(f"{each.engine}: {each.case}: {each.way}: {each.seconds:.2f} s")
                found.append(each)
                results.write(file, found, about)  # now, as the next one may fail
    print(f"{results.table(HEAD, results.summary(found))}\n\n{results.table(COSTS, results.costs(found))}")


def _measured(
    engine: str, cases: tuple[Case, ...], rounds: int, other: operator.Operator | None
) -> Generator[Round, None, None]:
    """Every case on one cluster of that engine, and on that of the other operator."""
    deliveries.named(engine).build()
    nodes = max(case.nodes for case in cases) + 1
    with (
        tempfile.TemporaryDirectory(prefix="nodemaintenance-bench-") as folder,
        operator.up(other, engine, nodes, Path(folder) / "operator") as others,
        up(engine, nodes, Path(folder) / "up") as rig,
    ):
        door, watching = rig.cluster, rig.watching
        ways: tuple[Way, ...] = (Ours(door, watching), Kubectl(rig.kubeconfig, watching), Floor(door, watching))
        everywhere = [*((rig, way) for way in ways), *others]
        for case, number, (where, way) in itertools.product(cases, range(rounds), everywhere):
            yield _round(where, case, way, number)


def _round(rig: Rig, case: Case, way: Way, number: int) -> Round:
    """One drain, from the filling of the nodes until they are given back and empty."""
    nodes = [f"node-{number}" for number in range(1, case.nodes + 1)]
    load = Load(rig.cluster, case, nodes, f"node-{case.nodes + 1}")
    rig.watching.forget()
    pods = load.fill()
    before = costs.read(rig) if way.name == "ours" else costs.Costs()
    started = time.monotonic()
    done = way.drain(case, nodes, pods)
    gone = rig.watching.last_gone({pod["metadata"]["name"] for pod in pods})
    spent = asdict(costs.read(rig).since(before)) if way.name == "ours" else {}
    asked = time.monotonic()
    back = way.give_back(nodes)
    load.clear()
    return Round(rig.engine, case.name, way.name, number, done - started, done - gone, back - asked, spent)


def say(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def _end(number: int, frame: object) -> None:
    """SIGTERM ends both clusters, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(128 + number)


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, _end)
    try:
        main()
    except LocalClusterError as error:
        raise SystemExit(f"error: {error}") from None
