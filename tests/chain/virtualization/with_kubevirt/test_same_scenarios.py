"""Runs the scenarios of the product's own migrations again with KubeVirt, which migrates and protects the VMs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chain.virtualization.test_crashes import restarting_environment, test_vms_migrate_despite_crashes
from tests.chain.virtualization.test_migrations import (
    test_cluster_wide_migration_limit_holds,
    test_shut_down_vms_restart_by_run_strategy,
    test_vms_migrate_block_or_restart,
)
from tests.chain.virtualization.test_walk_through import (
    test_removed_eviction_strategy_lets_drain_complete,
    test_vm_without_eviction_strategy_restarts_on_other_node,
)
from tests.chain.virtualization.with_kubevirt.environment import KubeVirtEnvironment

pytestmark = pytest.mark.slow

__all__ = [
    "restarting_environment",
    "test_cluster_wide_migration_limit_holds",
    "test_removed_eviction_strategy_lets_drain_complete",
    "test_shut_down_vms_restart_by_run_strategy",
    "test_vm_without_eviction_strategy_restarts_on_other_node",
    "test_vms_migrate_block_or_restart",
    "test_vms_migrate_despite_crashes",
]


@pytest.fixture(autouse=True)
def assert_passive(environment: KubeVirtEnvironment) -> Iterator[None]:
    """Assert after each test that the product created no migration and no budget."""
    yield
    assert environment.list_own_objects() == []
