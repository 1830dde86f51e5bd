"""Runs the scenarios of the product's own migrations again with KubeVirt, which migrates and protects the VMs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chain.virtualization.with_kubevirt.environment import BesideStage
from tests.chain.virtualization.test_crashes import test_machines_leave_three_nodes_amid_kills, whole
from tests.chain.virtualization.test_migrations import (
    test_no_more_migrate_at_once_than_may_in_the_whole_cluster,
    test_ten_machines_and_thirty_pods_leave_their_node,
    test_who_is_shut_down_is_restarted_as_its_run_strategy_says,
)
from tests.chain.virtualization.test_walk_through import (
    test_a_machine_without_a_strategy_runs_again_on_another_node,
    test_a_strategy_that_is_taken_off_amid_a_drain_lets_it_end,
)

pytestmark = pytest.mark.slow

__all__ = [
    "test_a_machine_without_a_strategy_runs_again_on_another_node",
    "test_a_strategy_that_is_taken_off_amid_a_drain_lets_it_end",
    "test_machines_leave_three_nodes_amid_kills",
    "test_no_more_migrate_at_once_than_may_in_the_whole_cluster",
    "test_ten_machines_and_thirty_pods_leave_their_node",
    "test_who_is_shut_down_is_restarted_as_its_run_strategy_says",
    "whole",
]


@pytest.fixture(autouse=True)
def passive(stage: BesideStage) -> Iterator[None]:
    """Assert after each test that the product created no migration and no budget."""
    yield
    assert stage.ours() == []
