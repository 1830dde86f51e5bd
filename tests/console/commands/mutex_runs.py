"""Helpers that create MutexRunConfig objects without the functions: they write what the functions would write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from kube.client.sync_client import Cluster
from kube.mutex.objects import NAMESPACE, RUN, collection, path_of
from kube.paths import Object
from kube.times import timestamp
from localcluster.cluster import LocalCluster
from localcluster.product import COMPONENTS, MUTEX_KINDS
from localcluster.components.selection import MUTEX

STOPPED: Object = {"step": "run-job", "message": "Job disks-1 did not complete", "job": "disks-1", "generation": 1}
AT = timestamp(datetime.now(timezone.utc) - timedelta(minutes=5))


@contextmanager
def kinds(cluster: LocalCluster) -> Iterator[None]:
    """Install the CRDs of the mutex without its functions, and delete the CRDs afterwards."""
    files = [word for kind in MUTEX_KINDS for word in ("-f", COMPONENTS / MUTEX / "crds" / f"{kind}.yaml")]
    cluster.kubectl("apply", "--server-side", *files)
    if "AlreadyExists" in cluster.kubectl("create", "namespace", NAMESPACE, check=False).stderr:
        cluster.kubectl("get", "namespace", NAMESPACE)
    for kind in MUTEX_KINDS:
        cluster.kubectl("get", kind, "-A")
    yield
    cluster.kubectl("delete", *files)


def create(door: Cluster, name: str, **record: Any) -> Object:
    """Create a run config whose run is upgrading the second of its nodes, and return the object."""
    spec = {"canary": {"name": "canary"}, "mutexRules": [{"name": "disks"}], "mutexTargets": [{"name": "all"}]}
    body = {"apiVersion": "openshift-optional.skrzypek.io/v1alpha1", "kind": RUN, "metadata": {"name": name}}
    run = door.create(collection(RUN, NAMESPACE), {**body, "spec": spec})
    return write(door, name, **{**begun(run["metadata"]["uid"]), **record})


def begun(uid: str) -> Object:
    """Build the record of a run that has upgraded the first node and runs a Job for the second one."""
    job = {"attempt": 1, "namespace": NAMESPACE, "name": "disks-1", "uid": "u", "createdAt": AT}
    done = {"main:node-upgrade-mutex-operator/disks": {**job, "name": "disks-0", "result": "Complete", "endedAt": AT}}
    moments = dict.fromkeys(("startedAt", "turnAt", "pausedAt", "labelledAt", "editedAt"), AT)
    upgraded = dict.fromkeys(("releasedAt", "upgradedAt", "cleanedAt"), AT)
    return {
        **moments,
        **{"id": f"{uid}-1", "number": 1, "desired": "4.16.4", "order": ["worker-1", "worker-2", "worker-3"]},
        "rules": [{"namespace": NAMESPACE, "name": "disks"}],
        "canary": {"name": "canary"},
        "pools": {"blue": {"paused": False}},
        "nodes": {
            "worker-1": {"uid": "1", "jobs": done, **upgraded},
            "worker-2": {"uid": "2", "jobs": {"main:node-upgrade-mutex-operator/disks": job}},
            "worker-3": {"uid": "3"},
        },
    }


def write(door: Cluster, name: str, step: str = "RunningJobs", **record: Any) -> Object:
    """Write `record` and the fields that summarize it to the status, and return the run config."""
    valid = {"type": "ConfigValidated", "status": "True", "reason": "FetchSucceeded", "message": ""}
    status = {
        "step": "Failed" if record.get("failure") else step,
        "progress": "2 of 3: worker-2",
        "job": "disks-1",
        "observedGeneration": 1,
        "conditions": [{**valid, "observedGeneration": 1, "lastTransitionTime": AT}],
        "record": record,
    }
    return door.patch(f"{path_of(RUN, NAMESPACE, name)}/status", {"status": status})
