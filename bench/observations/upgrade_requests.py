"""Duration and API requests per node of an upgrade mutex run over workers in pools, with fake OpenShift operators."""

from __future__ import annotations

import time
from collections.abc import Sequence

from bench import costs
from bench.api_requests import AuditLog, counted
from bench.workload import side_by_side
from bench.rig import Rig
from kube.mutex.objects import API_VERSION, NAMESPACE, RULE, RUN, TARGET, collection, path_of
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS
from kube.mutex.versions import WORKER
from kube.nodes import node_path
from kube.paths import Object
from tests.openshift import pool
from tests.waiting import wait_for

Figure = tuple[str, float, float | None]
"""A label, a value, and its limit if there is one."""
POOL_COUNT, NAME, CANARY, NEW = 5, "bench", "canary", "4.16.4"
ROLE = "bench.example.com/pool"
REQUESTS = 120.0
"""Limit of requests per node for any number of nodes, with one Job before each upgrade and one after it."""
TOLD = 3
"""Number of request kinds to list, the most frequent ones."""
READY_SECONDS, NODE_SECONDS = 60.0, 15.0
"""Timeouts: until the run waits for its upgrade, and per node of the upgrade."""


def measure(rig: Rig, workers: Sequence[str]) -> list[Figure]:
    """Return the figures of one upgrade of these workers, from the requested version until everything is restored."""
    run = _prepared(rig, workers)
    log, started = AuditLog(costs.audit_log(rig)), time.monotonic()
    wanted = {"spec": {"desiredUpdate": {"version": NEW}}}
    rig.cluster.patch(f"{CLUSTER_VERSIONS}/version", wanted)
    _await(rig, run, "Finished", NODE_SECONDS * len(workers))
    took = time.monotonic() - started
    time.sleep(costs.LATE)
    found, count = counted(log.read()), len(workers)
    most = sorted(found.items(), key=lambda item: -item[1])[:TOLD]
    return [
        ("seconds for each node", round(took / count, 2), None),
        ("requests for each node", round(sum(found.values()) / count, 1), REQUESTS),
        *((f"{what}, for each node", round(often / count, 1), None) for what, often in most),
    ]


def _prepared(rig: Rig, workers: Sequence[str]) -> str:
    """Create the pools, a rule with cleanup and the run; return the run's path once it waits for its upgrade."""
    door, roles = rig.cluster, [f"pool-{number}" for number in range(POOL_COUNT)]
    labels = ({"metadata": {"labels": {ROLE: roles[number % POOL_COUNT]}}} for number in range(len(workers)))
    side_by_side(door, (door.api.patch(node_path(name), body) for name, body in zip(workers, labels, strict=True)))
    canary = pool(CANARY, {WORKER: ""}, [{"key": "isCanary", "operator": "Exists"}])
    for body in (canary, *(pool(role, {WORKER: "", ROLE: role}) for role in roles)):
        door.create(POOLS, body)
    _create(rig, RULE, {"jobName": NAME, "jobNamespace": NAMESPACE, "jobSpec": _job(), "cleanUpJobSpec": _job()})
    _create(rig, TARGET, {"machineConfigPools": roles})
    named = [{"name": NAME}]
    _create(rig, RUN, {"canary": {"name": CANARY}, "mutexRules": named, "mutexTargets": named})
    path = path_of(RUN, NAMESPACE, NAME)
    _await(rig, path, "Waiting", READY_SECONDS)
    return path


def _create(rig: Rig, kind: str, spec: Object) -> None:
    body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": NAME}, "spec": spec}
    rig.cluster.create(collection(kind, NAMESPACE), body)


def _job() -> Object:
    pod = {"containers": [{"name": "main", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"spec": pod}, "backoffLimit": 0}


def _await(rig: Rig, run: str, step: str, seconds: float) -> None:
    wait_for(rig.cluster, run, lambda item: (item or {}).get("status", {}).get("step") == step, seconds)
