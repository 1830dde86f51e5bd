"""Scenarios per step of all components except `maintenance`: a cluster state, and the event that triggers the step.

A scenario prepares the cluster through a `Stage`, which collects the objects whose end state is compared, and returns
the event. Each call of a scenario creates new nodes and objects, so the same scenario can run repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.cpu_labels import label_cpu
from functions.cpu_labels.kubernetes_events import TOLD
from kube.budgets import budgets_in
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, Group
from kube.maintenance.leases import lease_path
from kube.mutex.jobs import jobs_path
from kube.mutex.objects import NAMESPACE as MUTEX_NAMESPACE
from kube.mutex.objects import RULE, TARGET, path
from kube.mutex.pools import pool_path
from kube.mutex.versions import VERSION_LABEL
from kube.nodes import node_path
from kube.paths import Object
from kube.virtualization.migration_claims import CLAIM_PATH
from localcluster.cluster import LocalCluster
from tests.functions.certificates.conftest import MAPS, SECRETS, WEBHOOKS, Certificates, clean
from tests.functions.conftest import Functions
from tests.functions.cpu_labels.conftest import HASWELL, Labelling, reference
from tests.functions.event_builders import resource, tick
from tests.functions.mutex.conftest import BEFORE_JOBS, NEW, READ, Upgrade
from tests.functions.virtualization.conftest import Machines
from tests.kubevirt import UNABLE, launched, migrations, vmi
from tests.workload import Workload

LONG_AGO = "2026-01-01T00:00:00Z"


class Stage(Workload):
    """A namespace and nodes for one run of a scenario, with the list of objects to compare afterwards.

    Attributes:
        compared: paths of the objects and collections whose end state is compared.
    """

    def __init__(self, local: LocalCluster, admin: Cluster, functions: Functions) -> None:
        super().__init__(local, admin)
        self.functions = functions
        self.compared: list[str] = []
        self._undo = ExitStack()

    def end(self) -> None:
        """Delete what the scenario created."""
        self._undo.close()
        super().end()

    def compare(self, *paths: str) -> None:
        """Add these objects or collections to the compared ones."""
        self.compared += paths

    def maintenance(self, node: str, group: Group = MEDIK8S, **more: Any) -> Object:
        """Create a NodeMaintenance; compare it, its node and its node's lease."""
        made = super().maintenance(node, group, **more)
        self.compare(m.path(made), node_path(node), lease_path(node))
        return made

    def put(self, namespace: str, bodies: list[Object], *, ready: bool = True) -> list[Object]:
        """Create pods, and compare them."""
        self.compare(*(f"/api/v1/namespaces/{namespace}/pods/{body['metadata']['name']}" for body in bodies))
        return super().put(namespace, bodies, ready=ready)

    def upgrade(self) -> Upgrade:
        """Create the objects of an upgrade run of the mutex component."""
        made = Upgrade(self.admin, self, self.functions)
        self._undo.callback(made.clear)
        self.compare(*(path(item) for item in (made.rule, made.target, made.run)))
        self.compare(*map(pool_path, made.before), *map(node_path, made.nodes))
        return made

    def machines(self) -> Machines:
        """Create a drained node for virtual machines."""
        made = Machines(self)
        self._undo.callback(made.end)
        self._undo.callback(self._delete_all, budgets_in(self.namespace))
        self.compare(migrations(self.namespace), budgets_in(self.namespace), CLAIM_PATH, node_path(made.node))
        return made

    def labelling(self) -> Labelling:
        """Return a helper for `label-cpu` without any state of an earlier round."""
        for known in (label_cpu.TURNS, label_cpu.ROUNDS):
            known.clear()
        TOLD.forget()
        made = Labelling(self.admin, self, self.functions)
        self._undo.callback(made.clear)
        return made

    def certificates(self) -> Certificates:
        """Return a helper for the product's namespace after deleting the Secrets of all servers."""
        clean(self.admin)
        self._undo.callback(clean, self.admin)
        self.compare(SECRETS, MAPS, WEBHOOKS)
        return Certificates(self.admin)

    def _delete_all(self, collection: str) -> None:
        self.admin.run(self.admin.api.request("DELETE", collection))


Scenario = Callable[[Stage], BaseCloudEvent]
"""Prepares the cluster and returns the event that triggers the step."""


def check_rule(stage: Stage) -> BaseCloudEvent:
    """Create a rule and return the event for it."""
    return resource(events.RESOURCE_ADDED, stage.upgrade().rule, RULE)


def check_target(stage: Stage) -> BaseCloudEvent:
    """Create a target and return the event for it."""
    return resource(events.RESOURCE_ADDED, stage.upgrade().target, TARGET)


def before(step: str) -> Scenario:
    """Return the scenario in which an upgrade run has reached this step, which precedes the first Job."""

    def bring(stage: Stage) -> BaseCloudEvent:
        upgrade = stage.upgrade()
        upgrade.judge()
        return upgrade.through(*BEFORE_JOBS[: BEFORE_JOBS.index(step)])

    return bring


def create_job(stage: Stage) -> BaseCloudEvent:
    """Edit the pools, so that the first node's Job is due."""
    upgrade = stage.upgrade()
    upgrade.judge()
    stage.compare(jobs_path(MUTEX_NAMESPACE))
    return upgrade.through(*BEFORE_JOBS)


def complete_job(stage: Stage) -> Upgrade:
    """Create the first node's Job and complete it."""
    upgrade = stage.upgrade()
    upgrade.start()
    upgrade.functions.answer("run-job", upgrade.said(events.POOLS_EDITED))
    upgrade.end(upgrade.jobs()[-1])
    return upgrade


def take_result(stage: Stage) -> BaseCloudEvent:
    """Run an upgrade until its first Job is complete; the event makes `run-job` read the result."""
    return complete_job(stage).said(events.JOB_DUE)


def release_node(stage: Stage) -> BaseCloudEvent:
    """Complete the first node's Jobs, and let `run-job` record that."""
    upgrade = complete_job(stage)
    upgrade.functions.answer("run-job", upgrade.said(events.JOB_DUE))
    return upgrade.said(events.NODE_CLEARED)


def await_version(stage: Stage) -> BaseCloudEvent:
    """Release the first node and give it the wanted version."""
    upgrade = stage.upgrade()
    upgrade.label(upgrade.release(), {VERSION_LABEL: NEW})
    return upgrade.said(events.NODE_RELEASED)


def restore_pools(stage: Stage) -> BaseCloudEvent:
    """Mark all nodes as done while the pools still have the run's edits."""
    upgrade = stage.upgrade()
    upgrade.start()
    upgrade.write_record({"nodes": {name: {"cleanedAt": LONG_AGO} for name in upgrade.nodes}})
    return upgrade.said(events.RUN_COMPLETED)


def give_up_run(stage: Stage) -> BaseCloudEvent:
    """Delete the run's object during the run."""
    upgrade = stage.upgrade()
    upgrade.start()
    stage.delete(path(upgrade.run))
    return upgrade.said(events.RUN_ENDED)


def resync_runs(stage: Stage) -> BaseCloudEvent:
    """Run an upgrade until its first Job is due, and return a tick."""
    upgrade = stage.upgrade()
    upgrade.start()
    stage.admin.together(*(stage.admin.api.list(where) for where in READ))  # brings the watch caches up to date
    return tick()


def migrate(stage: Stage) -> BaseCloudEvent:
    """Create a virtual machine on a drained node."""
    machines = stage.machines()
    machines.create(vmi("able", machines.node))
    return tick()


def protect(stage: Stage) -> BaseCloudEvent:
    """Create a virtual machine that cannot migrate on a node under maintenance."""
    stage.machines()
    node = stage.node()
    launched(stage, vmi("unable", node, able=UNABLE))
    stage.functions.prepare(stage.maintenance(node, KUBEVIRT))
    return tick()


def label_cpu_of(stage: Stage) -> BaseCloudEvent:
    """Create the ConfigMap that lists the CPU capabilities of a node."""
    labelling, node = stage.labelling(), stage.node()
    labelling.offer({node: HASWELL})
    stage.compare(node_path(node))
    return reference()


def issue_certificate(stage: Stage) -> BaseCloudEvent:
    """Create the webhook's labelled empty Secret and a webhook configuration that asks for the CA bundle."""
    certificates = stage.certificates()
    certificates.add("validate", "ours")
    certificates.add_webhook("nodemaintenance-validate", "validate")
    return tick()


SCENARIOS: dict[str, Scenario] = {
    "renew-certificates": issue_certificate,
    "check-rule": check_rule,
    "check-target": check_target,
    **{step: before(step) for step in BEFORE_JOBS},
    "run-job, create": create_job,
    "run-job, result": take_result,
    "release-node": release_node,
    "await-version": await_version,
    "restore-pools": restore_pools,
    "restore-pools, deleted": give_up_run,
    "resync-runs": resync_runs,
    "migrate": migrate,
    "protect": protect,
    "label-cpu": label_cpu_of,
}
"""Step, with a qualifier if it has several scenarios → scenario."""
