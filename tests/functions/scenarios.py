"""Scenarios for the steps of all components except `maintenance`: a cluster state and the event that triggers the step.

A scenario prepares the cluster through a `ScenarioWorkload`, which collects the objects whose end state is compared,
and returns the event. Each call of a scenario creates new nodes and objects, so the same scenario can run repeatedly.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.cpu_labels import label_cpu
from functions.event_recorder import EVENT_RECORDER
from functions.notifications.notify_owners import ANNOUNCED_BLOCKAGES
from kube.budgets import build_namespace_budgets_path
from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance.groups import KUBEVIRT, MEDIK8S, ApiGroup
from kube.maintenance.leases import build_lease_path
from kube.mutex.jobs import build_jobs_path
from kube.mutex.objects import DEFAULT_NAMESPACE as MUTEX_NAMESPACE
from kube.mutex.objects import RULE_KIND, TARGET_KIND, build_object_path
from kube.mutex.pools import build_pool_path
from kube.mutex.versions import VERSION_LABEL
from kube.nodes import build_node_path
from kube.paths import Object
from kube.virtualization.migration_claims import LEASE_PATH
from localcluster.cluster import LocalCluster
from tests.functions.certificates.conftest import (
    CONFIG_MAPS_PATH,
    SECRETS_PATH,
    WEBHOOK_CONFIGURATIONS_PATH,
    NamespaceCertificates,
    delete_test_objects,
)
from tests.functions.conftest import Functions
from tests.functions.cpu_labels.conftest import HASWELL_CAPABILITIES, CpuLabelScenario, build_reference_event
from tests.functions.event_builders import build_resource_event, build_tick
from tests.functions.mutex.conftest import BEFORE_JOBS, NEW_VERSION, TICK_LIST_PATHS, UpgradeScenario
from tests.functions.virtualization.conftest import VmiScenario
from tests.kubevirt import NOT_MIGRATABLE, build_vmi, create_vmi_with_launcher, get_migrations_path
from tests.workload import Workload

PAST_TIMESTAMP = "2026-01-01T00:00:00Z"


class ScenarioWorkload(Workload):
    """A namespace and nodes for one execution of a scenario, with the list of objects to compare afterwards.

    Attributes:
        compared_paths: paths of the objects and collections whose end state is compared.
    """

    def __init__(self, local_cluster: LocalCluster, admin_client: SyncClient, functions: Functions) -> None:
        super().__init__(local_cluster, admin_client)
        self.functions = functions
        self.compared_paths: list[str] = []
        self._cleanup = ExitStack()

    def delete_objects(self) -> None:
        """Delete the objects that the scenario created."""
        self._cleanup.close()
        super().delete_objects()

    def add_compared_paths(self, *paths: str) -> None:
        """Add the paths of objects or collections whose end state is compared."""
        self.compared_paths += paths

    def create_maintenance(self, node: str, group: ApiGroup = MEDIK8S, **options: Any) -> Object:
        """Create a NodeMaintenance, and add the object, its node and the node's Lease to the compared objects."""
        created = super().create_maintenance(node, group, **options)
        self.add_compared_paths(m.build_path(created), build_node_path(node), build_lease_path(node))
        return created

    def create_pods(self, namespace: str, bodies: list[Object], *, ready: bool = True) -> list[Object]:
        """Create pods, and add them to the compared objects."""
        self.add_compared_paths(*(f"/api/v1/namespaces/{namespace}/pods/{body['metadata']['name']}" for body in bodies))
        return super().create_pods(namespace, bodies, ready=ready)

    def create_upgrade(self) -> UpgradeScenario:
        """Create the objects of an upgrade run of the mutex component."""
        scenario = UpgradeScenario(self.client, self, self.functions)
        self._cleanup.callback(scenario.delete_all)
        self.add_compared_paths(
            *(build_object_path(mutex_object) for mutex_object in (scenario.rule, scenario.target, scenario.run_config))
        )
        self.add_compared_paths(*map(build_pool_path, scenario.original_pool_specs))
        self.add_compared_paths(*map(build_node_path, scenario.nodes))
        return scenario

    def create_vmi_scenario(self) -> VmiScenario:
        """Create a drained node for virtual machines."""
        scenario = VmiScenario(self)
        self._cleanup.callback(scenario.delete_all)
        self._cleanup.callback(self._delete_collection, build_namespace_budgets_path(self.namespace))
        self.add_compared_paths(
            get_migrations_path(self.namespace),
            build_namespace_budgets_path(self.namespace),
            LEASE_PATH,
            build_node_path(scenario.node),
        )
        return scenario

    def create_cpu_label_scenario(self) -> CpuLabelScenario:
        """Return a new `CpuLabelScenario`, and clear the state that `label-cpu` keeps in this process."""
        for cache in (label_cpu.TICK_POSITIONS, label_cpu.LAST_TRIGGERS):
            cache.clear()
        EVENT_RECORDER.clear()
        scenario = CpuLabelScenario(self.client, self, self.functions)
        self._cleanup.callback(scenario.delete_all)
        return scenario

    def prepare_certificates(self) -> NamespaceCertificates:
        """Delete the objects of earlier certificate tests, and return access to the product's certificates."""
        delete_test_objects(self.client)
        EVENT_RECORDER.clear()
        self._cleanup.callback(delete_test_objects, self.client)
        self.add_compared_paths(SECRETS_PATH, CONFIG_MAPS_PATH, WEBHOOK_CONFIGURATIONS_PATH)
        return NamespaceCertificates(self.client)

    def _delete_collection(self, collection: str) -> None:
        self.client.run(self.client.api.request("DELETE", collection))


Scenario = Callable[[ScenarioWorkload], BaseCloudEvent]
"""Function that prepares the cluster and returns the event that triggers the step."""


def prepare_check_rule(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create a MutexRule and return its creation event."""
    return build_resource_event(events.RESOURCE_ADDED, workload.create_upgrade().rule, RULE_KIND)


def prepare_check_target(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create a MutexTarget and return its creation event."""
    return build_resource_event(events.RESOURCE_ADDED, workload.create_upgrade().target, TARGET_KIND)


def build_scenario_before_step(step: str) -> Scenario:
    """Return a scenario in which an upgrade run has completed all steps before `step`, a member of `BEFORE_JOBS`."""

    def prepare(workload: ScenarioWorkload) -> BaseCloudEvent:
        upgrade = workload.create_upgrade()
        upgrade.check_rule_and_target()
        return upgrade.run_steps(*BEFORE_JOBS[: BEFORE_JOBS.index(step)])

    return prepare


def prepare_job_creation(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Edit the MachineConfigPools so that the first node's Job is due."""
    upgrade = workload.create_upgrade()
    upgrade.check_rule_and_target()
    workload.add_compared_paths(build_jobs_path(MUTEX_NAMESPACE))
    return upgrade.run_steps(*BEFORE_JOBS)


def complete_first_job(workload: ScenarioWorkload) -> UpgradeScenario:
    """Create the first node's Job and complete it."""
    upgrade = workload.create_upgrade()
    upgrade.advance_to_jobs()
    upgrade.functions.invoke("run-job", upgrade.build_event(events.POOLS_EDITED))
    upgrade.end_job(upgrade.list_jobs()[-1])
    return upgrade


def prepare_job_result(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Run an upgrade until its first Job is complete, and return the event that makes `run-job` read the result."""
    return complete_first_job(workload).build_event(events.JOB_DUE)


def prepare_release_node(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Complete the first node's Jobs, let `run-job` record this, and return `node.prejobs_done`."""
    upgrade = complete_first_job(workload)
    upgrade.functions.invoke("run-job", upgrade.build_event(events.JOB_DUE))
    return upgrade.build_event(events.NODE_PREJOBS_DONE)


def prepare_await_version(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Release the first node, label it with the desired version, and return `node.released`."""
    upgrade = workload.create_upgrade()
    upgrade.patch_node_labels(upgrade.advance_to_release(), {VERSION_LABEL: NEW_VERSION})
    return upgrade.build_event(events.NODE_RELEASED)


def prepare_restore_pools(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Mark all nodes as done while the MachineConfigPools still have the selectors that the run edited."""
    upgrade = workload.create_upgrade()
    upgrade.advance_to_jobs()
    upgrade.write_record({"nodes": {name: {"cleanedAt": PAST_TIMESTAMP} for name in upgrade.nodes}})
    return upgrade.build_event(events.RUN_NODES_DONE)


def prepare_run_deletion(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Delete the MutexRunConfig during its upgrade run, and return `run.restore_pending`."""
    upgrade = workload.create_upgrade()
    upgrade.advance_to_jobs()
    workload.delete(build_object_path(upgrade.run_config))
    return upgrade.build_event(events.RUN_RESTORE_PENDING)


def prepare_resync_runs(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Run an upgrade until its first Job is due, and return a tick."""
    upgrade = workload.create_upgrade()
    upgrade.advance_to_jobs()
    # Bring the API server's watch caches up to date.
    workload.client.gather_all(*(workload.client.api.list(path) for path in TICK_LIST_PATHS))
    return build_tick()


def prepare_migrate(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create a virtual machine on a drained node, and return a tick."""
    scenario = workload.create_vmi_scenario()
    scenario.create_vmi(build_vmi("able", scenario.node))
    return build_tick()


def prepare_protect(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create a virtual machine that cannot migrate on a node under maintenance, and return a tick."""
    workload.create_vmi_scenario()
    node = workload.take_node()
    create_vmi_with_launcher(workload, build_vmi("unable", node, migratable=NOT_MIGRATABLE))
    workload.functions.run_until_tainted(workload.create_maintenance(node, KUBEVIRT))
    return build_tick()


def prepare_label_cpu(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create the ConfigMap that lists the CPU capabilities of a node, and return the event about the ConfigMap."""
    scenario, node = workload.create_cpu_label_scenario(), workload.take_node()
    scenario.replace_capabilities({node: HASWELL_CAPABILITIES})
    workload.add_compared_paths(build_node_path(node))
    return build_reference_event()


def prepare_publish_conditions(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Cordon and taint the node of a maintenance, and return `node.tainted`."""
    return workload.functions.run_until_tainted(workload.create_maintenance(workload.take_node()))


def prepare_notify_owners(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create a maintenance, and return a tick, at which a new process reads the earlier announcements."""
    workload.create_maintenance(workload.take_node())
    ANNOUNCED_BLOCKAGES.clear()
    return build_tick()


def prepare_certificate_issuing(workload: ScenarioWorkload) -> BaseCloudEvent:
    """Create an empty Secret for the webhook's certificate, and a webhook configuration that requests the CA bundle."""
    certificates = workload.prepare_certificates()
    certificates.create_secret("validate", "ours")
    certificates.create_webhook_configuration("nodemaintenance-validate", "validate")
    return build_tick()


SCENARIOS: dict[str, Scenario] = {
    "renew-certificates": prepare_certificate_issuing,
    "check-rule": prepare_check_rule,
    "check-target": prepare_check_target,
    **{step: build_scenario_before_step(step) for step in BEFORE_JOBS},
    "run-job, create": prepare_job_creation,
    "run-job, result": prepare_job_result,
    "release-node": prepare_release_node,
    "await-version": prepare_await_version,
    "restore-pools": prepare_restore_pools,
    "restore-pools, deleted": prepare_run_deletion,
    "resync-runs": prepare_resync_runs,
    "migrate": prepare_migrate,
    "protect": prepare_protect,
    "label-cpu": prepare_label_cpu,
    "publish-conditions": prepare_publish_conditions,
    "notify-owners": prepare_notify_owners,
}
"""Map from step name, with a qualifier if the step has several scenarios to scenario."""
