"""For each step of each component but `maintenance`: a cluster on which it sends requests, and the event that calls it.

A scenario prepares the cluster through a `Stage`, which remembers the objects whose end state matters, and returns the
event. Each call of a scenario starts from new nodes and objects, so the same scenario can be run again and again.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.cpu_labels import label_cpu
from functions.cpu_labels.announcing import TOLD
from kube.budgets import budgets_in
from kube.door.sync_client import Cluster
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
from kube.virtualization.migration_claim import CLAIM_PATH
from localcluster.cluster import LocalCluster
from tests.functions.certificates.conftest import MAPS, SECRETS, WEBHOOKS, Certificates, clean
from tests.functions.conftest import Functions
from tests.functions.cpu_labels.conftest import HASWELL, Labelling, reference
from tests.functions.hints import resource, tick
from tests.functions.mutex.conftest import BEFORE_JOBS, NEW, READ, Upgrade
from tests.functions.virtualization.conftest import Machines
from tests.kubevirt import UNABLE, launched, migrations, vmi
from tests.workload import Workload

LONG_AGO = "2026-01-01T00:00:00Z"


class Stage(Workload):
    """A namespace and nodes for one run of a scenario. Remembers which objects to compare afterwards.

    Attributes:
        compared: paths of the objects and collections whose end state matters.
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
        """Compare these objects or collections, too."""
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
        """Create what an upgrade by the mutex needs."""
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
        """Return a client of `label-cpu` that remembers no earlier round."""
        for known in (label_cpu.TURNS, label_cpu.ROUNDS):
            known.clear()
        TOLD.forget()
        made = Labelling(self.admin, self, self.functions)
        self._undo.callback(made.clear)
        return made

    def certificates(self) -> Certificates:
        """Return the product's namespace without any Secret of a server."""
        clean(self.admin)
        self._undo.callback(clean, self.admin)
        self.compare(SECRETS, MAPS, WEBHOOKS)
        return Certificates(self.admin)

    def _delete_all(self, collection: str) -> None:
        self.admin.run(self.admin.api.request("DELETE", collection))


Scenario = Callable[[Stage], BaseCloudEvent]
"""Prepares the cluster; returns the event that calls the step."""


def check_rule(stage: Stage) -> BaseCloudEvent:
    """Create a rule."""
    return resource(events.RESOURCE_ADDED, stage.upgrade().rule, RULE)


def check_target(stage: Stage) -> BaseCloudEvent:
    """Create a target."""
    return resource(events.RESOURCE_ADDED, stage.upgrade().target, TARGET)


def before(step: str) -> Scenario:
    """Return the scenario in which a run of the mutex has reached this step, one of those before the first Job."""

    def bring(stage: Stage) -> BaseCloudEvent:
        upgrade = stage.upgrade()
        upgrade.judge()
        return upgrade.through(*BEFORE_JOBS[: BEFORE_JOBS.index(step)])

    return bring


def create_job(stage: Stage) -> BaseCloudEvent:
    """Edit the pools, so that the Job of the first node is due."""
    upgrade = stage.upgrade()
    upgrade.judge()
    stage.compare(jobs_path(MUTEX_NAMESPACE))
    return upgrade.through(*BEFORE_JOBS)


def complete_job(stage: Stage) -> Upgrade:
    """Create the Job of the first node, and complete it."""
    upgrade = stage.upgrade()
    upgrade.start()
    upgrade.functions.answer("run-job", upgrade.said(events.POOLS_EDITED))
    upgrade.end(upgrade.jobs()[-1])
    return upgrade


def take_result(stage: Stage) -> BaseCloudEvent:
    """Bring a run to the end of its first Job."""
    return complete_job(stage).said(events.JOB_DUE)


def release_node(stage: Stage) -> BaseCloudEvent:
    """Complete the Jobs of the first node, and let `run-job` record that."""
    upgrade = complete_job(stage)
    upgrade.functions.answer("run-job", upgrade.said(events.JOB_DUE))
    return upgrade.said(events.NODE_CLEARED)


def await_version(stage: Stage) -> BaseCloudEvent:
    """Release the first node, and give it the wanted version."""
    upgrade = stage.upgrade()
    upgrade.label(upgrade.release(), {VERSION_LABEL: NEW})
    return upgrade.said(events.NODE_RELEASED)


def restore_pools(stage: Stage) -> BaseCloudEvent:
    """Upgrade all nodes, and leave the pools as the run has edited them."""
    upgrade = stage.upgrade()
    upgrade.start()
    upgrade.write_record({"nodes": {name: {"cleanedAt": LONG_AGO} for name in upgrade.nodes}})
    return upgrade.said(events.RUN_COMPLETED)


def give_up_run(stage: Stage) -> BaseCloudEvent:
    """Delete the run's object amid the run."""
    upgrade = stage.upgrade()
    upgrade.start()
    stage.delete(path(upgrade.run))
    return upgrade.said(events.RUN_ENDED)


def resync_runs(stage: Stage) -> BaseCloudEvent:
    """Bring a run to its first Job; the event is a tick."""
    upgrade = stage.upgrade()
    upgrade.start()
    stage.admin.together(*(stage.admin.api.list(where) for where in READ))  # the caches, which a tick reads, have it
    return tick()


def migrate(stage: Stage) -> BaseCloudEvent:
    """Run a virtual machine on a drained node."""
    machines = stage.machines()
    machines.create(vmi("able", machines.node))
    return tick()


def protect(stage: Stage) -> BaseCloudEvent:
    """Run a virtual machine that cannot migrate on a node under maintenance."""
    stage.machines()
    node = stage.node()
    launched(stage, vmi("unable", node, able=UNABLE))
    stage.functions.prepare(stage.maintenance(node, KUBEVIRT))
    return tick()


def label_cpu_of(stage: Stage) -> BaseCloudEvent:
    """Create the ConfigMap that lists what a node offers."""
    labelling, node = stage.labelling(), stage.node()
    labelling.offer({node: HASWELL})
    stage.compare(node_path(node))
    return reference()


def issue_certificate(stage: Stage) -> BaseCloudEvent:
    """Create the webhook's labelled, empty Secret, and a configuration that asks for the bundle."""
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
"""Step, and where it has several scenarios a word about this one → the scenario."""
