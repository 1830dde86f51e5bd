"""`make chaos`: minutes of mischief from a seed, judged all the time, and the state after the calm.

Exit status 1 when anything was violated; the folder with the logs is then named.
"""

from __future__ import annotations

import logging
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

from chaos import plan
from chaos.ending import wrong
from chaos.feed import Observer
from chaos.mischief import Mischief
from chaos.report import Run, lines
from chaos.stage import Stage, fill, stage
from kube.door.api_errors import ApiError
from kube.door.sync_client import Cluster
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.maintenance.leases import LEASES
from kube.nodes import NODES
from kube.paths import PODS
from localcluster import deliveries

CALM_SECONDS, LOOK_SECONDS = 90.0, 1.0
ALL = ", ".join(deliveries.DELIVERIES)


@click.command()
@click.option("--engines", default="local", show_default=True, help=f"Of {ALL}; with commas.")
@click.option("--seed", type=int, default=1, show_default=True, help="The same one plans the same mischief.")
@click.option("--seconds", type=click.FloatRange(1), default=300, show_default=True, help="Of mischief.")
@click.option("--nodes", type=click.IntRange(2), default=20, show_default=True)
@click.option("--pods", type=click.IntRange(1), default=200, show_default=True)
def main(engines: str, seed: int, seconds: float, nodes: int, pods: int) -> None:
    """Do it on each engine in turn."""
    wanted = [engine.strip() for engine in engines.split(",")]
    if unknown := sorted(set(wanted) - set(deliveries.DELIVERIES)):
        raise click.UsageError(f"no chaos on {', '.join(unknown)}; there is: {ALL}")
    for engine in wanted:
        deliveries.named(engine).check()
    logging.getLogger("kube.door.list_watch").setLevel(logging.ERROR)  # that watches break is the plan
    bad = 0
    for engine in wanted:
        deliveries.named(engine).build()
        folder = Path(tempfile.mkdtemp(prefix=f"chaos-{engine}-"))
        found = run(engine, seed, seconds, folder, nodes, pods)
        print("\n".join(lines(found)), flush=True)
        if not found.is_good:
            print(f"logs and journal: {folder}", file=sys.stderr)
            bad += 1
    raise SystemExit(1 if bad else 0)


def run(
    engine: str,
    seed: int,
    seconds: float,
    folder: Path,
    nodes: int,
    pods: int,
    say: Callable[[str], None] = lambda line: print(line, flush=True),
) -> Run:
    """One run on a cluster of its own, in that folder."""
    with stage(engine, folder, nodes) as scene:
        fill(scene, plan.apps(seed, pods))
        names = [f"node-{number + 1}" for number in range(nodes)]
        mischief = Mischief(scene, seed)
        with Observer(scene.cluster.kubeconfig, scene.cluster.audit_log, say) as observer:
            mischief.play(plan.actions(seed, seconds, names, scene.targets))
            calm, left = await_calm(scene)
        ended = [server.name for server in (*scene.cluster.servers, *scene.servers) if not server.alive]
        tally, violations = observer.watcher.tally, observer.violations
    return Run(engine, seed, seconds, mischief.done, mischief.failed, tally, violations, calm, left, ended)


def await_calm(scene: Stage) -> tuple[float | None, list[str]]:
    """The seconds until nothing is wrong, or what still is when time is over."""
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
    """What is wrong now."""
    nodes, leases, pods = (admin.list(path)["items"] for path in (NODES, LEASES, PODS))
    made = [
        {"apiVersion": group.api_version, **item}
        for group in (MEDIK8S, KUBEVIRT)
        for item in admin.list(group.path)["items"]
    ]
    return wrong(nodes, made, leases, pods)


if __name__ == "__main__":
    main()
