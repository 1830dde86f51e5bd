"""Fixtures and helpers for the tests of the upgrade mutex's steps, which delete each test's objects afterwards."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from cloudevents.core.base import BaseCloudEvent
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.events import ObjectReference
from functions.mutex import resync_runs
from kube.client.api_errors import NotFound
from kube.client.sync_client import SyncClient
from kube.mutex import jobs, pools
from kube.mutex.jobs import JobOutcome, build_jobs_path
from kube.mutex.objects import (
    API_VERSION,
    DEFAULT_NAMESPACE,
    RULE_KIND,
    RULE_LABEL_PREFIX,
    RUN_KIND,
    RUN_LABEL,
    TARGET_KIND,
    build_collection_path,
    build_object_path,
    build_path,
)
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import NODES_PATH, build_node_path
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.simulators.openshift import FakeCvo, build_pool
from localcluster.waiting import wait_for_collection, wait_for_object
from tests.functions.conftest import Functions
from tests.functions.event_builders import build_resource_event, build_tick
from tests.workload import Workload

OLD_VERSION, NEW_VERSION = "4.15.9", "4.16.4"
BEFORE_JOBS = ("check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes", "edit-pools")
EVENT_NUMBERS = itertools.count(1)
TICK_LIST_PATHS = (
    *(build_collection_path(kind) for kind in (RULE_KIND, TARGET_KIND, RUN_KIND)),
    pools.POOLS_PATH,
    NODES_PATH,
    "/apis/batch/v1/jobs",
)
"""API paths that `resync-runs` lists at each tick."""
CONTAINER: Object = {"name": "mutex", "image": "fake"}


def build_job_spec(**pod_spec_fields: Any) -> Object:
    """Build the spec of a Job with one pod that is never scheduled, because no node matches its node selector."""
    spec = {"containers": [CONTAINER], "restartPolicy": "Never", "nodeSelector": {"nobody": "here"}, **pod_spec_fields}
    return {"template": {"spec": spec}, "backoffLimit": 0}


class UpgradeScenario:
    """A due upgrade, with all objects that an upgrade run needs.

    The objects are a target pool with two workers, a canary pool, a MutexRule with a cleanup Job, a target and a
    MutexRunConfig.
    """

    def __init__(self, administrator_client: SyncClient, workload: Workload, functions: Functions) -> None:
        self.administrator_client, self.functions = administrator_client, functions
        self.cvo = FakeCvo(administrator_client)
        self.nodes = sorted(workload.take_node() for _ in range(2))
        for name in self.nodes:
            self.patch_node_labels(name, {WORKER_LABEL: "", VERSION_LABEL: OLD_VERSION, "role": "blue"})
        for body in (
            build_pool("blue", {WORKER_LABEL: "", "role": "blue"}),
            build_pool("canary", {WORKER_LABEL: ""}, CANARY_EXPRESSIONS),
        ):
            administrator_client.create(pools.POOLS_PATH, body)
        self.cvo.set_desired_version(NEW_VERSION)
        self.rule = self.create_object(RULE_KIND, "only", build_rule_spec())
        self.target = self.create_object(TARGET_KIND, "all", {"machineConfigPools": ["blue"]})
        references = {"mutexRules": [{"name": "only"}], "mutexTargets": [{"name": "all"}]}
        self.run_config = self.create_object(RUN_KIND, "example", {"canary": {"name": "canary"}, **references})
        self.original_pool_specs = {name: self.read_pool(name)["spec"] for name in ("blue", "canary")}

    def create_object(self, kind: str, name: str, spec: Object) -> Object:
        """Create a mutex object of this kind and return it."""
        body = {"apiVersion": API_VERSION, "kind": kind, "metadata": {"name": name}, "spec": spec}
        return self.administrator_client.create(build_collection_path(kind, DEFAULT_NAMESPACE), body)

    def add_pool(self, name: str) -> None:
        """Create a MachineConfigPool without nodes and add it to the target."""
        self.administrator_client.create(pools.POOLS_PATH, build_pool(name, {WORKER_LABEL: "", "role": name}))
        spec = {"machineConfigPools": ["blue", name]}
        self.target = self.administrator_client.patch(build_object_path(self.target), {"spec": spec})

    def create_other_active_run(self, **record_fields: Object | str) -> Object:
        """Create another MutexRunConfig with an active run on other pools, and return it."""
        references = {"mutexRules": [{"name": "only"}], "mutexTargets": [{"name": "all"}]}
        run_config = self.create_object(RUN_KIND, "other", {"canary": {"name": "another"}, **references})
        record: Object = {
            "id": f"{run_config['metadata']['uid']}-1",
            "number": 1,
            "desired": "4.16.4",
            "rules": [],
            "canary": {"name": "another", "uid": "u", "paused": False},
            "pools": {},
            "order": [],
            "nodes": {},
            **record_fields,
        }
        return self.administrator_client.patch(
            f"{build_object_path(run_config)}/status", {"status": {"record": record}}
        )

    def get_idle_run_config_uid(self, *, exists: bool) -> str:
        """Create a MutexRunConfig without a run and return its uid; with `exists=False`, return an unused uid."""
        return (
            str(self.create_object(RUN_KIND, "idle", self.run_config["spec"])["metadata"]["uid"]) if exists else "gone"
        )

    def patch_node_labels(self, node: str, labels: Object) -> None:
        """Patch a node's labels."""
        self.administrator_client.patch(build_node_path(node), {"metadata": {"labels": labels}})

    def delete_node(self, node: str, *, recreate: bool = False) -> None:
        """Delete a node; with `recreate`, create a node with the same name and labels, but without the run's labels."""
        metadata = self.read_node(node)["metadata"]
        self.administrator_client.delete(build_node_path(node), uid=metadata["uid"])
        if recreate:
            labels = {
                label: value for label, value in metadata["labels"].items() if not label.startswith(RULE_LABEL_PREFIX)
            }
            labels.pop(RUN_LABEL, None)
            self.administrator_client.create(NODES_PATH, {"metadata": {"name": node, "labels": labels}})

    def read_object(self, mutex_object: Object) -> Object:
        """Return the current state of a mutex object."""
        return self.administrator_client.get(build_object_path(mutex_object))

    def read_status(self) -> Object:
        """Return the status of the MutexRunConfig."""
        status: Object = self.read_object(self.run_config).get("status") or {}
        return status

    def write_record(self, change: Object) -> None:
        """Patch the run's record like a step that the test skips."""
        self.administrator_client.patch(f"{build_object_path(self.run_config)}/status", {"status": {"record": change}})

    def read_pool(self, name: str) -> Object:
        """Return the current state of a MachineConfigPool."""
        return self.administrator_client.get(pools.build_pool_path(name))

    def unpause(self, *names: str) -> None:
        """Unpause MachineConfigPools, as another client may do during a run."""
        for name in names:
            self.administrator_client.patch(pools.build_pool_path(name), {"spec": {"paused": False}})

    def read_node(self, name: str) -> Object:
        """Return the current state of a node."""
        return self.administrator_client.get(build_node_path(name))

    def list_jobs(self) -> list[Object]:
        """Return the run's Jobs in the order in which they were last written."""
        items: list[Object] = self.administrator_client.list(build_jobs_path(DEFAULT_NAMESPACE))["items"]
        return sorted(items, key=lambda job: int(job["metadata"]["resourceVersion"]))

    def check_rule_and_target(self) -> None:
        """Run `check-rule` and `check-target`."""
        self.functions.invoke("check-rule", build_resource_event(events.RESOURCE_ADDED, self.rule, RULE_KIND))
        self.functions.invoke("check-target", build_resource_event(events.RESOURCE_ADDED, self.target, TARGET_KIND))

    def build_event(self, event_type: str, node: str = "", mutex_object: Object | None = None) -> CloudEvent:
        """Build an event about the MutexRunConfig or another mutex object as a step would emit it."""
        reference = ObjectReference.from_object(mutex_object or self.run_config)
        return events.build_event(event_type, "test", reference, node, seed=str(next(EVENT_NUMBERS)))

    def run_step(self, step: str, event_type: str) -> str:
        """Run a step with an event about the run, and return the type of the step's reply, or "" without a reply."""
        reply = self.functions.invoke(step, self.build_event(event_type))
        return reply.get_type() if reply else ""

    def run_steps(self, *steps: str) -> BaseCloudEvent:
        """Run the steps in order and return the last reply.

        The first step receives a `run.check_pending` event, and each later step receives the previous reply.
        """
        event: BaseCloudEvent = self.build_event(events.RUN_CHECK_PENDING)
        for step in steps:
            reply = self.functions.invoke(step, event)
            assert reply is not None, f"{step} returned no reply to {event.get_type()}: {self.read_status()}"
            event = reply
        return event

    def advance_to_jobs(self) -> None:
        """Advance the run until the Jobs of its first node are due."""
        self.check_rule_and_target()
        self.run_steps(*BEFORE_JOBS)

    def end_job(self, job: Object, condition_type: str = "Complete") -> None:
        """Terminate the pod of a Job as a kubelet would, and wait until the Job has this condition."""
        name, pods_path = job["metadata"]["name"], f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/pods"
        phase = "Succeeded" if condition_type == "Complete" else "Failed"
        for pod in wait_for_collection(self.administrator_client, pods_path, bool, labels=f"job-name={name}"):
            self.administrator_client.patch(f"{pods_path}/{pod}/status", {"status": {"phase": phase}})
        outcome = JobOutcome(condition_type)
        wait_for_object(
            self.administrator_client,
            f"{build_jobs_path(DEFAULT_NAMESPACE)}/{name}",
            lambda current: jobs.get_job_outcome(current) is outcome,
        )

    def advance_to_release(self) -> str:
        """Advance the run until its first node is released, and return that node's name."""
        self.advance_to_jobs()
        self.functions.invoke("run-job", self.build_event(events.POOLS_EDITED))
        self.end_job(self.list_jobs()[-1])
        reply = self.functions.invoke("run-job", self.build_event(events.JOB_DUE))
        assert reply is not None
        assert reply.get_type() == events.NODE_PREJOBS_DONE
        assert self.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED
        return self.nodes[0]

    def resync_by_tick(self) -> list[BaseCloudEvent]:
        """Return the replies of `resync-runs` to a tick."""
        return self.resync_by_hint(build_tick())

    def resync_by_hint(self, hint: BaseCloudEvent) -> list[BaseCloudEvent]:
        """Return the replies of `resync-runs` to a hint that arrives after the API server's cache is up to date."""
        # A list request waits until the API server's cache is up to date.
        self.administrator_client.gather_all(*(self.administrator_client.api.list(path) for path in TICK_LIST_PATHS))
        return resync_runs.resync_runs(hint, self.functions.clusters["resync-runs"])

    def delete_all(self) -> None:
        """Delete all objects of the upgrade, and remove the run's labels from the nodes."""
        for kind in (RUN_KIND, TARGET_KIND, RULE_KIND):
            for mutex_object in self.administrator_client.list(build_collection_path(kind, DEFAULT_NAMESPACE))["items"]:
                path = build_path(kind, DEFAULT_NAMESPACE, mutex_object["metadata"]["name"])
                self.administrator_client.patch(path, {"metadata": {"finalizers": None}})
                self._delete_if_exists(path)
        self._delete_if_exists(build_jobs_path(DEFAULT_NAMESPACE))
        self._delete_if_exists(pools.POOLS_PATH)
        for node in self.administrator_client.list(NODES_PATH, label_selector=WORKER_LABEL)["items"]:
            rule_labels = [name for name in node["metadata"]["labels"] if name.startswith(RULE_LABEL_PREFIX)]
            self.patch_node_labels(
                node["metadata"]["name"], dict.fromkeys([*rule_labels, RUN_LABEL, WORKER_LABEL, VERSION_LABEL, "role"])
            )

    def _delete_if_exists(self, path: str) -> None:
        try:
            self.administrator_client.run(
                self.administrator_client.api.request("DELETE", path, body={"propagationPolicy": "Background"})
            )
        except NotFound:
            return


CANARY_EXPRESSIONS = [{"key": "isCanary", "operator": "Exists"}]


def build_rule_spec(**spec_fields: Any) -> Object:
    """Build the spec of a MutexRule with a main Job and a cleanup Job."""
    return {
        "jobName": "only",
        "jobNamespace": DEFAULT_NAMESPACE,
        "jobSpec": build_job_spec(),
        "cleanUpJobSpec": build_job_spec(),
        **spec_fields,
    }


@pytest.fixture(scope="package")
def cluster_version(admin_client: SyncClient) -> None:
    """Create the ClusterVersion with the initial version."""
    FakeCvo(admin_client).install(OLD_VERSION)


@pytest.fixture
def upgrade(
    admin_client: SyncClient, workload: Workload, functions: Functions, cluster_version: None
) -> Iterator[UpgradeScenario]:
    """Yield the objects of a due upgrade for which no step has run yet."""
    scenario = UpgradeScenario(admin_client, workload, functions)
    yield scenario
    scenario.delete_all()


@pytest.fixture
def audit_after_setup(upgrade: UpgradeScenario, audit: AuditLog) -> AuditLog:
    """Return the audit log, without the writes that created the upgrade's objects."""
    return audit
