"""`make chaos`: injects random faults and checks invariants at the same time; finally, checks the cluster's state.

If a run fails, the command prints the directory with the run's logs, and exits with status 1. It removes the logs of a
run that passed.
"""

from __future__ import annotations

import itertools
import logging
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path

import click

from chaos import plan, upgrade_run
from chaos.environment import ChaosEnvironment, deploy_apps, start_environment
from chaos.fault_injection import FaultInjector
from chaos.final_state import list_problems
from chaos.observer import ClusterObserver
from chaos.report import RunReport, format_report
from chaos.step_checks import EscalationDeletion, list_unannounced_deletions, parse_journaled_steps
from eventing import events
from eventing.journal.store import Journal, Query
from kube.client.api_errors import ApiError
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from kube.maintenance.leases import LEASES_PATH
from kube.nodes import NODES_PATH
from kube.paths import PODS_PATH
from localcluster import delivery_engines
from localcluster.components.selection import DEFAULT_COMPONENTS, MAINTENANCE, MUTEX

SETTLE_TIMEOUT_SECONDS, POLL_SECONDS = 90.0, 1.0
ENGINE_NAMES = ", ".join(delivery_engines.ENGINES)
JOURNAL_TIMEOUT_SECONDS = 20.0
ENGINES_WITH_COMPLETE_JOURNAL = ("local", "rabbitmq")
"""The engines whose broker loses no events when it is killed, so that the journal contains every event."""
DEFAULT_SECONDS = {MAINTENANCE: 300.0, MUTEX: 60.0}


@click.command()
@click.option("--engines", default="local", show_default=True, help=f"Comma-separated list of engines: {ENGINE_NAMES}.")
@click.option(
    "--component",
    type=click.Choice([MAINTENANCE, MUTEX]),
    default=MAINTENANCE,
    show_default=True,
    help="Component to test.",
)
@click.option(
    "--seed", type=int, default=1, show_default=True, help="Seed of the plan; the same seed produces the same plan."
)
@click.option(
    "--runs", type=click.IntRange(1), default=1, show_default=True, help="Number of runs, with consecutive seeds."
)
@click.option(
    "--seconds", type=click.FloatRange(1), help="Seconds of fault injection per run; default: 300, or 60 for mutex."
)
@click.option("--nodes", type=click.IntRange(2), default=20, show_default=True, help="Number of nodes.")
@click.option("--pods", type=click.IntRange(1), default=200, show_default=True, help="Number of pods.")
def main(engines: str, component: str, seed: int, runs: int, seconds: float | None, nodes: int, pods: int) -> None:
    """Inject faults on each engine while nodes are drained, or upgraded by an upgrade run (only engine local)."""
    engine_names = [engine.strip() for engine in engines.split(",")]
    if unknown := sorted(set(engine_names) - set(delivery_engines.ENGINES)):
        raise click.UsageError(f"unknown engine {', '.join(unknown)}: choose from {ENGINE_NAMES}")
    if component == MUTEX and engine_names != ["local"]:
        raise click.UsageError(f"--component {MUTEX} supports only the engine local: omit --engines")
    for engine in engine_names:
        delivery_engines.get_engine(engine).check()
    logging.getLogger("kube.client.list_watch").setLevel(logging.ERROR)  # The faults interrupt watches.
    failed_runs, duration_seconds = 0, seconds or DEFAULT_SECONDS[component]
    for engine, run_seed in itertools.product(engine_names, range(seed, seed + runs)):
        delivery_engines.get_engine(engine).build((*DEFAULT_COMPONENTS, component))
        directory = Path(tempfile.mkdtemp(prefix=f"chaos-{engine}-"))
        if component == MUTEX:
            report = upgrade_run.run_upgrade(engine, run_seed, duration_seconds, directory, nodes, print_line)
        else:
            report = run_drains(engine, run_seed, duration_seconds, directory, nodes, pods, print_line)
        report_run(report, directory)
        failed_runs += not report.has_passed
    if runs > 1:
        print_line(f"{runs * len(engine_names)} runs, {failed_runs} failed")
    raise SystemExit(1 if failed_runs else 0)


def print_line(line: str) -> None:
    """Print a line without buffering."""
    print(line, flush=True)


def run_drains(
    engine: str,
    seed: int,
    duration_seconds: float,
    directory: Path,
    nodes: int,
    pods: int,
    report: Callable[[str], None] = print_line,
) -> RunReport:
    """Inject faults into drains on a new cluster in this directory; return the run's report."""
    with start_environment(engine, directory, nodes) as environment:
        deploy_apps(environment, plan.plan_apps(seed, pods))
        node_names = [f"node-{number + 1}" for number in range(nodes)]
        injector = FaultInjector(environment, seed)
        with ClusterObserver(environment.cluster.kubeconfig, environment.cluster.audit_log, report) as observer:
            injector.run_actions(plan.plan_actions(seed, duration_seconds, node_names, environment.targets))
            settle_seconds, problems = wait_until_settled(environment)
        exited_servers = environment.list_exited_servers()
        deletions, tally = observer.checker.escalation_deletions, observer.checker.tally
        violations = observer.violations
        if engine in ENGINES_WITH_COMPLETE_JOURNAL:
            violations += wait_for_journal(Path(environment.product.journal), deletions)
    return RunReport(
        engine,
        seed,
        duration_seconds,
        injector.completed_action_counts,
        injector.failures,
        tally,
        violations,
        settle_seconds,
        problems,
        exited_servers,
    )


def wait_for_journal(journal: Path, deletions: Sequence[EscalationDeletion]) -> list[str]:
    """Return the deletions that no journaled event announces; wait until `record` has stored the events.

    Each deletion by an escalation step must be announced by a `DRAIN_OVERDUE` event.
    """
    deadline = time.monotonic() + JOURNAL_TIMEOUT_SECONDS
    with closing(Journal(journal)) as store:
        while True:
            steps = parse_journaled_steps(store.select(Query(types=(events.DRAIN_OVERDUE,))))
            unannounced = list_unannounced_deletions(deletions, steps)
            if not unannounced or time.monotonic() > deadline:
                return unannounced
            time.sleep(POLL_SECONDS)


def report_run(report: RunReport, directory: Path) -> None:
    """Print the report; if the run passed, remove its directory, otherwise print the directory's path."""
    print_line("\n".join(format_report(report)))
    if report.has_passed:
        shutil.rmtree(directory)
    else:
        print(f"logs and journal: {directory}", file=sys.stderr)


def wait_until_settled(environment: ChaosEnvironment) -> tuple[float | None, list[str]]:
    """Wait until the cluster's state is correct; return the seconds that it took, and an empty list.

    After `SETTLE_TIMEOUT_SECONDS`, return None and a list of the remaining problems.
    """
    started_at = time.monotonic()
    problems = ["the cluster state was not read"]
    while time.monotonic() < started_at + SETTLE_TIMEOUT_SECONDS:
        try:
            problems = list_current_problems(environment.client)
        except ApiError as error:
            problems = [error.message]
        if not problems:
            return time.monotonic() - started_at, []
        time.sleep(POLL_SECONDS)
    return None, problems


def list_current_problems(client: SyncClient) -> list[str]:
    """Read the cluster's state, and return the problems in it."""
    nodes, leases, pods = (client.list(path)["items"] for path in (NODES_PATH, LEASES_PATH, PODS_PATH))
    maintenances = [
        {"apiVersion": group.api_version, **maintenance}
        for group in (MEDIK8S, KUBEVIRT)
        for maintenance in client.list(group.path)["items"]
    ]
    return list_problems(nodes, maintenances, leases, pods)


if __name__ == "__main__":
    main()
