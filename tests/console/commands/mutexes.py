"""Run configs on a cluster where no function runs: what they would have written is written by hand."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from typing import Any

from kube.door.sync_client import Cluster
from kube.mutex.objects import NAMESPACE, RUN, collection, path_of
from kube.paths import Object
from kube.times import timestamp
from localcluster.cluster import LocalCluster
from localcluster.product import COMPONENTS, MUTEX_KINDS
from localcluster.wings.choice import MUTEX

STOPPED: Object = {"step": "run-job", "message": "Job disks-1 did not complete", "job": "disks-1", "generation": 1}
AT = timestamp(datetime.now(timezone.utc) - timedelta(minutes=5))


@contextmanager
def kinds(cluster: LocalCluster) -> Iterator[None]:
    """The three kinds on a cluster, without anybody who acts on them; they go after it."""
    files = [word for kind in MUTEX_KINDS for word in ("-f", COMPONENTS / MUTEX / "crds" / f"{kind}.yaml")]
    cluster.kubectl("apply", "--server-side", *files)
    if "AlreadyExists" in cluster.kubectl("create", "namespace", NAMESPACE, check=False).stderr:
        cluster.kubectl("get", "namespace", NAMESPACE)
    for kind in MUTEX_KINDS:
        cluster.kubectl("get", kind, "-A")
    yield
    cluster.kubectl("delete", *files)


def create(door: Cluster, name: str, **record: Any) -> Object:
    """A run config whose run upgrades the second of two nodes; returns it."""
    spec = {"canary": {"name": "canary"}, "mutexRules": [{"name": "disks"}], "mutexTargets": [{"name": "all"}]}
    body = {"apiVersion": "openshift-optional.skrzypek.io/v1alpha1", "kind": RUN, "metadata": {"name": name}}
    run = door.create(collection(RUN, NAMESPACE), {**body, "spec": spec})
    return write(door, name, **{**begun(run["metadata"]["uid"]), **record})


def begun(uid: str) -> Object:
    """The record of such a run."""
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
    """Write the record, and what is shown of it; returns the run config."""
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
