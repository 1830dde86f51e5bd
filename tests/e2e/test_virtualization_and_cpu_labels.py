"""Tests for VM migrations, and for CPU labels on a thousand nodes, on each real engine."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from typing import cast

import pytest

from eventing.replay.function_client import post_event
from kube.cpu_labels.node_patch import MANAGED_LABEL
from localcluster.audit_log import AuditLog
from localcluster.processes import wait_until_ready
from localcluster.product import Product
from localcluster.simulators.kubevirt import FakeVirt
from tests.chain.cpu_labels import environment as labels
from tests.chain.cpu_labels.environment import (
    HASWELL_NODES,
    HASWELL_SELECTOR,
    NODE_NAMES,
    PENRYN_NODES,
    assert_each_node_patched_once,
    count_patches_by_node,
    list_nodes_with_lost_response,
    measure_round_seconds,
)
from tests.chain.virtualization import environment as machines
from tests.chain.virtualization.environment import get_blocking_details_by_pod, get_node_name, is_running
from tests.chain.virtualization.migration_watcher import MigrationWatcher
from tests.e2e.environment import NODE_COUNT, TIMEOUT_SECONDS, WITH_ALL_COMPONENTS, E2eEnvironment
from tests.e2e.ticks import build_tick
from tests.machine_speed import is_below_scaled_limit
from tests.proofs import proves

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("environment", WITH_ALL_COMPONENTS, indirect=True)]
UNMIGRATABLE_REASON = "the disk is not shared"
MAX_MIGRATIONS_PER_NODE = 2
"""The default limit for concurrent migrations from one node."""
MAX_ROUND_SECONDS = 20.0
"""Maximum seconds from a change of the CPU models or features until all affected nodes are patched."""
MAX_FUNCTION_SECONDS_BUCKET = "2.0"
"""Maximum seconds that a function may take for one event: an upper bucket bound of the histogram."""
QUIET_SECONDS = 1.0
"""Number of seconds without a request from `label-cpu` after which no more of its events can be pending."""
MAX_LOST_RESPONSES = 30
"""Maximum number of nodes for which a patch response was lost, as happens on a busy machine."""
LABEL_CPU_USERNAME = b"system:serviceaccount:node-maintenance:label-cpu"


@pytest.fixture
def virtualization_environment(environment: E2eEnvironment) -> Iterator[machines.VirtualizationEnvironment]:
    """Yield the virtualization environment on the engine's cluster, with a simulated KubeVirt."""
    # EngineProduct and Product both have the attributes that VirtualizationEnvironment uses.
    virtualization = machines.VirtualizationEnvironment(environment.cluster, cast("Product", environment.product))
    with closing(virtualization.client), FakeVirt(virtualization.client):
        yield virtualization
        virtualization.delete_all_objects()


@proves("DRN-7", "DRN-8", "DRN-9", "DRN-11", "OSV-2", "OSV-3", "OSV-6", "X-2")
def test_drain_migrates_or_restarts_vms_despite_crashes(
    environment: E2eEnvironment, virtualization_environment: machines.VirtualizationEnvironment
) -> None:
    """Check that a drain migrates, restarts or waits for VMs although `migrate`, Broker and event sources are killed.

    The test kills `migrate` at the first migration, and broker and sources after two VMs have left the node.
    """
    node = virtualization_environment.create_node()
    migratable_names = [virtualization_environment.create_vm(f"live-{number}", node) for number in range(6)]
    unmigratable_names = [
        virtualization_environment.create_vm(f"stuck-{number}", node, unmigratable_reason=UNMIGRATABLE_REASON)
        for number in range(2)
    ]
    restarted_names = [
        virtualization_environment.create_vm(f"plain-{number}", node, eviction_strategy="") for number in range(2)
    ]
    original_boots = virtualization_environment.wait_until_running(
        *migratable_names, *unmigratable_names, *restarted_names
    )
    evictions = AuditLog(environment.cluster.audit_log)
    with MigrationWatcher(virtualization_environment.client) as watcher:
        path = virtualization_environment.create_maintenance(node)
        wait_until_ready(
            "the first migration", lambda: bool(watcher.first_seen_at), environment.product.servers, TIMEOUT_SECONDS
        )
        environment.product.kill_functions("migrate")
        environment.product.start_functions("migrate")
        virtualization_environment.wait_for_vmis(
            lambda vmis: sum(get_node_name(vmis[name]) not in ("", node) for name in migratable_names) >= 2,
            TIMEOUT_SECONDS,
        )
        environment.product.kill_delivery()
        environment.product.start_delivery()
        blocked_maintenance = virtualization_environment.wait_for_state(
            path, lambda maintenance: has_only_unmigratable_pods(maintenance, len(unmigratable_names)), TIMEOUT_SECONDS
        )
        assert all(
            UNMIGRATABLE_REASON in message for _, message in get_blocking_details_by_pod(blocked_maintenance).values()
        )
        for name in unmigratable_names:
            virtualization_environment.make_migratable(name)
        virtualization_environment.wait_for_state(path, timeout=TIMEOUT_SECONDS)

    migrated_names = [*migratable_names, *unmigratable_names]
    assert virtualization_environment.wait_until_running(*migrated_names) == {
        name: original_boots[name] for name in migrated_names
    }
    assert all(
        is_running(vmi)
        for vmi in virtualization_environment.wait_until_rebooted(original_boots, *restarted_names).values()
    )
    assert (watcher.max_concurrent, watcher.vmis_with_two_migrations) == (MAX_MIGRATIONS_PER_NODE, set())
    assert virtualization_environment.count_migrations_by_vmi() == dict.fromkeys(migrated_names, 1)
    evicted_names = {
        entry["objectRef"]["name"] for entry in evictions.list_evictions() if entry["responseStatus"]["code"] < 300
    }
    assert {name.removeprefix("virt-launcher-")[:7] for name in evicted_names} == set(restarted_names)
    virtualization_environment.request_deletion(path)
    virtualization_environment.wait_for_deletion(path, TIMEOUT_SECONDS)


@pytest.fixture
def labeled_environment(environment: E2eEnvironment) -> Iterator[EngineCpuLabelsEnvironment]:
    """Yield the environment with a thousand labeled nodes and no events pending; delete the nodes afterwards."""
    extra_nodes = NODE_NAMES[NODE_COUNT:]
    environment.cluster.create_nodes(*extra_nodes)
    labels_environment = EngineCpuLabelsEnvironment(environment)
    with closing(labels_environment.client):
        labels_environment.set_obsolete_cpus({"cpuModels": [], "minCPUModel": ""})
        labels_environment.write_capabilities()
        labels_environment.wait_for_node_count(MANAGED_LABEL, len(HASWELL_NODES) + len(PENRYN_NODES), TIMEOUT_SECONDS)
        labels_environment.wait_until_delivered()
        yield labels_environment
        labels_environment.delete_inputs()
        environment.cluster.delete_nodes(*extra_nodes)


@proves("OSV-30", "OSV-31", "OSV-36", "OSV-38", "X-3")
def test_obsolete_model_is_removed_with_one_patch_per_node(labeled_environment: EngineCpuLabelsEnvironment) -> None:
    """Check that removing an obsolete model takes one patch per affected node, and that later ticks write nothing.

    All nodes are patched within `MAX_ROUND_SECONDS`, and the function handles each event within
    `MAX_FUNCTION_SECONDS_BUCKET` seconds.
    """
    first_audit = labeled_environment.start_audit()

    labeled_environment.set_obsolete_cpus({"cpuModels": ["Haswell"]})
    labeled_environment.wait_for_node_count(HASWELL_SELECTOR, 0, TIMEOUT_SECONDS)
    labeled_environment.wait_until_delivered()

    node_counts, buckets = f"{len(HASWELL_NODES)} of {len(NODE_NAMES)}", labeled_environment.read_duration_buckets()
    print(
        f"{node_counts} nodes patched in {measure_round_seconds(first_audit):.2f} s; "
        f"events by handling seconds: {buckets}"
    )
    assert_each_node_patched_once(first_audit, HASWELL_NODES)
    assert len(list_nodes_with_lost_response(first_audit)) <= MAX_LOST_RESPONSES
    assert is_below_scaled_limit(measure_round_seconds(first_audit), MAX_ROUND_SECONDS)
    assert (
        labeled_environment.read_duration_buckets()[MAX_FUNCTION_SECONDS_BUCKET]
        == labeled_environment.read_duration_buckets()["+Inf"]
    )

    second_audit = labeled_environment.start_audit()
    for _ in range(len(NODE_NAMES) // 100 + 1):
        labeled_environment.send_tick()
    assert count_patches_by_node(second_audit) == {}


class EngineCpuLabelsEnvironment(labels.CpuLabelsEnvironment):
    """A CPU label environment on an engine, on which `label-cpu` runs in its own process."""

    def __init__(self, environment: E2eEnvironment) -> None:
        super().__init__(environment.cluster, environment.product)
        self.metrics_url = f"{environment.product.get_function_url('label-cpu')}metrics"
        self._request_count, self._log_position = 0, 0

    def send_tick(self) -> None:
        """Send a resync tick, and wait until `label-cpu` has handled the tick."""
        before = self._count_requests()
        assert post_event(build_tick(), self.product.broker_url).status_code == 202
        wait_until_ready("requests after a tick", lambda: self._count_requests() > before, self.product.servers)
        self.wait_until_delivered()

    def wait_until_delivered(self) -> None:
        """Wait until `label-cpu` has sent no requests for `QUIET_SECONDS`."""
        request_count, quiet_since = self._count_requests(), time.monotonic()
        while time.monotonic() - quiet_since < QUIET_SECONDS:
            time.sleep(0.2)
            if (new_count := self._count_requests()) != request_count:
                request_count, quiet_since = new_count, time.monotonic()

    def _count_requests(self) -> int:
        """Return the number of requests that `label-cpu` has sent since the start.

        Each line of the audit log is read only once, because the log contains requests for a thousand nodes.
        """
        with self.cluster.audit_log.open("rb") as log:
            log.seek(self._log_position)
            complete_lines, newline, _ = log.read().rpartition(b"\n")
        self._log_position += len(complete_lines) + len(newline)
        self._request_count += sum(LABEL_CPU_USERNAME in line for line in complete_lines.split(b"\n"))
        return self._request_count


def has_only_unmigratable_pods(maintenance: object, count: int) -> bool:
    """Return whether exactly `count` pods are pending, all of them reported as not migratable."""
    status = maintenance.get("status") or {} if isinstance(maintenance, dict) else {}
    reasons = [blocked_pod["reason"] for blocked_pod in status.get("blockedPods") or []]
    return len(status.get("pendingPods") or []) == count and reasons == ["NotMigratable"] * count
