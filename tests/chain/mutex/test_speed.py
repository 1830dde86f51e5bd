"""Tests of a run's latency, and of the requests that the mutex costs without a run, by the audit log."""

from __future__ import annotations

import json
import statistics
from datetime import datetime
from pathlib import Path

import pytest

from kube.mutex.objects import NAMESPACE
from kube.mutex.versions import VERSION_LABEL
from kube.nodes import node_path
from kube.paths import Object
from localcluster.processes import await_ready
from tests.chain.mutex.environment import NEW, Stage, job_spec, told
from tests.machine_speed import is_below
from tests.proofs import proves
from tests.workload import OURS, Audit

pytestmark = pytest.mark.slow

TURNS = 5
LIMIT = 0.5
"""Maximum seconds from a node's new version to its first cleanup Job."""
BETWEEN = 13.0
"""Seconds after a tick during which no other tick comes."""
LISTS = [("list", kind) for kind in ("mutexrules", "mutexrunconfigs", "mutextargets")]
"""The mutex's requests at a tick, and at a pool's change, without rules, targets and run configs."""


def moment(entry: Object, field: str) -> datetime:
    return datetime.fromisoformat(entry[field].replace("Z", "+00:00"))


def seconds_to_cleanup(audit: Audit, node: str) -> float:
    """Return the seconds from the request that changed the node's version label to its first cleanup Job."""
    changes = [entry for entry in audit.kept() if entry["responseStatus"]["code"] < 300]
    [labelled] = [
        entry
        for entry in changes
        if entry["objectRef"]["resource"] == "nodes"
        and entry["objectRef"]["name"] == node
        and VERSION_LABEL in str(entry.get("requestObject"))
    ]
    jobs = [entry for entry in changes if (entry["verb"], entry["objectRef"]["resource"]) == ("create", "jobs")]
    first = next(
        job
        for job in jobs
        if told(job["requestObject"])[0] == node and job["requestObject"]["metadata"]["name"].startswith("cleanup-")
    )
    return (moment(first, "stageTimestamp") - moment(labelled, "requestReceivedTimestamp")).total_seconds()


@proves("MUT-45")
def test_a_version_that_changes_is_followed_by_the_first_cleanup_job_at_once(stage: Stage) -> None:
    """Cleanup Jobs follow the new version of five nodes within `LIMIT` seconds."""
    names = stage.workers("blue", TURNS)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only", cleanup=True)
    run = stage.run("example", ["only"], ["all"])
    stage.reaches(run, "Waiting")
    stage.cvo.want(NEW)
    audit = stage.audit()
    for name in names:
        stage.until(run, lambda item, name=name: waits_for(item, name))
        stage.upgrade(name)
    stage.reaches(run, "Finished")

    took = [seconds_to_cleanup(audit, name) for name in names]
    print(f"label to Job: median {statistics.median(took):.3f} s of {', '.join(f'{each:.3f}' for each in took)}")
    assert is_below(max(took), LIMIT)


def waits_for(run: Object | None, node: str) -> bool:
    """Return whether the run waits for this node's version."""
    status = (run or {}).get("status", {})
    return status.get("step") == "UpgradingNode" and str(status.get("progress")).endswith(f": {node}")


class Requests:
    """The requests of the product's accounts since this object was created: reads and writes, no watches."""

    def __init__(self, log: Path) -> None:
        self._log, self._start = log, log.stat().st_size

    def all(self) -> list[tuple[str, str]]:
        """Return the verb and the resource of each request."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            lines = log.read().rpartition(b"\n")[0].splitlines()
        found = [entry for entry in map(json.loads, lines) if entry["user"].get("username", "").startswith(OURS)]
        asked = [(entry["verb"], entry.get("objectRef", {}).get("resource", "")) for entry in found]
        return sorted(each for each in asked if each[0] != "watch")


@proves("X-3")
def test_without_a_run_there_is_no_request_between_ticks(stage: Stage) -> None:
    """Functions without a run make no request between ticks; a pool's change costs three list requests."""
    names = stage.workers("blue", 3)
    pool = stage.pool("blue", "blue")
    stage.settle()
    ticked = Requests(stage.cluster.audit_log)
    await_ready("a tick", lambda: set(LISTS) <= set(ticked.all()), stage.product.servers)
    stage.settle()

    quiet, begun = Requests(stage.cluster.audit_log), datetime.now()
    change(stage, names)
    assert quiet.all() == []
    assert (datetime.now() - begun).total_seconds() < BETWEEN

    heard = Requests(stage.cluster.audit_log)
    stage.edit_pool(pool, {"paused": True})
    await_ready("the pool's change", lambda: set(LISTS) <= set(heard.all()), stage.product.servers)
    stage.settle()
    assert heard.all() == LISTS


def change(stage: Stage, nodes: list[str]) -> None:
    """Change nodes and create a Job that is not the product's, as happens in every cluster."""
    body = {"metadata": {"name": "somebodys"}, "spec": job_spec()}
    stage.admin.create(stage.jobs, body)
    for count in range(10):
        for name in nodes:
            stage.admin.patch(node_path(name), {"metadata": {"labels": {"count": str(count)}}})
    path = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs/somebodys"
    stage.until(path, lambda job: bool((job or {}).get("status", {}).get("completionTime")))
