"""`make chaos`: minutes of random fault injection with continuous invariant checks, then a check of the final state.

The exit status is 1 if a run failed. The directory with the logs is then printed; otherwise it is removed.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from chaos import plan, upgrade_run
from chaos.final_state import wrong
from chaos.observer import Observer
from chaos.fault_injection import Mischief
from chaos.report import Run, lines
from chaos.environment import Stage, fill, stage
from kube.client.api_errors import ApiError
from kube.client.sync_client import Cluster
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.maintenance.leases import LEASES
from kube.nodes import NODES
from kube.paths import PODS
from localcluster import delivery_engines
from localcluster.components.selection import DEFAULT, MAINTENANCE, MUTEX

CALM_SECONDS, LOOK_SECONDS = 90.0, 1.0
ALL = ", ".join(delivery_engines.DELIVERIES)
USUAL_SECONDS = {MAINTENANCE: 300.0, MUTEX: 60.0}


@click.command()
@click.option("--engines", default="local", show_default=True, help=f"Of {ALL}; with commas.")
@click.option("--wing", type=click.Choice([MAINTENANCE, MUTEX]), default=MAINTENANCE, show_default=True)
@click.option("--seed", type=int, default=1, show_default=True, help="The same one plans the same mischief.")
@click.option("--runs", type=click.IntRange(1), default=1, show_default=True, help="Of this seed and those behind it.")
@click.option("--seconds", type=click.FloatRange(1), help="Of mischief in each; 300 without, 60 amid an upgrade.")
@click.option("--nodes", type=click.IntRange(2), default=20, show_default=True)
@click.option("--pods", type=click.IntRange(1), default=200, show_default=True)
def main(engines: str, wing: str, seed: int, runs: int, seconds: float | None, nodes: int, pods: int) -> None:
    """Run fault injection on each engine in turn: drain nodes, or upgrade them with the mutex (local engine only)."""
    wanted = [engine.strip() for engine in engines.split(",")]
    if unknown := sorted(set(wanted) - set(delivery_engines.DELIVERIES)):
        raise click.UsageError(f"no chaos on {', '.join(unknown)}; there is: {ALL}")
    if wing == MUTEX and wanted != ["local"]:
        raise click.UsageError(f"chaos of {MUTEX} is on the engine local alone: leave out --engines")
    for engine in wanted:
        delivery_engines.named(engine).check()
    logging.getLogger("kube.client.list_watch").setLevel(logging.ERROR)  # broken watches are expected here
    bad, lasting = 0, seconds or USUAL_SECONDS[wing]
    for engine, number in itertools.product(wanted, range(seed, seed + runs)):
        delivery_engines.named(engine).build((*DEFAULT, wing))
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{engine}-"))
        if wing == MUTEX:
            found = upgrade_run.run(engine, number, lasting, folder, nodes, say)
        else:
            found = run(engine, number, lasting, folder, nodes, pods, say)
        conclude(found, folder)
        bad += not found.is_good
    if runs > 1:
        say(f"{runs * len(wanted)} runs, {bad} of them bad")
    raise SystemExit(1 if bad else 0)


def say(line: str) -> None:
    """Print a line at once."""
    print(line, flush=True)


def run(
    engine: str,
    seed: int,
    seconds: float,
    folder: Path,
    nodes: int,
    pods: int,
    say: Callable[[str], None] = say,
) -> Run:
    """Run fault injection once on a new cluster in this directory; return the report."""
    with stage(engine, folder, nodes) as scene:
        fill(scene, plan.apps(seed, pods))
        names = [f"node-{number + 1}" for number in range(nodes)]
        mischief = Mischief(scene, seed)
        with Observer(scene.cluster.kubeconfig, scene.cluster.audit_log, say) as observer:
            mischief.play(plan.actions(seed, seconds, names, scene.targets))
            calm, left = await_calm(scene)
        ended = scene.ended()
        tally, violations = observer.watcher.tally, observer.violations
    return Run(engine, seed, seconds, mischief.done, mischief.failed, tally, violations, calm, left, ended)


def conclude(found: Run, folder: Path) -> None:
    """Print the report; remove the directory of a good run, and print the directory of a failed one."""
    say("\n".join(lines(found)))
    if found.is_good:
        shutil.rmtree(folder)
    else:
        print(f"logs and journal: {folder}", file=sys.stderr)


def await_calm(scene: Stage) -> tuple[float | None, list[str]]:
    """Return the seconds until the state is correct, or None and the remaining problems after `CALM_SECONDS`."""
    started = time.monotonic()
    left = ["the API server was not asked"]
    while time.monotonic() < started + CALM_SECONDS:
        try:
            left = look(scene.admin)
        except ApiError as error:
            left = [error.message]
        if not left:
            return time.monotonic() - started, []
        time.sleep(LOOK_SECONDS)
    return None, left


def look(admin: Cluster) -> list[str]:
    """Return the current problems."""
    nodes, leases, pods = (admin.list(path)["items"] for path in (NODES, LEASES, PODS))
    made = [
        {"apiVersion": group.api_version, **item}
        for group in (MEDIK8S, KUBEVIRT)
        for item in admin.list(group.path)["items"]
    ]
    return wrong(nodes, made, leases, pods)


if __name__ == "__main__":
    main()
