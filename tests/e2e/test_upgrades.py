"""Tests for an upgrade run on each real engine while a function, the Broker and the event sources crash."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from chaos.release_watcher import ReleaseWatcher
from kube.mutex.versions import get_version
from kube.paths import Object
from localcluster.components.selection import ALL_COMPONENTS
from localcluster.functions import DEFAULT_FUNCTIONS, list_functions
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import NEW_VERSION, OLD_VERSION
from tests.chain.mutex import environment as runs
from tests.chain.mutex.environment import get_node_and_rule
from tests.e2e.environment import TIMEOUT_SECONDS, WITH_ALL_COMPONENTS, E2eEnvironment
from tests.e2e.permissions import assert_permissions_as_documented
from tests.proofs import proves

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("environment", WITH_ALL_COMPONENTS, indirect=True)]
NODE_COUNT = 3


@pytest.fixture
def upgrade_environment(environment: E2eEnvironment) -> Iterator[runs.MutexEnvironment]:
    """Yield an environment for upgrade runs on the engine's cluster, which has the old OpenShift version."""
    upgrade = runs.MutexEnvironment(environment.cluster, environment.product)
    upgrade.cvo.install(OLD_VERSION)
    with closing(upgrade.client), FakeMco(upgrade.client):
        yield upgrade
        upgrade.delete_all_objects()


@proves("MUT-42", "MUT-44", "MUT-49", "X-2")
def test_run_finishes_despite_crashes(environment: E2eEnvironment, upgrade_environment: runs.MutexEnvironment) -> None:
    """Check that despite killed processes, a run releases one node at a time and creates each Job only once."""
    names, run = upgrade_environment.create_run_with_two_rules(NODE_COUNT)
    original_selectors = upgrade_environment.get_pool_selectors()
    with ReleaseWatcher(upgrade_environment.client) as watcher:
        upgrade_environment.cvo.set_desired_version(NEW_VERSION)
        upgrade_environment.wait_for_state(
            run, lambda run_config: has_reached_node(run_config, names[1]), TIMEOUT_SECONDS
        )
        environment.product.kill_functions("run-job")
        environment.product.start_functions("run-job")
        upgrade_environment.wait_for_state(
            run, lambda run_config: has_reached_node(run_config, names[2]), TIMEOUT_SECONDS
        )
        environment.product.kill_delivery()
        environment.product.start_delivery()
        upgrade_environment.wait_for_step(run, "Finished", TIMEOUT_SECONDS)

    assert (watcher.released, watcher.concurrently_released_nodes) == (names, [])
    jobs = [
        (*get_node_and_rule(job), job["metadata"]["name"].startswith("cleanup-"))
        for job in upgrade_environment.list_jobs()
    ]
    assert Counter(jobs) == {
        (name, *job): 1 for name in names for job in (("first", False), ("second", False), ("first", True))
    }
    assert [get_version(upgrade_environment.get_node(name)) for name in names] == [NEW_VERSION] * NODE_COUNT
    assert upgrade_environment.get_pool_selectors() == original_selectors
    assert upgrade_environment.list_labelled_nodes() == set()


@proves("MUT-1", "OSV-39")
def test_permissions_of_optional_functions_match_touches_lines(environment: E2eEnvironment) -> None:
    """Check that the permissions of the optional components' functions equal their `Touches:` lines."""
    functions = sorted(set(list_functions(ALL_COMPONENTS)) - set(DEFAULT_FUNCTIONS))
    assert {"run-job", "migrate", "label-cpu"} <= set(functions)
    for function in functions:
        assert_permissions_as_documented(environment, function)


def has_reached_node(run: Object | None, node: str) -> bool:
    """Return whether the run has reached this node."""
    return str((run or {}).get("status", {}).get("progress")).endswith(f": {node}")
