"""Test environment for upgrade runs: a cluster, and helpers that create MachineConfigPools, nodes, rules and runs."""

from __future__ import annotations

from eventing.replay.function_client import post_event
from kube.client.api import JSON_PATCH
from kube.client.sync_client import SyncClient
from kube.mutex import pools
from kube.mutex.jobs import NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.objects import (
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
from localcluster.audit_log import AuditLog
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.product import Product
from localcluster.simulators.openshift import FakeCvo
from localcluster.simulators.upgrade_objects import (
    JOBS_PATH,
    NEW_VERSION,
    OLD_VERSION,
    TIMEOUT_SECONDS,
    UpgradeObjects,
    build_job_spec,
)
from localcluster.waiting import wait_for_collection
from tests.functions.event_builders import build_tick


class MutexEnvironment(UpgradeObjects):
    """The cluster, the product, the administrator's API client and a fake cluster-version-operator."""

    def __init__(self, cluster: LocalCluster, product: Product | EngineProduct) -> None:
        super().__init__(SyncClient(str(cluster.kubeconfig)))
        self.cluster, self.product = cluster, product
        self.cvo = FakeCvo(self.client)

    def start_audit(self) -> AuditLog:
        """Return an audit log of all writes to the API server after this call."""
        return AuditLog(self.cluster.audit_log)

    def create_workers(self, role: str, count: int, version: str = OLD_VERSION) -> list[str]:
        """Create `count` worker nodes with a role label; return their names."""
        names = [f"{role}-{number}" for number in range(1, count + 1)]
        self.cluster.create_nodes(*names)
        self.label_workers(names, role, version)
        return names

    def create_run_with_two_rules(self, count: int) -> tuple[list[str], str]:
        """Create a run for `count` workers that waits for an upgrade; return the node names and the run's API path.

        The run has two MutexRules, one of them with cleanup Jobs.
        """
        names = self.create_workers("blue", count)
        self.create_canary()
        self.create_target("all", self.create_pool("blue", "blue"))
        self.create_rule("first", cleanup=True)
        self.create_rule("second")
        run = self.create_run("example", ["first", "second"], ["all"])
        self.wait_for_step(run, "Waiting")
        return names, run

    def send_tick(self) -> None:
        """Send a resync tick, and wait until no events are pending delivery."""
        post_event(build_tick(), self.product.broker_url)
        self.wait_until_delivered()

    def wait_until_delivered(self) -> None:
        """Wait until no events are pending local delivery."""
        assert isinstance(self.product, Product)
        self.product.wait_until_delivered()

    def fix_rule(self, rule: str) -> None:
        """Replace a MutexRule's invalid Job spec with one that the API server accepts."""
        spec = {"jobSpec": build_job_spec()}
        self.client.patch(build_path(RULE_KIND, DEFAULT_NAMESPACE, rule), {"spec": spec})

    def get_node(self, name: str) -> Object:
        """Return the node in its current state."""
        return self.client.get(build_node_path(name))

    def get_pool(self, name: str) -> Object:
        """Return the pool in its current state."""
        return self.client.get(pools.build_pool_path(name))

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
        """Return the names of the nodes that have a label set by a run."""
        items = self.client.list(NODES_PATH)["items"]
        return {
            node["metadata"]["name"]
            for node in items
            if any(
                name.startswith(RULE_LABEL_PREFIX) or name == RUN_LABEL for name in node["metadata"].get("labels") or {}
            )
        }

    def end_job_pod(self, node: str, rule: str, phase: str = "Succeeded") -> None:
        """Set the pod of this node's and rule's unfinished Job to `phase`, as kwok does after a delay."""

        def find_unfinished_jobs(jobs: dict[str, Object]) -> list[str]:
            matching_jobs = [
                job
                for job in jobs.values()
                if get_node_and_rule(job) == (node, rule) and not job.get("status", {}).get("conditions")
            ]
            return [job["metadata"]["name"] for job in matching_jobs]

        (name,) = find_unfinished_jobs(
            wait_for_collection(
                self.client, JOBS_PATH, lambda jobs: bool(find_unfinished_jobs(jobs)), TIMEOUT_SECONDS, labels=RUN_LABEL
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

    def request_deletion(self, path: str) -> None:
        """Request the deletion of the object."""
        self.client.run(self.client.api.request("DELETE", path))

    def delete_all_objects(self) -> None:
        """Delete all objects that tests have created."""
        for kind in (RUN_KIND, TARGET_KIND, RULE_KIND):
            for custom_resource in self.client.list(build_collection_path(kind, DEFAULT_NAMESPACE))["items"]:
                name = custom_resource["metadata"]["name"]
                self.request_deletion(build_path(kind, DEFAULT_NAMESPACE, name))
                self.wait_for_state(build_path(kind, DEFAULT_NAMESPACE, name), lambda live_object: live_object is None)
        background = {"propagationPolicy": "Background"}
        for path in (JOBS_PATH, pools.POOLS_PATH):
            self.client.run(self.client.api.request("DELETE", path, body=background))
        for node in self.client.list(NODES_PATH, label_selector=WORKER_LABEL)["items"]:
            self.request_deletion(build_node_path(node["metadata"]["name"]))


def get_node_and_rule(job: Object) -> tuple[str, str]:
    """Return the names of the node and the rule that the Job is for."""
    annotations = job["metadata"]["annotations"]
    return annotations[NODE_ANNOTATION], annotations[RULE_ANNOTATION].partition("/")[2]
