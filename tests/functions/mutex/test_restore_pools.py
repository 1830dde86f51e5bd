"""The step `restore-pools`: everything is as it was before the run."""

from __future__ import annotations

import pytest

from eventing import events
from kube.mutex.node_labels import is_released, run_of
from kube.mutex.objects import has_finalizer, path
from kube.mutex.pools import claimed_by, pool_path
from kube.paths import Object
from tests.functions.mutex.conftest import BEFORE_JOBS, Upgrade
from tests.proofs import proves


def spec(upgrade: Upgrade) -> dict[str, Object]:
    return {name: upgrade.pool(name)["spec"] for name in ("blue", "canary")}


@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize("count", range(3, len(BEFORE_JOBS) + 1))
def test_a_run_that_is_deleted_early_gives_everything_back(upgrade: Upgrade, count: int) -> None:
    """After each of the steps that come before the Jobs: claimed, paused, labelled, edited."""
    upgrade.judge()
    upgrade.through(*BEFORE_JOBS[:count])
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.RUN_ENDED
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert spec(upgrade) == upgrade.before
    assert all(is_released(upgrade.node(name)) and not run_of(upgrade.node(name)) for name in upgrade.nodes)
    assert {claimed_by(upgrade.pool(name)) for name in upgrade.before} == {""}
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == ""


@proves("MUT-51", "MUT-34")
def test_after_a_deletion_a_pool_that_was_paused_before_stays_so(upgrade: Upgrade) -> None:
    """Whoever paused it lets it go on."""
    upgrade.admin.patch(pool_path("blue"), {"spec": {"paused": True}})
    upgrade.start()
    upgrade.admin.run(upgrade.admin.api.request("DELETE", path(upgrade.run)))
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    assert upgrade.pool("blue")["spec"]["paused"] is True
    assert upgrade.pool("blue")["spec"]["nodeSelector"] == upgrade.before["blue"]["nodeSelector"]


@proves("X-2", "MUT-44")
def test_a_run_under_way_is_not_ended_by_an_event(upgrade: Upgrade) -> None:
    """Neither of the two kinds, and a pool that another run has is left alone."""
    upgrade.start()
    edited = spec(upgrade)
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == ""
    assert upgrade.answer("restore-pools", events.RUN_COMPLETED) == ""
    assert spec(upgrade) == edited
    assert has_finalizer(upgrade.again(upgrade.run))


@proves("MUT-49")
def test_without_a_record_the_form_of_the_document_is_restored(upgrade: Upgrade) -> None:
    """Somebody emptied the status: the canary has `isCanary Exists` again, the target none of the run's expressions."""
    upgrade.start()
    upgrade.admin.patch(f"{path(upgrade.run)}/status", {"status": {"record": None}})
    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED
    found = {name: upgrade.pool(name)["spec"]["nodeSelector"] for name in upgrade.before}
    assert found == {name: before["nodeSelector"] for name, before in upgrade.before.items()}


@proves("MUT-49", "MUT-51")
def test_a_pool_that_lost_its_claim_is_given_back_too(upgrade: Upgrade) -> None:
    """Somebody took the annotation off amid the run; pause and selector are the run's all the same."""
    upgrade.start()
    upgrade.admin.patch(pool_path("blue"), {"metadata": {"annotations": None}})
    upgrade.admin.delete(path(upgrade.run), uid=upgrade.run["metadata"]["uid"])

    assert upgrade.answer("restore-pools", events.RUN_ENDED) == events.RUN_FINISHED

    assert spec(upgrade) == upgrade.before
