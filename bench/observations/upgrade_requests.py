"""Measures the duration and API requests per node of an upgrade mutex run, with fake OpenShift operators."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import costs
from bench.api_requests import AuditLog, count_requests
from bench.rig import Rig
from bench.workload import run_concurrently
from kube.mutex.objects import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    RULE_KIND,
    RUN_KIND,
    TARGET_KIND,
    build_collection_path,
    build_path,
)
from kube.mutex.pools import CLUSTER_VERSIONS_PATH, POOLS_PATH
from kube.mutex.versions import WORKER_LABEL
from kube.nodes import build_node_path
from kube.paths import Object
from tests.openshift import build_pool
from tests.waiting import wait_for_object

Figure = tuple[str, float, float | None]
"""A measured figure: its label, its value, and its upper limit, or None without a limit."""
POOL_COUNT, OBJECT_NAME, CANARY, NEW_VERSION = 5, "bench", "canary", "4.16.4"
POOL_LABEL = "bench.example.com/pool"
MAX_REQUESTS_PER_NODE = 120.0
"""Limit for requests per node, for any number of nodes, with one Job before each upgrade and one after it."""
MAX_LISTED_REQUESTS = 3
"""Number of the most frequent request kinds to list."""
READY_TIMEOUT_SECONDS, TIMEOUT_SECONDS_PER_NODE = 60.0, 15.0
"""Timeouts in seconds: until the run is ready for the upgrade, and for each node that is upgraded."""


def measure_upgrade(rig: Rig, workers: Sequence[str]) -> list[Figure]:
    """Return the figures of one upgrade of these workers, from the version request until the run is finished."""
    run = _prepare_run(rig, workers)
    log, started_at = AuditLog(costs.get_audit_log(rig)), time.monotonic()
    patch = {"spec": {"desiredUpdate": {"version": NEW_VERSION}}}
    rig.client.patch(f"{CLUSTER_VERSIONS_PATH}/version", patch)
    _wait_for_step(rig, run, "Finished", TIMEOUT_SECONDS_PER_NODE * len(workers))
    duration = time.monotonic() - started_at
    time.sleep(costs.JOURNAL_DELAY_SECONDS)
    requests, worker_count = count_requests(log.read()), len(workers)
    most_frequent = sorted(requests.items(), key=lambda operation_and_count: -operation_and_count[1])[
        :MAX_LISTED_REQUESTS
    ]
    return [
        ("seconds for each node", round(duration / worker_count, 2), None),
        ("requests for each node", round(sum(requests.values()) / worker_count, 1), MAX_REQUESTS_PER_NODE),
        *(
            (f"{operation}, for each node", round(request_count / worker_count, 1), None)
            for operation, request_count in most_frequent
        ),
    ]


def _prepare_run(rig: Rig, workers: Sequence[str]) -> str:
    """Create the pools, a rule with a cleanup Job and the run; return the run's path once the upgrade may begin."""
    client, roles = rig.client, [f"pool-{number}" for number in range(POOL_COUNT)]
    labels = ({"metadata": {"labels": {POOL_LABEL: roles[number % POOL_COUNT]}}} for number in range(len(workers)))
    run_concurrently(
        client, (client.api.patch(build_node_path(name), body) for name, body in zip(workers, labels, strict=True))
    )
    canary = build_pool(CANARY, {WORKER_LABEL: ""}, [{"key": "isCanary", "operator": "Exists"}])
    for body in (canary, *(build_pool(role, {WORKER_LABEL: "", POOL_LABEL: role}) for role in roles)):
        client.create(POOLS_PATH, body)
    _create_mutex_object(
        rig,
        RULE_KIND,
        {
            "jobName": OBJECT_NAME,
            "jobNamespace": DEFAULT_NAMESPACE,
            "jobSpec": _build_job_spec(),
            "cleanUpJobSpec": _build_job_spec(),
        },
    )
    _create_mutex_object(rig, TARGET_KIND, {"machineConfigPools": roles})
    references = [{"name": OBJECT_NAME}]
    _create_mutex_object(
        rig, RUN_KIND, {"canary": {"name": CANARY}, "mutexRules": references, "mutexTargets": references}
    )
    path = build_path(RUN_KIND, DEFAULT_NAMESPACE, OBJECT_NAME)
    _wait_for_step(rig, path, "Waiting", READY_TIMEOUT_SECONDS)
    return path


def _create_mutex_object(rig: Rig, kind: str, spec: Object) -> None:
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": OBJECT_NAME}, "spec": spec}
    rig.client.create(build_collection_path(kind, DEFAULT_NAMESPACE), body)


def _build_job_spec() -> Object:
    pod = {"containers": [{"name": "main", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"spec": pod}, "backoffLimit": 0}


def _wait_for_step(rig: Rig, run_path: str, step: str, timeout: float) -> None:
    wait_for_object(rig.client, run_path, lambda run: (run or {}).get("status", {}).get("step") == step, timeout)
