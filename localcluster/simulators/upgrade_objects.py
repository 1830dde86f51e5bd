"""Creates the objects of upgrade runs on a simulated OpenShift: workers, pools, rules, targets and runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kube.client.sync_client import SyncClient
from kube.mutex import pools
from kube.mutex.objects import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    RULE_KIND,
    RUN_KIND,
    RUN_LABEL,
    TARGET_KIND,
    build_collection_path,
    build_path,
)
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import build_node_path
from kube.paths import Object
from localcluster.simulators.openshift import build_pool
from localcluster.waiting import wait_for_object

OLD_VERSION, NEW_VERSION = "4.15.9", "4.16.4"
TIMEOUT_SECONDS = 180.0
JOBS_PATH = f"/apis/batch/v1/namespaces/{DEFAULT_NAMESPACE}/jobs"


class UpgradeObjects:
    """Creates and reads the objects of upgrade runs with the administrator's client."""

    def __init__(self, client: SyncClient) -> None:
        self.client = client

    def label_workers(self, names: Sequence[str], role: str, version: str = OLD_VERSION) -> None:
        """Label these nodes as workers with this role and this version."""
        labels = {WORKER_LABEL: "", VERSION_LABEL: version, "role": role}
        self.client.gather_all(
            *(self.client.api.patch(build_node_path(name), {"metadata": {"labels": labels}}) for name in names)
        )

    def create_pool(self, name: str, role: str, **spec: Any) -> str:
        """Create a MachineConfigPool that selects the workers with this role; return its name."""
        body = build_pool(name, {WORKER_LABEL: "", "role": role})
        body["spec"] |= spec
        self.client.create(pools.POOLS_PATH, body)
        return name

    def create_canary(self, name: str = "canary") -> str:
        """Create a canary MachineConfigPool as in the specification; return its name."""
        expressions = [{"key": "isCanary", "operator": "Exists"}]
        self.client.create(pools.POOLS_PATH, build_pool(name, {WORKER_LABEL: ""}, expressions))
        return name

    def create_rule(self, name: str, *, cleanup: bool = False, delay: str = "", **spec: Any) -> str:
        """Create a MutexRule whose Jobs complete immediately or after `delay`; return its name."""
        rule_spec: Object = {"jobName": name, "jobNamespace": DEFAULT_NAMESPACE, "jobSpec": build_job_spec(delay)}
        rule_spec |= {"cleanUpJobSpec": build_job_spec(delay)} if cleanup else {}
        self.create_object(RULE_KIND, name, {**rule_spec, **spec})
        return name

    def create_target(self, name: str, *pool_names: str) -> str:
        """Create a MutexTarget with these pools; return its name."""
        self.create_object(TARGET_KIND, name, {"machineConfigPools": list(pool_names)})
        return name

    def create_run(self, name: str, rules: Iterable[str], targets: Iterable[str], canary: str = "canary") -> str:
        """Create a MutexRunConfig; return its API path."""
        references = {
            "mutexRules": [{"name": reference_name} for reference_name in rules],
            "mutexTargets": [{"name": reference_name} for reference_name in targets],
        }
        self.create_object(RUN_KIND, name, {"canary": {"name": canary}, **references})
        return build_path(RUN_KIND, DEFAULT_NAMESPACE, name)

    def create_object(self, kind: str, name: str, spec: Object) -> Object:
        """Create a MutexRule, a MutexTarget or a MutexRunConfig."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.client.create(build_collection_path(kind, DEFAULT_NAMESPACE), body)

    def wait_for_step(self, path: str, step: str, timeout: float = TIMEOUT_SECONDS) -> Object:
        """Wait until the status of the MutexRunConfig at `path` reports this step; return the MutexRunConfig."""
        return wait_for_object(
            self.client, path, lambda run: (run or {}).get("status", {}).get("step") == step, timeout
        )

    def wait_for_state(self, path: str, predicate: Any, timeout: float = TIMEOUT_SECONDS) -> Object:
        """Wait until `predicate` is true for the object at `path`, or for None if none exists; return the object."""
        return wait_for_object(self.client, path, predicate, timeout)

    def get_pool_selectors(self) -> dict[str, Object]:
        """Return each MachineConfigPool's node selector by the pool's name, with the pool's `paused` as a field."""
        pool_objects = self.client.list(pools.POOLS_PATH)["items"]
        return {pool["metadata"]["name"]: {**pool["spec"]["nodeSelector"], "paused": pool["spec"].get("paused")}
                for pool in pool_objects}  # fmt: skip

    def list_claim_uids(self) -> list[str]:
        """Return for each MachineConfigPool the uid of the run that claims it, or "" if no run claims it."""
        return [pools.get_claim_uid(pool) for pool in self.client.list(pools.POOLS_PATH)["items"]]

    def list_jobs(self) -> list[Object]:
        """Return all Jobs that runs have created."""
        jobs: list[Object] = self.client.list(JOBS_PATH, label_selector=RUN_LABEL)["items"]
        return jobs


def build_job_spec(delay: str = "", **fields: Any) -> Object:
    """Build a Job spec; the Job's pod completes immediately, or after a delay such as 200ms or 1h."""
    metadata = {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": delay}} if delay else {}
    pod = {"containers": [{"name": "mutex", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"metadata": metadata, "spec": pod}, "backoffLimit": 0, **fields}
