"""Measures the duration and the API requests per node of an upgrade run, with fakes of OpenShift's operators."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import costs
from bench.api_requests import AuditLog, count_requests
from bench.findings import Figure
from bench.rig import Rig
from kube.mutex.pools import CLUSTER_VERSIONS_PATH
from localcluster.simulators.upgrade_objects import NEW_VERSION, UpgradeObjects

POOL_COUNT, OBJECT_NAME = 5, "bench"
MAX_REQUESTS_PER_NODE = 120.0
"""Maximum number of requests per node; each node has one Job before its upgrade and one after it."""
MAX_LISTED_REQUESTS = 3
"""Number of the most frequent kinds of requests to list."""
READY_TIMEOUT_SECONDS, TIMEOUT_SECONDS_PER_NODE = 60.0, 15.0
"""Timeouts: until the run waits for the upgrade, and per node that is upgraded."""


def measure_upgrade(rig: Rig, workers: Sequence[str]) -> list[Figure]:
    """Upgrade the workers, and return the figures from the request of the new version until the run is finished."""
    mutex = UpgradeObjects(rig.client)
    run = _prepare_run(mutex, workers)
    log, started_at = AuditLog(costs.get_audit_log(rig)), time.monotonic()
    patch = {"spec": {"desiredUpdate": {"version": NEW_VERSION}}}
    rig.client.patch(f"{CLUSTER_VERSIONS_PATH}/version", patch)
    mutex.wait_for_step(run, "Finished", TIMEOUT_SECONDS_PER_NODE * len(workers))
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


def _prepare_run(mutex: UpgradeObjects, workers: Sequence[str]) -> str:
    """Create pools, a rule with a cleanup Job, and a run; return the run's path when it waits for the upgrade."""
    pools = [f"pool-{number}" for number in range(POOL_COUNT)]
    for number, pool in enumerate(pools):
        mutex.label_workers(workers[number::POOL_COUNT], pool)
        mutex.create_pool(pool, pool)
    mutex.create_canary()
    mutex.create_target(OBJECT_NAME, *pools)
    path = mutex.create_run(OBJECT_NAME, [mutex.create_rule(OBJECT_NAME, cleanup=True)], [OBJECT_NAME])
    mutex.wait_for_step(path, "Waiting", READY_TIMEOUT_SECONDS)
    return path
