"""Helpers that create MutexRunConfigs with the status that the functions would write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from kube.client.sync_client import SyncClient
from kube.mutex.objects import DEFAULT_NAMESPACE, RUN_KIND, build_collection_path, build_path
from kube.paths import Object
from kube.times import format_time
from localcluster.cluster import LocalCluster
from localcluster.components.selection import MUTEX
from localcluster.product import COMPONENTS_DIR, MUTEX_RESOURCES

HALTED_FAILURE: Object = {
    "step": "run-job",
    "message": "Job disks-1 did not complete",
    "job": "disks-1",
    "generation": 1,
}
FIVE_MINUTES_AGO = format_time(datetime.now(timezone.utc) - timedelta(minutes=5))


@contextmanager
def install_mutex_crds(cluster: LocalCluster) -> Iterator[None]:
    """Install the CRDs of the component `mutex` without its functions, and delete the CRDs afterwards."""
    files = [
        argument for kind in MUTEX_RESOURCES for argument in ("-f", COMPONENTS_DIR / MUTEX / "crds" / f"{kind}.yaml")
    ]
    cluster.kubectl("apply", "--server-side", *files)
    if "AlreadyExists" in cluster.kubectl("create", "namespace", DEFAULT_NAMESPACE, check=False).stderr:
        cluster.kubectl("get", "namespace", DEFAULT_NAMESPACE)
    for kind in MUTEX_RESOURCES:
        cluster.kubectl("get", kind, "-A")
    yield
    cluster.kubectl("delete", *files)


def create_run_config(client: SyncClient, name: str, **record: Any) -> Object:
    """Create a MutexRunConfig whose run is upgrading the second node; return the object."""
    spec = {"canary": {"name": "canary"}, "mutexRules": [{"name": "disks"}], "mutexTargets": [{"name": "all"}]}
    body = {"apiVersion": "openshift-optional.skrzypek.io/v1alpha1", "kind": RUN_KIND, "metadata": {"name": name}}
    run = client.create(build_collection_path(RUN_KIND, DEFAULT_NAMESPACE), {**body, "spec": spec})
    return write_run_status(client, name, **{**build_run_record(run["metadata"]["uid"]), **record})


def build_run_record(uid: str) -> Object:
    """Build the record of a run that has upgraded the first node, and now runs a Job for the second node."""
    job = {"attempt": 1, "namespace": DEFAULT_NAMESPACE, "name": "disks-1", "uid": "u", "createdAt": FIVE_MINUTES_AGO}
    completed_jobs = {
        "main:node-upgrade-mutex-operator/disks": {
            **job,
            "name": "disks-0",
            "result": "Complete",
            "endedAt": FIVE_MINUTES_AGO,
        }
    }
    timestamps = dict.fromkeys(("startedAt", "turnAt", "pausedAt", "labelledAt", "editedAt"), FIVE_MINUTES_AGO)
    upgrade_timestamps = dict.fromkeys(("releasedAt", "upgradedAt", "cleanedAt"), FIVE_MINUTES_AGO)
    return {
        **timestamps,
        **{"id": f"{uid}-1", "number": 1, "desired": "4.16.4", "order": ["worker-1", "worker-2", "worker-3"]},
        "rules": [{"namespace": DEFAULT_NAMESPACE, "name": "disks"}],
        "canary": {"name": "canary"},
        "pools": {"blue": {"paused": False}},
        "nodes": {
            "worker-1": {"uid": "1", "jobs": completed_jobs, **upgrade_timestamps},
            "worker-2": {"uid": "2", "jobs": {"main:node-upgrade-mutex-operator/disks": job}},
            "worker-3": {"uid": "3"},
        },
    }


def write_run_status(client: SyncClient, name: str, step: str = "RunningJobs", **record: Any) -> Object:
    """Write `record` and the status fields derived from it to a MutexRunConfig; return the object."""
    condition = {"type": "ConfigValidated", "status": "True", "reason": "FetchSucceeded", "message": ""}
    status = {
        "step": "Failed" if record.get("failure") else step,
        "progress": "2 of 3: worker-2",
        "job": "disks-1",
        "observedGeneration": 1,
        "conditions": [{**condition, "observedGeneration": 1, "lastTransitionTime": FIVE_MINUTES_AGO}],
        "record": record,
    }
    return client.patch(f"{build_path(RUN_KIND, DEFAULT_NAMESPACE, name)}/status", {"status": status})
