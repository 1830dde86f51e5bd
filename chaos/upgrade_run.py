"""Runs a complete upgrade of many workers with fault injection, on its own cluster with fake OpenShift operators."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from cloudevents.core.v1.event import CloudEvent

from chaos import plan
from chaos.environment import ChaosEnvironment, start_environment
from chaos.fault_injection import FaultInjector
from chaos.invariant_checker import Tally
from chaos.release_watcher import ReleaseWatcher
from chaos.report import RunReport
from chaos.upgrade_final_state import FINISHED, UpgradeSnapshot, build_job_key, list_problems, list_violations
from eventing.events import TICK
from eventing.replay.function_client import post_event
from kube.mutex.versions import WORKER_LABEL
from kube.nodes import NODES_PATH
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.components.selection import MUTEX
from localcluster.product import Product
from localcluster.simulators.openshift import FakeCvo, FakeMco
from localcluster.simulators.upgrade_objects import NEW_VERSION, OLD_VERSION, UpgradeObjects

END_TIMEOUT_SECONDS = 240.0
"""Timeout in seconds from the last action to the end of the run."""
END_STEPS = (FINISHED, "Failed")
CANARY = "canary"


def run_upgrade(
    engine: str, seed: int, duration_seconds: float, directory: Path, workers: int, report: Callable[[str], None]
) -> RunReport:
    """Upgrade a new cluster in this directory; inject faults for `duration_seconds`, or until the upgrade has ended."""
    upgrade = plan.plan_upgrade(seed, workers)
    with start_environment(engine, directory, 1, MUTEX) as environment:
        scenario = _UpgradeScenario(environment, upgrade)
        injector = FaultInjector(environment, seed)
        settle_seconds, snapshot = scenario.run_actions(
            injector, plan.plan_upgrade_actions(seed, duration_seconds, environment.targets)
        )
        exited_servers = environment.list_exited_servers()
    violations, problems = list(list_violations(snapshot)), list(list_problems(snapshot))
    for violation in violations:
        report(f"VIOLATION: {violation}")
    tally = Tally(checked=Counter({"releases": len(snapshot.released_nodes), "Jobs": len(snapshot.created_jobs)}))
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
        MUTEX,
    )


class _UpgradeScenario:
    """An upgrade that can begin: its workers, pools, rules and MutexRunConfig exist on the cluster."""

    def __init__(self, environment: ChaosEnvironment, upgrade: plan.Upgrade) -> None:
        self._environment, self._upgrade = environment, upgrade
        self._cvo, self._mutex = FakeCvo(environment.client), UpgradeObjects(environment.client)
        self._cvo.install(OLD_VERSION)
        self._workers = [name for pool, count in upgrade.pools.items() for name in self._create_workers(pool, count)]
        self._mutex.create_canary(CANARY)
        self._mutex.create_target("all", *(self._mutex.create_pool(pool, pool) for pool in upgrade.pools))
        rules = [
            self._mutex.create_rule(rule.name, cleanup=rule.has_cleanup, delay=rule.job_delay) for rule in upgrade.rules
        ]
        self._path = self._mutex.create_run("chaos", rules, ["all"], CANARY)
        self._mutex.wait_for_step(self._path, "Waiting")

    def _create_workers(self, pool: str, count: int) -> list[str]:
        names = [f"{pool}-{number}" for number in range(1, count + 1)]
        self._environment.cluster.create_nodes(*names)
        self._mutex.label_workers(names, pool)
        return names

    def run_actions(self, injector: FaultInjector, actions: list[plan.Action]) -> tuple[float | None, UpgradeSnapshot]:
        """Start the upgrade, inject faults, and wait until the upgrade has ended.

        Returns:
            The seconds from the last action to the end, or None if the upgrade did not end; and the observations.
        """
        environment, run_ended = self._environment, threading.Event()
        pools_before, audit = self._mutex.get_pool_selectors(), AuditLog(environment.cluster.audit_log)
        with (
            ReleaseWatcher(environment.client) as watcher,
            FakeMco(environment.client) as mco,
            ThreadPoolExecutor(1) as executor,
        ):
            self._cvo.set_desired_version(NEW_VERSION)
            end_future = executor.submit(
                self._wait_for_end, (actions[-1].start_seconds if actions else 0.0) + END_TIMEOUT_SECONDS
            )
            end_future.add_done_callback(lambda _: run_ended.set())
            injector.run_actions(actions, run_ended)
            faults_ended_at = time.monotonic()
            settle_seconds = (
                max(0.0, ended_at - faults_ended_at) if (ended_at := end_future.result()) is not None else None
            )
            self._send_tick()
        return settle_seconds, self._build_snapshot(watcher, mco, audit, pools_before)

    def _send_tick(self) -> None:
        """Send a tick, after which `resync` replaces lost events; wait until no events are pending delivery."""
        product = self._environment.product
        if not isinstance(product, Product):
            raise TypeError("product must be a localcluster.product.Product: upgrade runs use the local delivery")
        post_event(CloudEvent({"source": "chaos", "type": TICK}, {}), product.broker_url)
        product.wait_until_delivered()

    def _wait_for_end(self, timeout: float) -> float | None:
        """Return the monotonic time at which the run ended, or None after `timeout` seconds."""
        try:
            self._mutex.wait_for_state(
                self._path, lambda run: (run or {}).get("status", {}).get("step") in END_STEPS, timeout
            )
        except TimeoutError:
            return None
        return time.monotonic()

    def _build_snapshot(
        self, watcher: ReleaseWatcher, mco: FakeMco, audit: AuditLog, pools_before: Mapping[str, Object]
    ) -> UpgradeSnapshot:
        mutex = self._mutex
        return UpgradeSnapshot(
            upgrade=self._upgrade,
            workers=self._workers,
            version=NEW_VERSION,
            concurrent_nodes=watcher.concurrently_released_nodes,
            released_nodes=watcher.released,
            upgraded_nodes=mco.upgraded,
            created_jobs=[
                build_job_key(entry["requestObject"])
                for entry in audit.list_persisted_writes()
                if _is_job_creation(entry)
            ],
            run=mutex.client.get(self._path),
            jobs=mutex.list_jobs(),
            nodes=mutex.client.list(NODES_PATH, label_selector=WORKER_LABEL)["items"],
            pools_before=pools_before,
            pools=mutex.get_pool_selectors(),
            pool_claims=mutex.list_claim_uids(),
        )


def _is_job_creation(entry: Object) -> bool:
    """Return whether an audit log entry is a successful creation of a Job."""
    request = (entry["verb"], entry["objectRef"]["resource"], entry["responseStatus"]["code"])
    return request == ("create", "jobs", 201)
