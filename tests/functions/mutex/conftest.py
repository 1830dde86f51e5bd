"""Fixtures and helpers for the tests of the mutex's steps; each test's objects are deleted after it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import Reference
from functions.mutex import resync_runs
from kube.client.api_errors import NotFound
from kube.client.sync_client import Cluster
from kube.mutex import jobs, pools
from kube.mutex.jobs import Outcome, jobs_path
from kube.mutex.objects import (
    API_VERSION,
    NAMESPACE,
    RULE,
    RULE_LABEL,
    RUN,
    RUN_LABEL,
    TARGET,
    collection,
    path,
    path_of,
)
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES, node_path
from kube.paths import Object
from tests.functions.conftest import Functions
from tests.functions.event_builders import resource, tick
from tests.openshift import FakeCvo, pool
from tests.waiting import until, wait_for
from tests.workload import Audit, Workload

OLD, NEW = "4.15.9", "4.16.4"
BEFORE_JOBS = ("check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes", "edit-pools")
NUMBERS = itertools.count(1)
READ = (*(collection(kind) for kind in (RULE, TARGET, RUN)), pools.POOLS, NODES, "/apis/batch/v1/jobs")
"""API paths that a tick lists."""
CONTAINER: Object = {"name": "mutex", "image": "fake"}


def job_spec(**pod: Any) -> Object:
    """Build the spec of a Job with one pod, which no kubelet runs because no node matches its selector."""
    spec = {"containers": [CONTAINER], "restartPolicy": "Never", "nodeSelector": {"nobody": "here"}, **pod}
    return {"template": {"spec": spec}, "backoffLimit": 0}


class Upgrade:
    """An upgrade that is due, with all objects of a run.

    There are a target pool with two workers, a canary pool, a rule with a cleanup Job, a target and a run config.
    """

    def __init__(self, admin: Cluster, work: Workload, functions: Functions) -> None:
        self.admin, self.functions = admin, functions
        self.cvo = FakeCvo(admin)
        self.nodes = sorted(work.node() for _ in range(2))
        for name in self.nodes:
            self.label(name, {WORKER: "", VERSION_LABEL: OLD, "role": "blue"})
        for body in (pool("blue", {WORKER: "", "role": "blue"}), pool("canary", {WORKER: ""}, CANARY)):
            admin.create(pools.POOLS, body)
        self.cvo.want(NEW)
        self.rule = self.create(RULE, "only", rule_spec())
        self.target = self.create(TARGET, "all", {"machineConfigPools": ["blue"]})
        named = {"mutexRules": [{"name": "only"}], "mutexTargets": [{"name": "all"}]}
        self.run = self.create(RUN, "example", {"canary": {"name": "canary"}, **named})
        self.before = {each: self.pool(each)["spec"] for each in ("blue", "canary")}

    def create(self, kind: str, name: str, spec: Object) -> Object:
        """Create a mutex object of this kind and return it."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.admin.create(collection(kind, NAMESPACE), body)

    def add_pool(self, name: str) -> None:
        """Add another pool without nodes to the target."""
        self.admin.create(pools.POOLS, pool(name, {WORKER: "", "role": name}))
        named = {"machineConfigPools": ["blue", name]}
        self.target = self.admin.patch(path(self.target), {"spec": named})

    def other_under_way(self, **more: Object | str) -> Object:
        """Create another run config with an active run over other pools, and return it."""
        named = {"mutexRules": [{"name": "only"}], "mutexTargets": [{"name": "all"}]}
        other = self.create(RUN, "other", {"canary": {"name": "another"}, **named})
        record: Object = {
            "id": f"{other['metadata']['uid']}-1",
            "number": 1,
            "desired": "4.16.4",
            "rules": [],
            "canary": {"name": "another", "uid": "u", "paused": False},
            "pools": {},
            "order": [],
            "nodes": {},
            **more,
        }
        return self.admin.patch(f"{path(other)}/status", {"status": {"record": record}})

    def owner(self, *, is_there: bool) -> str:
        """Return the uid of another run config, which either has no run or does not exist."""
        return str(self.create(RUN, "idle", self.run["spec"])["metadata"]["uid"]) if is_there else "gone"

    def label(self, node: str, labels: Object) -> None:
        """Patch labels of a node."""
        self.admin.patch(node_path(node), {"metadata": {"labels": labels}})

    def remove(self, node: str, *, anew: bool = False) -> None:
        """Delete a node; with `anew`, create it again with the same name and labels, but without the run's labels."""
        known = self.node(node)["metadata"]
        self.admin.delete(node_path(node), uid=known["uid"])
        if anew:
            kept = {label: value for label, value in known["labels"].items() if not label.startswith(RULE_LABEL)}
            kept.pop(RUN_LABEL, None)
            self.admin.create(NODES, {"metadata": {"name": node, "labels": kept}})

    def again(self, item: Object) -> Object:
        """Return the current state of an object."""
        return self.admin.get(path(item))

    def status(self) -> Object:
        """Return the status of the run config."""
        found: Object = self.again(self.run).get("status") or {}
        return found

    def write_record(self, change: Object) -> None:
        """Patch the run's record, as a step does that the test leaves out."""
        self.admin.patch(f"{path(self.run)}/status", {"status": {"record": change}})

    def pool(self, name: str) -> Object:
        """Return the current state of a pool."""
        return self.admin.get(pools.pool_path(name))

    def unpause(self, *names: str) -> None:
        """Unpause pools, as another client may do."""
        for name in names:
            self.admin.patch(pools.pool_path(name), {"spec": {"paused": False}})

    def node(self, name: str) -> Object:
        """Return the current state of a node."""
        return self.admin.get(node_path(name))

    def jobs(self) -> list[Object]:
        """Return the Jobs in the order of their last writes."""
        items: list[Object] = self.admin.list(jobs_path(NAMESPACE))["items"]
        return sorted(items, key=lambda job: int(job["metadata"]["resourceVersion"]))

    def judge(self) -> None:
        """Run `check-rule` and `check-target`."""
        self.functions.answer("check-rule", resource(events.RESOURCE_ADDED, self.rule, RULE))
        self.functions.answer("check-target", resource(events.RESOURCE_ADDED, self.target, TARGET))

    def said(self, kind: str, node: str = "", item: Object | None = None) -> CloudEvent:
        """Build an event of a step about the run, or about another object."""
        about = Reference.of(item or self.run)
        return events.event(kind, "test", about, node, seed=str(next(NUMBERS)))

    def answer(self, step: str, kind: str) -> str:
        """Run a step with an event about the run; return the type of its reply, "" for none."""
        reply = self.functions.answer(step, self.said(kind))
        return reply.get_type() if reply else ""

    def through(self, *steps: str) -> BaseCloudEvent:
        """Run the steps in order and return the last reply.

        The first step gets a `run.found`, each other one the previous reply.
        """
        event: BaseCloudEvent = self.said(events.RUN_FOUND)
        for step in steps:
            reply = self.functions.answer(step, event)
            assert reply is not None, f"{step} answered nothing to {event.get_type()}: {self.status()}"
            event = reply
        return event

    def start(self) -> None:
        """Advance the run until the Jobs of its first node are due."""
        self.judge()
        self.through(*BEFORE_JOBS)

    def end(self, job: Object, kind: str = "Complete") -> None:
        """End the pod of a Job as a kubelet would, and wait until the Job has ended."""
        name, where = job["metadata"]["name"], f"/api/v1/namespaces/{NAMESPACE}/pods"
        phase = "Succeeded" if kind == "Complete" else "Failed"
        for pod in until(self.admin, where, bool, labels=f"job-name={name}"):
            self.admin.patch(f"{where}/{pod}/status", {"status": {"phase": phase}})
        outcome = Outcome(kind)
        wait_for(self.admin, f"{jobs_path(NAMESPACE)}/{name}", lambda found: jobs.outcome(found) is outcome)

    def release(self) -> str:
        """Advance the run until its first node is released, and return that node's name."""
        self.start()
        self.functions.answer("run-job", self.said(events.POOLS_EDITED))
        self.end(self.jobs()[-1])
        reply = self.functions.answer("run-job", self.said(events.JOB_DUE))
        assert reply is not None
        assert reply.get_type() == events.NODE_CLEARED
        assert self.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED
        return self.nodes[0]

    def told_by_a_tick(self) -> list[BaseCloudEvent]:
        """Return the replies of `resync-runs` to a tick."""
        return self.told_by(tick())

    def told_by(self, hint: BaseCloudEvent) -> list[BaseCloudEvent]:
        """Return the replies of `resync-runs` to a hint, once the API server's cache contains all writes."""
        self.admin.together(*(self.admin.api.list(where) for where in READ))  # waits until the cache is up to date
        return resync_runs.resync_runs(hint, self.functions.clusters["resync-runs"])

    def clear(self) -> None:
        """Delete all objects of the upgrade, and remove its labels from the nodes."""
        for kind in (RUN, TARGET, RULE):
            for item in self.admin.list(collection(kind, NAMESPACE))["items"]:
                where = path_of(kind, NAMESPACE, item["metadata"]["name"])
                self.admin.patch(where, {"metadata": {"finalizers": None}})
                self._remove(where)
        self._remove(jobs_path(NAMESPACE))
        self._remove(pools.POOLS)
        for node in self.admin.list(NODES, labels=WORKER)["items"]:
            ours = [name for name in node["metadata"]["labels"] if name.startswith(RULE_LABEL)]
            self.label(node["metadata"]["name"], dict.fromkeys([*ours, RUN_LABEL, WORKER, VERSION_LABEL, "role"]))

    def _remove(self, where: str) -> None:
        try:
            self.admin.run(self.admin.api.request("DELETE", where, body={"propagationPolicy": "Background"}))
        except NotFound:
            return


CANARY = [{"key": "isCanary", "operator": "Exists"}]


def rule_spec(**more: Any) -> Object:
    """Build the spec of a rule with a main Job and a cleanup Job."""
    return {"jobName": "only", "jobNamespace": NAMESPACE, "jobSpec": job_spec(), "cleanUpJobSpec": job_spec(), **more}


@pytest.fixture(scope="package")
def versioned(admin: Cluster) -> None:
    """Create the ClusterVersion at the initial version."""
    FakeCvo(admin).install(OLD)


@pytest.fixture
def upgrade(admin: Cluster, work: Workload, functions: Functions, versioned: None) -> Iterator[Upgrade]:
    """Yield the objects of an upgrade before any step has run."""
    made = Upgrade(admin, work, functions)
    yield made
    made.clear()


@pytest.fixture
def written(upgrade: Upgrade, audit: Audit) -> Audit:
    """Return an audit of the API server's writes after the upgrade's objects were created."""
    return audit
