"""Tests of a whole upgrade run on each real engine, during crashes of a function, the broker and the sources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import closing

import pytest

from kube.mutex.versions import version_of
from kube.paths import Object
from localcluster.functions import SERVED, served
from localcluster.components.selection import KNOWN
from tests.chain.mutex import environment as runs
from tests.chain.mutex.environment import NEW, OLD, told
from tests.chain.mutex.release_watcher import Watcher
from tests.e2e.permissions import assert_as_documented
from tests.e2e.environment import PATIENCE, WITH_WINGS, Stage
from tests.openshift import FakeMco
from tests.proofs import proves

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("stage", WITH_WINGS, indirect=True)]
NODES = 3


@pytest.fixture
def upgrading(stage: Stage) -> Iterator[runs.Stage]:
    """Yield the mutex environment on the engine's cluster, at the old version."""
    seen = runs.Stage(stage.local, stage.product)
    seen.cvo.install(OLD)
    with closing(seen.admin), FakeMco(seen.admin):
        yield seen
        seen.clear()


@proves("MUT-42", "MUT-44", "MUT-49", "X-2")
def test_a_run_amid_kills(stage: Stage, upgrading: runs.Stage) -> None:
    """Runs release one node at a time and create each Job once, although `run-job`, broker and sources are killed."""
    names, run = upgrading.with_two_rules(NODES)
    before = upgrading.selectors()
    with Watcher(upgrading.admin) as watcher:
        upgrading.cvo.want(NEW)
        upgrading.until(run, lambda item: is_at(item, names[1]), PATIENCE)
        stage.product.kill_functions("run-job")
        stage.product.start_functions("run-job")
        upgrading.until(run, lambda item: is_at(item, names[2]), PATIENCE)
        stage.product.kill_delivery()
        stage.product.start_delivery()
        upgrading.reaches(run, "Finished", PATIENCE)

    assert (watcher.released, watcher.together) == (names, [])
    jobs = [(*told(job), job["metadata"]["name"].startswith("cleanup-")) for job in upgrading.created()]
    assert Counter(jobs) == {
        (name, *job): 1 for name in names for job in (("first", False), ("second", False), ("first", True))
    }
    assert [version_of(upgrading.node(name)) for name in names] == [NEW] * NODES
    assert upgrading.selectors() == before
    assert upgrading.labelled() == set()


@proves("MUT-1", "OSV-39")
def test_the_api_server_lists_exactly_what_functions_of_opt_in_wings_touch(stage: Stage) -> None:
    """API server permissions of the optional components' functions equal their `Touches:` lines."""
    functions = sorted(set(served(KNOWN)) - set(SERVED))
    assert {"run-job", "migrate", "label-cpu"} <= set(functions)
    for function in functions:
        assert_as_documented(stage, function)


def is_at(run: Object | None, node: str) -> bool:
    """Return whether the run has reached this node."""
    return str((run or {}).get("status", {}).get("progress")).endswith(f": {node}")
