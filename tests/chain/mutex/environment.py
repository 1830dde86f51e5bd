"""The environment of the upgrade mutex tests: a cluster, and the pools, nodes, rules and runs that the tests create."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from eventing.replay.function_client import post
from kube.client.api import JSON_PATCH
from kube.client.sync_client import Cluster
from kube.mutex import pools
from kube.mutex.jobs import NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.objects import API_VERSION, NAMESPACE, RULE, RULE_LABEL, RUN, RUN_LABEL, TARGET, collection, path_of
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.engine_product import EngineProduct
from localcluster.processes import await_ready
from localcluster.product import Product
from tests.functions.event_builders import tick
from tests.openshift import FakeCvo, pool
from tests.waiting import until, wait_for
from tests.workload import Audit, audit

LEFT = "SELECT count(*) FROM delivery"
OLD, NEW = "4.15.9", "4.16.4"
SECONDS = 180.0


class Stage:
    """The cluster, the product, the administrator's API client and a fake cluster-version-operator."""

    def __init__(self, cluster: LocalCluster, product: Product | EngineProduct) -> None:
        self.cluster, self.product = cluster, product
        self.admin = Cluster(str(cluster.kubeconfig))
        self.cvo = FakeCvo(self.admin)
        self.jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"

    def audit(self) -> Audit:
        """Return an audit log that contains the writes from now on."""
        return audit(self.cluster)

    def workers(self, role: str, count: int, version: str = OLD) -> list[str]:
        """Create `count` workers of a role; return their names."""
        names = [f"{role}-{number}" for number in range(1, count + 1)]
        self.cluster.add_named(*names)
        labels = {WORKER: "", VERSION_LABEL: version, "role": role}
        self.admin.together(
            *(self.admin.api.patch(node_path(name), {"metadata": {"labels": labels}}) for name in names)
        )
        return names

    def pool(self, name: str, role: str, **spec: Any) -> str:
        """Create a pool of the workers of a role; return its name."""
        body = pool(name, {WORKER: "", "role": role})
        body["spec"] |= spec
        self.admin.create(pools.POOLS, body)
        return name

    def canary(self, name: str = "canary") -> str:
        """Create the canary of the specification; return its name."""
        expressions = [{"key": "isCanary", "operator": "Exists"}]
        self.admin.create(pools.POOLS, pool(name, {WORKER: ""}, expressions))
        return name

    def rule(self, name: str, *, cleanup: bool = False, delay: str = "", **spec: Any) -> str:
        """Create a rule whose Jobs complete at once, or after `delay`; return its name."""
        wanted: Object = {"jobName": name, "jobNamespace": NAMESPACE, "jobSpec": job_spec(delay)}
        wanted |= {"cleanUpJobSpec": job_spec(delay)} if cleanup else {}
        self.create(RULE, name, {**wanted, **spec})
        return name

    def target(self, name: str, *names: str) -> str:
        """Create a target of these pools; return its name."""
        self.create(TARGET, name, {"machineConfigPools": list(names)})
        return name

    def with_two_rules(self, count: int) -> tuple[list[str], str]:
        """Create a run over `count` workers that waits for an upgrade; return node names and run path.

        The run has two rules, one of them with cleanup Jobs.
        """
        names = self.workers("blue", count)
        self.canary()
        self.target("all", self.pool("blue", "blue"))
        self.rule("first", cleanup=True)
        self.rule("second")
        run = self.run("example", ["first", "second"], ["all"])
        self.reaches(run, "Waiting")
        return names, run

    def run(self, name: str, rules: Iterable[str], targets: Iterable[str], canary: str = "canary") -> str:
        """Create a run config; return its path."""
        named = {"mutexRules": [{"name": each} for each in rules], "mutexTargets": [{"name": each} for each in targets]}
        self.create(RUN, name, {"canary": {"name": canary}, **named})
        return path_of(RUN, NAMESPACE, name)

    def create(self, kind: str, name: str, spec: Object) -> Object:
        """Create a rule, a target or a run config."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.admin.create(collection(kind, NAMESPACE), body)

    def reaches(self, path: str, step: str, seconds: float = SECONDS) -> Object:
        """Return the run config once it is at this step."""
        return wait_for(self.admin, path, lambda item: (item or {}).get("status", {}).get("step") == step, seconds)

    def until(self, path: str, predicate: Any, seconds: float = SECONDS) -> Object:
        """Return the object once `predicate` is true for it, or for None if it does not exist."""
        return wait_for(self.admin, path, predicate, seconds)

    def tick(self) -> None:
        """Send a tick now; return when the delivery has no event left."""
        post(tick(), self.product.broker_url)
        self.settle()

    def settle(self) -> None:
        """Wait until the local delivery has no event left."""
        assert isinstance(self.product, Product)
        with closing(sqlite3.connect(f"file:{self.product.database}?mode=ro", uri=True)) as outbox:
            await_ready("an empty outbox", lambda: outbox.execute(LEFT).fetchone() == (0,), self.product.servers)

    def amend(self, rule: str) -> None:
        """Give a rule a Job spec that the API server accepts."""
        spec = {"jobSpec": job_spec()}
        self.admin.patch(path_of(RULE, NAMESPACE, rule), {"spec": spec})

    def node(self, name: str) -> Object:
        """Return the node in its current state."""
        return self.admin.get(node_path(name))

    def pool_now(self, name: str) -> Object:
        """Return the pool in its current state."""
        return self.admin.get(pools.pool_path(name))

    def selectors(self) -> dict[str, Object]:
        """Return pool → its node selector and whether it is paused."""
        found = self.admin.list(pools.POOLS)["items"]
        return {each["metadata"]["name"]: {**each["spec"]["nodeSelector"], "paused": each["spec"].get("paused")}
                for each in found}  # fmt: skip

    def claims(self) -> list[str]:
        """Return, for each pool, the uid of the run that claims it."""
        return [pools.claimed_by(pool) for pool in self.admin.list(pools.POOLS)["items"]]

    def pool_path(self, name: str) -> str:
        """Return the pool's path."""
        return pools.pool_path(name)

    def edit_pool(self, name: str, spec: Object) -> None:
        """Replace these fields of the pool's spec, as an administrator does who applies the pool's file."""
        change = [{"op": "add", "path": f"/spec/{field}", "value": value} for field, value in spec.items()]
        self.admin.patch(pools.pool_path(name), change, JSON_PATCH)

    def upgrade(self, node: str, version: str = NEW) -> None:
        """Write the node's version label, as the machine-config-operator does after an upgrade."""
        self.admin.patch(node_path(node), {"metadata": {"labels": {VERSION_LABEL: version}}})

    def ungate(self, node: str) -> None:
        """Remove all rule labels from a node, as an administrator might by hand."""
        labels = self.node(node)["metadata"]["labels"]
        gone = {name: None for name in labels if name.startswith(RULE_LABEL)}
        self.admin.patch(node_path(node), {"metadata": {"labels": gone}})

    def labelled(self) -> set[str]:
        """Return the nodes that carry any label of a run."""
        items = self.admin.list(NODES)["items"]
        return {
            node["metadata"]["name"]
            for node in items
            if any(name.startswith(RULE_LABEL) or name == RUN_LABEL for name in node["metadata"].get("labels") or {})
        }

    def end_job(self, node: str, rule: str, phase: str = "Succeeded") -> None:
        """End the pod of the newest unfinished Job of this node and rule, in place of kwok."""

        def newest(jobs: dict[str, Object]) -> list[str]:
            mine = [
                job
                for job in jobs.values()
                if told(job) == (node, rule) and not job.get("status", {}).get("conditions")
            ]
            return [job["metadata"]["name"] for job in mine]

        (name,) = newest(until(self.admin, self.jobs, lambda jobs: bool(newest(jobs)), SECONDS, labels=RUN_LABEL))
        where = f"/api/v1/namespaces/{NAMESPACE}/pods"
        pods = until(
            self.admin,
            where,
            lambda found: any(pod["status"].get("phase") == "Running" for pod in found.values()),
            labels=f"job-name={name}",
        )
        for pod in pods:
            self.admin.patch(f"{where}/{pod}/status", {"status": {"phase": phase}})

    def created(self) -> list[Object]:
        """Return the Jobs of all runs."""
        items: list[Object] = self.admin.list(self.jobs, labels=RUN_LABEL)["items"]
        return items

    def delete(self, path: str) -> None:
        """Request the deletion of the object."""
        self.admin.run(self.admin.api.request("DELETE", path))

    def clear(self) -> None:
        """Delete all objects of a test."""
        for kind in (RUN, TARGET, RULE):
            for item in self.admin.list(collection(kind, NAMESPACE))["items"]:
                name = item["metadata"]["name"]
                self.delete(path_of(kind, NAMESPACE, name))
                self.until(path_of(kind, NAMESPACE, name), lambda found: found is None)
        background = {"propagationPolicy": "Background"}
        for where in (self.jobs, pools.POOLS):
            self.admin.run(self.admin.api.request("DELETE", where, body=background))
        for node in self.admin.list(NODES, labels=WORKER)["items"]:
            self.delete(node_path(node["metadata"]["name"]))


def told(job: Object) -> tuple[str, str]:
    """Return the node and the rule's name that the Job is for."""
    annotations = job["metadata"]["annotations"]
    return annotations[NODE_ANNOTATION], annotations[RULE_ANNOTATION].partition("/")[2]


def job_spec(delay: str = "", **more: Any) -> Object:
    """Build a Job spec with one pod that ends at once, or after a delay such as 200ms or 1h."""
    noted = {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": delay}} if delay else {}
    pod = {"containers": [{"name": "mutex", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"metadata": noted, "spec": pod}, "backoffLimit": 0, **more}
