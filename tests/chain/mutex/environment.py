"""Test environment for the upgrade mutex: a cluster, and the pools, nodes, rules and runs that tests create."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from eventing.replay.function_client import post_event
from kube.client.api import JSON_PATCH
from kube.client.sync_client import SyncClient
from kube.mutex import pools
from kube.mutex.jobs import NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.objects import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    RULE_KIND,
    RULE_LABEL_PREFIX,
    RUN_KIND,
    RUN_LABEL,
    TARGET_KIND,
    build_collection_path,
    build_path,
)
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.processes import wait_until_ready
from localcluster.product import Product
from tests.functions.event_builders import build_tick
from tests.openshift import FakeCvo, build_pool
from tests.waiting import wait_for_collection, wait_for_object
from tests.workload import AuditLog, start_audit

COUNT_UNDELIVERED_QUERY = "SELECT count(*) FROM delivery"
OLD_VERSION, NEW_VERSION = "4.15.9", "4.16.4"
TIMEOUT_SECONDS = 180.0


class MutexEnvironment:
    """The cluster, the product, the administrator's API client and a fake cluster-version-operator."""

    def __init__(self, cluster: LocalCluster, product: Product | EngineProduct) -> None:
        self.cluster, self.product = cluster, product
        self.client = SyncClient(str(cluster.kubeconfig))
        self.cvo = FakeCvo(self.client)
        self.jobs = f"/apis/batch/v1/namespaces/{DEFAULT_NAMESPACE}/jobs"

    def start_audit(self) -> AuditLog:
        """Return an audit log of all writes to the API server after this call."""
        return start_audit(self.cluster)

    def create_workers(self, role: str, count: int, version: str = OLD_VERSION) -> list[str]:
        """Create `count` worker nodes with a role label; return their names."""
        names = [f"{role}-{number}" for number in range(1, count + 1)]
        self.cluster.create_nodes(*names)
        labels = {WORKER_LABEL: "", VERSION_LABEL: version, "role": role}
        self.client.gather_all(
            *(self.client.api.patch(build_node_path(name), {"metadata": {"labels": labels}}) for name in names)
        )
        return names

    def create_pool(self, name: str, role: str, **spec: Any) -> str:
        """Create a MachineConfigPool for the workers with a role; return its name."""
        body = build_pool(name, {WORKER_LABEL: "", "role": role})
        body["spec"] |= spec
        self.client.create(pools.POOLS_PATH, body)
        return name

    def create_canary(self, name: str = "canary") -> str:
        """Create a canary pool as in the specification; return its name."""
        expressions = [{"key": "isCanary", "operator": "Exists"}]
        self.client.create(pools.POOLS_PATH, build_pool(name, {WORKER_LABEL: ""}, expressions))
        return name

    def create_rule(self, name: str, *, cleanup: bool = False, delay: str = "", **spec: Any) -> str:
        """Create a rule whose Jobs complete immediately, or after `delay`; return the rule's name."""
        rule_spec: Object = {"jobName": name, "jobNamespace": DEFAULT_NAMESPACE, "jobSpec": build_job_spec(delay)}
        rule_spec |= {"cleanUpJobSpec": build_job_spec(delay)} if cleanup else {}
        self.create_object(RULE_KIND, name, {**rule_spec, **spec})
        return name

    def create_target(self, name: str, *pool_names: str) -> str:
        """Create a target that consists of these pools; return its name."""
        self.create_object(TARGET_KIND, name, {"machineConfigPools": list(pool_names)})
        return name

    def create_run_with_two_rules(self, count: int) -> tuple[list[str], str]:
        """Create a run for `count` workers that waits for an upgrade; return the node names and the run's path.

        The run has two rules, one of them with cleanup Jobs.
        """
        names = self.create_workers("blue", count)
        self.create_canary()
        self.create_target("all", self.create_pool("blue", "blue"))
        self.create_rule("first", cleanup=True)
        self.create_rule("second")
        run = self.create_run("example", ["first", "second"], ["all"])
        self.wait_for_step(run, "Waiting")
        return names, run

    def create_run(self, name: str, rules: Iterable[str], targets: Iterable[str], canary: str = "canary") -> str:
        """Create a MutexRunConfig; return its path."""
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
        """Wait until the run has reached this step, and return the run config."""
        return wait_for_object(
            self.client, path, lambda run: (run or {}).get("status", {}).get("step") == step, timeout
        )

    def wait_for_state(self, path: str, predicate: Any, timeout: float = TIMEOUT_SECONDS) -> Object:
        """Wait until `predicate` is true for the object, or for None if no such object exists; return the object."""
        return wait_for_object(self.client, path, predicate, timeout)

    def send_tick(self) -> None:
        """Send a tick, and wait until the delivery has no pending events."""
        post_event(build_tick(), self.product.broker_url)
        self.wait_until_delivered()

    def wait_until_delivered(self) -> None:
        """Wait until the local delivery has no pending events."""
        assert isinstance(self.product, Product)
        with closing(sqlite3.connect(f"file:{self.product.database}?mode=ro", uri=True)) as outbox:
            wait_until_ready(
                "an empty outbox",
                lambda: outbox.execute(COUNT_UNDELIVERED_QUERY).fetchone() == (0,),
                self.product.servers,
            )

    def fix_rule(self, rule: str) -> None:
        """Replace a rule's invalid Job spec with one that the API server accepts."""
        spec = {"jobSpec": build_job_spec()}
        self.client.patch(build_path(RULE_KIND, DEFAULT_NAMESPACE, rule), {"spec": spec})

    def get_node(self, name: str) -> Object:
        """Return the node in its current state."""
        return self.client.get(build_node_path(name))

    def get_pool(self, name: str) -> Object:
        """Return the pool in its current state."""
        return self.client.get(pools.build_pool_path(name))

    def get_selectors_by_pool(self) -> dict[str, Object]:
        """Return pool name → the pool's node selector, with an added field `paused`."""
        pool_objects = self.client.list(pools.POOLS_PATH)["items"]
        return {pool["metadata"]["name"]: {**pool["spec"]["nodeSelector"], "paused": pool["spec"].get("paused")}
                for pool in pool_objects}  # fmt: skip

    def list_claim_uids(self) -> list[str]:
        """Return for each pool the uid of the run that has claimed the pool, or "" for an unclaimed pool."""
        return [pools.get_claim_uid(pool) for pool in self.client.list(pools.POOLS_PATH)["items"]]

    def build_pool_path(self, name: str) -> str:
        """Return the pool's API path."""
        return pools.build_pool_path(name)

    def replace_pool_fields(self, name: str, spec: Object) -> None:
        """Replace these fields of the pool's spec, as if an administrator applied the pool's manifest."""
        patch = [{"op": "add", "path": f"/spec/{field}", "value": value} for field, value in spec.items()]
        self.client.patch(pools.build_pool_path(name), patch, JSON_PATCH)

    def set_node_version(self, node: str, version: str = NEW_VERSION) -> None:
        """Set the node's version label, as the machine-config-operator does after an upgrade."""
        self.client.patch(build_node_path(node), {"metadata": {"labels": {VERSION_LABEL: version}}})

    def remove_rule_labels(self, node: str) -> None:
        """Remove all rule labels from a node, as an administrator might do by hand."""
        labels = self.get_node(node)["metadata"]["labels"]
        removals = {name: None for name in labels if name.startswith(RULE_LABEL_PREFIX)}
        self.client.patch(build_node_path(node), {"metadata": {"labels": removals}})

    def list_labelled_nodes(self) -> set[str]:
        """Return the names of the nodes that have a label that a run has set."""
        items = self.client.list(NODES_PATH)["items"]
        return {
            node["metadata"]["name"]
            for node in items
            if any(
                name.startswith(RULE_LABEL_PREFIX) or name == RUN_LABEL for name in node["metadata"].get("labels") or {}
            )
        }

    def end_job_pod(self, node: str, rule: str, phase: str = "Succeeded") -> None:
        """End the pod of the unfinished Job for this node and rule with `phase`, as kwok would after a delay."""

        def find_unfinished_jobs(jobs: dict[str, Object]) -> list[str]:
            matching_jobs = [
                job
                for job in jobs.values()
                if get_node_and_rule(job) == (node, rule) and not job.get("status", {}).get("conditions")
            ]
            return [job["metadata"]["name"] for job in matching_jobs]

        (name,) = find_unfinished_jobs(
            wait_for_collection(
                self.client, self.jobs, lambda jobs: bool(find_unfinished_jobs(jobs)), TIMEOUT_SECONDS, labels=RUN_LABEL
            )
        )
        pods_path = f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/pods"
        pods = wait_for_collection(
            self.client,
            pods_path,
            lambda pods_by_name: any(pod["status"].get("phase") == "Running" for pod in pods_by_name.values()),
            labels=f"job-name={name}",
        )
        for pod in pods:
            self.client.patch(f"{pods_path}/{pod}/status", {"status": {"phase": phase}})

    def list_jobs(self) -> list[Object]:
        """Return the Jobs that all runs have created."""
        jobs: list[Object] = self.client.list(self.jobs, label_selector=RUN_LABEL)["items"]
        return jobs

    def request_deletion(self, path: str) -> None:
        """Request the deletion of the object."""
        self.client.run(self.client.api.request("DELETE", path))

    def delete_all_objects(self) -> None:
        """Delete all objects that a test has created."""
        for kind in (RUN_KIND, TARGET_KIND, RULE_KIND):
            for custom_resource in self.client.list(build_collection_path(kind, DEFAULT_NAMESPACE))["items"]:
                name = custom_resource["metadata"]["name"]
                self.request_deletion(build_path(kind, DEFAULT_NAMESPACE, name))
                self.wait_for_state(build_path(kind, DEFAULT_NAMESPACE, name), lambda live_object: live_object is None)
        background = {"propagationPolicy": "Background"}
        for path in (self.jobs, pools.POOLS_PATH):
            self.client.run(self.client.api.request("DELETE", path, body=background))
        for node in self.client.list(NODES_PATH, label_selector=WORKER_LABEL)["items"]:
            self.request_deletion(build_node_path(node["metadata"]["name"]))


def get_node_and_rule(job: Object) -> tuple[str, str]:
    """Return the names of the node and the rule that the Job is for."""
    annotations = job["metadata"]["annotations"]
    return annotations[NODE_ANNOTATION], annotations[RULE_ANNOTATION].partition("/")[2]


def build_job_spec(delay: str = "", **fields: Any) -> Object:
    """Build a spec for a Job whose pod completes immediately, or after a delay such as 200ms or 1h."""
    metadata = {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": delay}} if delay else {}
    pod = {"containers": [{"name": "mutex", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"metadata": metadata, "spec": pod}, "backoffLimit": 0, **fields}
