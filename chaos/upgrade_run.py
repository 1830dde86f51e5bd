"""A complete upgrade of many workers by the mutex under fault injection, on its own cluster with a fake OpenShift."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

from chaos import plan
from chaos.invariant_checker import Tally
from chaos.fault_injection import Mischief
from chaos.report import Run
from chaos.environment import Stage, stage
from chaos.upgrade_final_state import FINISHED, Seen, left, told, violations
from kube.mutex.versions import WORKER
from kube.nodes import NODES
from kube.paths import Object
from localcluster.components.selection import MUTEX
from tests.chain.mutex.environment import NEW, OLD
from tests.chain.mutex.environment import Stage as Scene
from tests.chain.mutex.release_watcher import Watcher
from tests.openshift import FakeMco
from tests.workload import Audit

END_SECONDS = 240.0
"""Timeout in seconds for the end of the run after the last action."""
ENDS = (FINISHED, "Failed")
CANARY = "canary"


def run(engine: str, seed: int, seconds: float, folder: Path, workers: int, say: Callable[[str], None]) -> Run:
    """Run one upgrade in this directory; inject faults for `seconds`, or until the run has ended."""
    upgrade = plan.upgrade(seed, workers)
    with stage(engine, folder, 1, MUTEX) as shown:
        scene = Scene(shown.cluster, shown.product)
        with closing(scene.admin):
            amid = _Amid(shown, scene, upgrade)
            mischief = Mischief(shown, seed)
            calm, seen = amid.play(mischief, plan.upgrade_actions(seed, seconds, shown.targets))
        ended = shown.ended()
    found, wrong = list(violations(seen)), list(left(seen))
    for violation in found:
        say(f"VIOLATION: {violation}")
    tally = Tally(judged=Counter({"releases": len(seen.released), "Jobs": len(seen.created)}))
    return Run(engine, seed, seconds, mischief.done, mischief.failed, tally, found, calm, wrong, ended, MUTEX)


class _Amid:
    """An upgrade that is ready to begin, with its pools, rules and workers on the cluster."""

    def __init__(self, shown: Stage, scene: Scene, upgrade: plan.Upgrade) -> None:
        self._shown, self._scene, self._upgrade = shown, scene, upgrade
        scene.cvo.install(OLD)
        self._workers = [name for pool, count in upgrade.pools.items() for name in scene.workers(pool, count)]
        scene.canary(CANARY)
        scene.target("all", *(scene.pool(pool, pool) for pool in upgrade.pools))
        rules = [scene.rule(rule.name, cleanup=rule.has_cleanup, delay=rule.delay) for rule in upgrade.rules]
        self._path = scene.run("chaos", rules, ["all"], CANARY)
        scene.reaches(self._path, "Waiting")

    def play(self, mischief: Mischief, actions: list[plan.Action]) -> tuple[float | None, Seen]:
        """Start the upgrade, inject faults, and wait for its end.

        Returns:
            The seconds from the last action until the end, None if the upgrade did not end; and the observations.
        """
        scene, over = self._scene, threading.Event()
        before, audit = scene.selectors(), scene.audit()
        with Watcher(scene.admin) as watcher, FakeMco(scene.admin) as mco, ThreadPoolExecutor(1) as waiting:
            scene.cvo.want(NEW)
            end = waiting.submit(self._await_end, (actions[-1].at if actions else 0.0) + END_SECONDS)
            end.add_done_callback(lambda _: over.set())
            mischief.play(actions, over)
            quiet = time.monotonic()
            calm = max(0.0, ended - quiet) if (ended := end.result()) is not None else None
            scene.tick()
        return calm, self._seen(watcher, mco, audit, before)

    def _await_end(self, seconds: float) -> float | None:
        """Return the time at which the run ended, or None after `seconds`."""
        try:
            self._scene.until(self._path, lambda item: (item or {}).get("status", {}).get("step") in ENDS, seconds)
        except TimeoutError:
            return None
        return time.monotonic()

    def _seen(self, watcher: Watcher, mco: FakeMco, audit: Audit, before: Mapping[str, Object]) -> Seen:
        scene = self._scene
        return Seen(
            upgrade=self._upgrade,
            workers=self._workers,
            version=NEW,
            together=watcher.together,
            released=watcher.released,
            upgraded=mco.upgraded,
            created=[told(entry["requestObject"]) for entry in audit.kept() if _is_creation(entry)],
            run=scene.admin.get(self._path),
            jobs=scene.created(),
            nodes=scene.admin.list(NODES, labels=WORKER)["items"],
            pools_before=before,
            pools=scene.selectors(),
            claims=scene.claims(),
        )


def _is_creation(entry: Object) -> bool:
    """Return whether an audit log entry is the creation of a Job."""
    asked = (entry["verb"], entry["objectRef"]["resource"], entry["responseStatus"]["code"])
    return asked == ("create", "jobs", 201)
