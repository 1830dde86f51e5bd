"""Tests for the latency of an upgrade run, and for the API requests of an idle `mutex` component.

Both are measured with the API server's audit log.
"""

from __future__ import annotations

import json
import statistics
from datetime import datetime
from pathlib import Path

import pytest

from kube.mutex.objects import DEFAULT_NAMESPACE
from kube.mutex.versions import VERSION_LABEL
from kube.nodes import build_node_path
from kube.paths import Object
from localcluster.audit_log import OWN_USER_PREFIX, AuditLog
from localcluster.processes import wait_until_ready
from localcluster.simulators.upgrade_objects import JOBS_PATH, NEW_VERSION, build_job_spec
from tests.chain.mutex.environment import MutexEnvironment, get_node_and_rule
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves

pytestmark = pytest.mark.slow

NODE_COUNT = 5
MAX_CLEANUP_DELAY_SECONDS = 0.5
"""Maximum seconds from a node's upgrade to the creation of its first cleanup Job."""
TICK_FREE_SECONDS = 13.0
"""Seconds after a tick within which PingSource sends no other tick."""
IDLE_REQUESTS = [("list", kind) for kind in ("mutexrules", "mutexrunconfigs", "mutextargets")]
"""The requests that the component `mutex` sends on a tick or pool change if none of its objects exist."""


def parse_time(audit_entry: Object, field: str) -> datetime:
    return datetime.fromisoformat(audit_entry[field].replace("Z", "+00:00"))


def measure_seconds_to_cleanup(audit: AuditLog, node: str) -> float:
    """Return the seconds from the change of the node's version label to the node's first cleanup Job."""
    successful_writes = [entry for entry in audit.list_persisted_writes() if entry["responseStatus"]["code"] < 300]
    [label_change] = [
        entry
        for entry in successful_writes
        if entry["objectRef"]["resource"] == "nodes"
        and entry["objectRef"]["name"] == node
        and VERSION_LABEL in str(entry.get("requestObject"))
    ]
    jobs = [
        entry for entry in successful_writes if (entry["verb"], entry["objectRef"]["resource"]) == ("create", "jobs")
    ]
    first_cleanup_job = next(
        job
        for job in jobs
        if get_node_and_rule(job["requestObject"])[0] == node
        and job["requestObject"]["metadata"]["name"].startswith("cleanup-")
    )
    return (
        parse_time(first_cleanup_job, "stageTimestamp") - parse_time(label_change, "requestReceivedTimestamp")
    ).total_seconds()


@proves("MUT-45")
def test_cleanup_job_is_created_soon_after_new_version(environment: MutexEnvironment) -> None:
    """Check that each node's cleanup Job is created within `MAX_CLEANUP_DELAY_SECONDS` after the node's upgrade."""
    names = environment.create_workers("blue", NODE_COUNT)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only", cleanup=True)
    run = environment.create_run("example", ["only"], ["all"])
    environment.wait_for_step(run, "Waiting")
    environment.cvo.set_desired_version(NEW_VERSION)
    audit = environment.start_audit()
    for name in names:
        environment.wait_for_state(run, lambda run_config, name=name: is_waiting_for_version_of(run_config, name))
        environment.set_node_version(name)
    environment.wait_for_step(run, "Finished")

    seconds = [measure_seconds_to_cleanup(audit, name) for name in names]
    print(
        f"version label to cleanup Job: median {statistics.median(seconds):.3f} s "
        f"of {', '.join(f'{value:.3f}' for value in seconds)}"
    )
    assert is_below_scaled_limit(max(seconds), MAX_CLEANUP_DELAY_SECONDS)


def is_waiting_for_version_of(run: Object | None, node: str) -> bool:
    """Return whether the run waits for this node to reach the new version."""
    status = (run or {}).get("status", {})
    return status.get("step") == "UpgradingNode" and str(status.get("progress")).endswith(f": {node}")


class RequestLog:
    """The requests by the product's ServiceAccounts, except watches, since this instance was created."""

    def __init__(self, log: Path) -> None:
        self._log, self._start = log, log.stat().st_size

    def list_requests(self) -> list[tuple[str, str]]:
        """Return the verb and resource of each request."""
        with self._log.open("rb") as log:
            log.seek(self._start)
            lines = log.read().rpartition(b"\n")[0].splitlines()
        entries = [
            entry for entry in map(json.loads, lines) if entry["user"].get("username", "").startswith(OWN_USER_PREFIX)
        ]
        requests = [(entry["verb"], entry.get("objectRef", {}).get("resource", "")) for entry in entries]
        return sorted(request for request in requests if request[0] != "watch")


@proves("X-3")
def test_mutex_without_run_sends_no_requests_between_ticks(environment: MutexEnvironment) -> None:
    """Check that without a run, the component sends three list requests per tick and pool change, and no others."""
    names = environment.create_workers("blue", 3)
    pool = environment.create_pool("blue", "blue")
    environment.wait_until_delivered()
    tick_log = RequestLog(environment.cluster.audit_log)
    wait_until_ready("a tick", lambda: set(IDLE_REQUESTS) <= set(tick_log.list_requests()), environment.product.servers)
    environment.wait_until_delivered()

    idle_log, started_at = RequestLog(environment.cluster.audit_log), datetime.now()
    change_nodes_and_jobs(environment, names)
    assert idle_log.list_requests() == []
    assert (datetime.now() - started_at).total_seconds() < TICK_FREE_SECONDS

    change_log = RequestLog(environment.cluster.audit_log)
    environment.replace_pool_fields(pool, {"paused": True})
    wait_until_ready(
        "the pool's change", lambda: set(IDLE_REQUESTS) <= set(change_log.list_requests()), environment.product.servers
    )
    environment.wait_until_delivered()
    assert change_log.list_requests() == IDLE_REQUESTS


def change_nodes_and_jobs(environment: MutexEnvironment, nodes: list[str]) -> None:
    """Change nodes, and create a Job that is unrelated to the product, as happens in every cluster."""
    body = {"metadata": {"name": "foreign"}, "spec": build_job_spec()}
    environment.client.create(JOBS_PATH, body)
    for count in range(10):
        for name in nodes:
            environment.client.patch(build_node_path(name), {"metadata": {"labels": {"count": str(count)}}})
    path = f"/apis/batch/v1/namespaces/{DEFAULT_NAMESPACE}/jobs/foreign"
    environment.wait_for_state(path, lambda job: bool((job or {}).get("status", {}).get("completionTime")))
