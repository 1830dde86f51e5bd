"""Repeats the tests of the product's own migrations on a cluster where KubeVirt migrates and protects the VMs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chain.virtualization.test_crashes import restarting_environment, test_vms_migrate_despite_crashes
from tests.chain.virtualization.test_migrations import (
    test_concurrent_migrations_stay_within_cluster_limit,
    test_drain_migrates_restarts_or_waits_for_vms,
    test_shut_down_vms_restart_by_run_strategy,
)
from tests.chain.virtualization.test_walk_through import (
    test_drain_completes_after_eviction_strategy_is_removed,
    test_vm_without_eviction_strategy_restarts_on_other_node,
)
from tests.chain.virtualization.with_kubevirt.environment import KubeVirtEnvironment

pytestmark = pytest.mark.slow

__all__ = [
    "restarting_environment",
    "test_concurrent_migrations_stay_within_cluster_limit",
    "test_drain_completes_after_eviction_strategy_is_removed",
    "test_drain_migrates_restarts_or_waits_for_vms",
    "test_shut_down_vms_restart_by_run_strategy",
    "test_vm_without_eviction_strategy_restarts_on_other_node",
    "test_vms_migrate_despite_crashes",
]


@pytest.fixture(autouse=True)
def assert_product_is_passive(environment: KubeVirtEnvironment) -> Iterator[None]:
    """Assert after a test that the product has created neither migrations nor PodDisruptionBudgets."""
    yield
    assert environment.list_product_objects() == []
