"""A cluster with the upgrade mutex at work, and what its tests put there: pools, nodes, rules, runs."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from typing import Any

from eventing.replay.again import post
from kube.door.sync_client import Cluster
from kube.mutex import pools
from kube.mutex.objects import API_VERSION, NAMESPACE, RULE, RULE_LABEL, RUN, RUN_LABEL, TARGET, collection, path_of
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.functions.hints import tick
from tests.openshift import FakeCvo, pool
from tests.waiting import wait_for
from tests.workload import Audit, audit

NUMBERS = itertools.count(1)
OLD, NEW = "4.15.9", "4.16.4"
SECONDS = 60.0


class Stage:
    """What a test of runs acts on."""

    def __init__(self, cluster: LocalCluster, product: Product) -> None:
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
        """Send a tick now."""
        post(tick(), self.product.broker_url)

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

    def labelled(self) -> set[str]:
        """The nodes that carry any label of a run."""
        items = self.admin.list(NODES)["items"]
        return {
            node["metadata"]["name"]
            for node in items
            if any(name.startswith(RULE_LABEL) or name == RUN_LABEL for name in node["metadata"].get("labels") or {})
        }

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


def job_spec(delay: str = "", **more: Any) -> Object:
    """A Job of one pod, which ends at once, or after a time as 200ms or 1h."""
    noted = {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": delay}} if delay else {}
    pod = {"containers": [{"name": "mutex", "image": "fake"}], "restartPolicy": "Never"}
    return {"template": {"metadata": noted, "spec": pod}, "backoffLimit": 0, **more}
