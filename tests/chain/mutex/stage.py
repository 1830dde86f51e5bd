"""A cluster with the upgrade mutex at work, and what its tests put there: pools, nodes, rules, runs."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from typing import Any

from eventing.replay.again import post
from kube.door.api import JSON_PATCH
from kube.door.sync_client import Cluster
from kube.mutex import pools
from kube.mutex.jobs import NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.objects import API_VERSION, NAMESPACE, RULE, RULE_LABEL, RUN, RUN_LABEL, TARGET, collection, path_of
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.engine import EngineProduct
from localcluster.processes import await_ready
from localcluster.product import Product
from tests.functions.hints import tick
from tests.openshift import FakeCvo, pool
from tests.waiting import until, wait_for
from tests.workload import Audit, audit

LEFT = "SELECT count(*) FROM delivery"
OLD, NEW = "4.15.9", "4.16.4"
SECONDS = 180.0


class Stage:
    """What a test of runs acts on."""

    def __init__(self, cluster: LocalCluster, product: Product | EngineProduct) -> None:
        self.cluster, self.product = cluster, product
        self.admin = Cluster(str(cluster.kubeconfig))
        self.cvo = FakeCvo(self.admin)
        self.jobs = f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs"

    def audit(self) -> Audit:
        """The writes from now on."""
        return audit(self.cluster)

    def workers(self, role: str, count: int, version: str = OLD) -> list[str]:
        """Make that many workers of a role; returns their names."""
        names = [f"{role}-{number}" for number in range(1, count + 1)]
        self.cluster.add_named(*names)
        labels = {WORKER: "", VERSION_LABEL: version, "role": role}
        self.admin.together(
            *(self.admin.api.patch(node_path(name), {"metadata": {"labels": labels}}) for name in names)
        )
        return names

    def pool(self, name: str, role: str, **spec: Any) -> str:
        """Make a pool of the workers of a role; returns its name."""
        body = pool(name, {WORKER: "", "role": role})
        body["spec"] |= spec
        self.admin.create(pools.POOLS, body)
        return name

    def canary(self, name: str = "canary") -> str:
        """Make the canary of the document; returns its name."""
        expressions = [{"key": "isCanary", "operator": "Exists"}]
        self.admin.create(pools.POOLS, pool(name, {WORKER: ""}, expressions))
        return name

    def rule(self, name: str, *, cleanup: bool = False, delay: str = "", **spec: Any) -> str:
        """Make a rule whose Jobs end at once, or after `delay`; returns its name."""
        wanted: Object = {"jobName": name, "jobNamespace": NAMESPACE, "jobSpec": job_spec(delay)}
        wanted |= {"cleanUpJobSpec": job_spec(delay)} if cleanup else {}
        self.create(RULE, name, {**wanted, **spec})
        return name

    def target(self, name: str, *names: str) -> str:
        """Make a target of these pools; returns its name."""
        self.create(TARGET, name, {"machineConfigPools": list(names)})
        return name

    def with_two_rules(self, count: int) -> tuple[list[str], str]:
        """Have a run over so many workers wait for its upgrade, one of its rules with cleanup; names and its path."""
        names = self.workers("blue", count)
        self.canary()
        self.target("all", self.pool("blue", "blue"))
        self.rule("first", cleanup=True)
        self.rule("second")
        run = self.run("example", ["first", "second"], ["all"])
        self.reaches(run, "Waiting")
        return names, run

    def run(self, name: str, rules: Iterable[str], targets: Iterable[str], canary: str = "canary") -> str:
        """Make a run config; returns its path."""
        named = {"mutexRules": [{"name": each} for each in rules], "mutexTargets": [{"name": each} for each in targets]}
        self.create(RUN, name, {"canary": {"name": canary}, **named})
        return path_of(RUN, NAMESPACE, name)

    def create(self, kind: str, name: str, spec: Object) -> Object:
        """Make an object of ours."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.admin.create(collection(kind, NAMESPACE), body)

    def reaches(self, path: str, step: str, seconds: float = SECONDS) -> Object:
        """The run config once it is at this step."""
        return wait_for(self.admin, path, lambda item: (item or {}).get("status", {}).get("step") == step, seconds)

    def until(self, path: str, predicate: Any, seconds: float = SECONDS) -> Object:
        """The object once it is as wanted; None is told for one that is not there."""
        return wait_for(self.admin, path, predicate, seconds)

    def tick(self) -> None:
        """Send a tick now; return when the delivery has nothing left of it."""
        post(tick(), self.product.broker_url)
        self.settle()

    def settle(self) -> None:
        """Wait until the local delivery has nothing left."""
        assert isinstance(self.product, Product)
        with closing(sqlite3.connect(f"file:{self.product.database}?mode=ro", uri=True)) as outbox:
            await_ready("an empty outbox", lambda: outbox.execute(LEFT).fetchone() == (0,), self.product.servers)

    def amend(self, rule: str) -> None:
        """Give a rule Jobs that the API server takes."""
        spec = {"jobSpec": job_spec()}
        self.admin.patch(path_of(RULE, NAMESPACE, rule), {"spec": spec})

    def node(self, name: str) -> Object:
        """A node as it is now."""
        return self.admin.get(node_path(name))

    def pool_now(self, name: str) -> Object:
        """A pool as it is now."""
        return self.admin.get(pools.pool_path(name))

    def selectors(self) -> dict[str, Object]:
        """Pool → its selector and whether it is paused."""
        found = self.admin.list(pools.POOLS)["items"]
        return {each["metadata"]["name"]: {**each["spec"]["nodeSelector"], "paused": each["spec"].get("paused")}
                for each in found}  # fmt: skip

    def claims(self) -> list[str]:
        """By whom each pool is claimed."""
        return [pools.claimed_by(pool) for pool in self.admin.list(pools.POOLS)["items"]]

    def pool_path(self, name: str) -> str:
        """Path of a pool."""
        return pools.pool_path(name)

    def edit_pool(self, name: str, spec: Object) -> None:
        """Write these fields of a pool as who replaces it by his file: lists and all."""
        change = [{"op": "add", "path": f"/spec/{field}", "value": value} for field, value in spec.items()]
        self.admin.patch(pools.pool_path(name), change, JSON_PATCH)

    def upgrade(self, node: str, version: str = NEW) -> None:
        """Write a node's version, as the machine-config-operator does in the end."""
        self.admin.patch(node_path(node), {"metadata": {"labels": {VERSION_LABEL: version}}})

    def ungate(self, node: str) -> None:
        """Take the labels of all rules off a node, as somebody's hand would."""
        labels = self.node(node)["metadata"]["labels"]
        gone = {name: None for name in labels if name.startswith(RULE_LABEL)}
        self.admin.patch(node_path(node), {"metadata": {"labels": gone}})

    def labelled(self) -> set[str]:
        """The nodes that carry any label of a run."""
        items = self.admin.list(NODES)["items"]
        return {
            node["metadata"]["name"]
            for node in items
            if any(name.startswith(RULE_LABEL) or name == RUN_LABEL for name in node["metadata"].get("labels") or {})
        }

    def end_job(self, node: str, rule: str, phase: str = "Succeeded") -> None:
        """Have the pod of a node's newest Job of this rule end; the Job's pods wait for an hour by themselves."""

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
        """The Jobs of runs."""
        items: list[Object] = self.admin.list(self.jobs, labels=RUN_LABEL)["items"]
        return items

    def delete(self, path: str) -> None:
        """Ask for a deletion."""
        self.admin.run(self.admin.api.request("DELETE", path))

    def clear(self) -> None:
        """Take away all that a test has made."""
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
    """The node and the name of the rule that a Job is for."""
    annotations = job["metadata"]["annotations"]
    return annotations[NODE_ANNOTATION], annotations[RULE_ANNOTATION].partition("/")[2]


def job_spec(delay: str = "", **more: Any) -> Object:
    """A Job of one pod, which ends at once, or after a time as 200ms or 1h."""
    noted = {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": delay}} if delay else {}
    pod = {"containers": [{"name": "mutex", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"metadata": noted, "spec": pod}, "backoffLimit": 0, **more}
