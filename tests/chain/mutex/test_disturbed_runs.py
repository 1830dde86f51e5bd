"""Tests of runs during which users delete objects, remove labels or reapply files, and of deleted runs."""

from __future__ import annotations

import pytest

from kube.mutex.node_labels import is_released
from kube.mutex.objects import NAMESPACE, RULE, RUN, condition, is_true, path_of
from kube.mutex.versions import version_of
from kube.nodes import node_path
from localcluster.processes import await_ready
from tests.chain.mutex.environment import NEW, OLD, Stage, job_spec, told
from tests.chain.admission_policies import is_refused, policy
from tests.openshift import FakeMco
from tests.proofs import proves

pytestmark = pytest.mark.slow

STATES = ("Waiting", "Invalid", "RunningJobs", "Failed", "UpgradingNode", "CleaningUp", "Finished")


def begin(stage: Stage, count: int = 2, **rule: str) -> tuple[str, list[str]]:
    """Create a run over one pool whose Jobs the test ends; return its path and the nodes."""
    names = stage.workers("blue", count)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only", cleanup=True, delay=rule.get("delay", "1h"))
    run = stage.run("example", ["only"], ["all"])
    stage.reaches(run, "Waiting")
    return run, names


def bring_to(stage: Stage, run: str, state: str, names: list[str]) -> None:
    """Bring the run to this step at the first node."""
    if state == "Invalid":
        stage.delete(path_of(RULE, NAMESPACE, "only"))
    if state in ("Waiting", "Invalid"):
        stage.reaches(run, state)
        return
    stage.cvo.want(NEW)
    stage.reaches(run, "RunningJobs")
    if state == "RunningJobs":
        stage.until(run, lambda item: item["status"].get("job"))
    elif state == "Failed":
        stage.end_job(names[0], "only", "Failed")
    else:
        stage.end_job(names[0], "only")
    if state in ("CleaningUp", "Finished"):
        stage.reaches(run, "UpgradingNode")
        stage.upgrade(names[0])
    if state == "Finished":
        stage.end_job(names[0], "only")
    stage.reaches(run, state)


@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize("state", STATES)
def test_a_run_that_is_deleted_gives_everything_back(stage: Stage, state: str) -> None:
    """Deleting a run restores selectors, pauses and labels, and upgrades no node that was not released."""
    run, names = begin(stage, count=1 if state == "Finished" else 2)
    before = stage.selectors()
    bring_to(stage, run, state, names)
    stage.delete(run)
    stage.until(run, lambda item: item is None)

    assert stage.selectors() == before
    assert stage.labelled() == set()
    assert version_of(stage.node(names[-1])) == (NEW if state == "Finished" else OLD)
    assert [claim for claim in stage.claims() if claim] == []


@proves("MUT-51")
def test_the_pools_are_restored_before_the_labels_go_and_go_on_last(stage: Stage) -> None:
    """Deleting a run restores the node selectors first, then removes the labels, then unpauses the pools.

    In this order no unlabelled node joins the canary, and no node is upgraded before its own pool resumes.
    """
    run, names = begin(stage)
    bring_to(stage, run, "RunningJobs", names)
    audit = stage.audit()
    stage.delete(run)
    stage.until(run, lambda item: item is None)
    writes = [
        (entry["objectRef"]["resource"], entry["objectRef"]["name"], str(entry["requestObject"]))
        for entry in audit.writes_by()
        if entry["objectRef"]["resource"] in ("machineconfigpools", "nodes")
    ]
    said = [(resource, name, "nodeSelector" in body, "paused" in body) for resource, name, body in writes]
    assert said[:2] == [("machineconfigpools", "canary", True, False), ("machineconfigpools", "blue", True, False)]
    assert sorted(said[2:4]) == [("nodes", name, False, False) for name in names]
    assert ("machineconfigpools", "blue", False, True) in said[4:]


@proves("MUT-36")
def test_a_canary_that_is_applied_again_is_edited_again_before_a_release(stage: Stage) -> None:
    """Reapplying the canary's file during a run makes the run edit the canary again."""
    run, names = begin(stage)
    before = stage.selectors()["canary"]
    bring_to(stage, run, "RunningJobs", names)
    edited = stage.selectors()["canary"]
    selector = {name: value for name, value in before.items() if name != "paused"}
    stage.edit_pool("canary", {"nodeSelector": selector})
    stage.until(stage.pool_path("canary"), lambda pool: "DoesNotExist" in str(pool["spec"]))
    assert stage.selectors()["canary"] == edited


@proves("MUT-43", "X-3")
def test_labels_taken_off_early_come_back(stage: Stage) -> None:
    """Rule labels that a user removed before the node's Jobs completed are restored by the next tick."""
    run, names = begin(stage)
    bring_to(stage, run, "RunningJobs", names)
    stage.ungate(names[1])
    assert is_released(stage.node(names[1]))
    stage.tick()
    stage.until(node_path(names[1]), lambda node: not is_released(node))


@proves("MUT-42", "MUT-48")
def test_a_job_that_vanished_stops_the_run(stage: Stage) -> None:
    """Deleting a Job halts the run, since its result is unknown; changing the spec resumes the run with a new Job."""
    run, names = begin(stage)
    bring_to(stage, run, "RunningJobs", names)
    (job,) = stage.created()
    stage.delete(f"{stage.jobs}/{job['metadata']['name']}")
    item = stage.reaches(run, "Failed")
    assert "deleted before its result was known" in condition(item, "JobRun")["message"]
    assert stage.labelled() == set(names)
    stage.admin.patch(run, {"spec": {"skipTLSVerify": True}})
    stage.end_job(names[0], "only")
    stage.reaches(run, "UpgradingNode")
    assert [told(each) for each in stage.created()] == [(names[0], "only")]


@proves("MUT-47", "MUT-48")
def test_a_job_that_is_refused_only_when_it_is_created_stops_the_run(stage: Stage) -> None:
    """Rejecting the creation of a Job halts the run with the policy's message; a retry resumes the run.

    The dry run that validates the rule still succeeds.
    """
    run, names = begin(stage)
    elsewhere = "/apis/batch/v1/namespaces/default/jobs"

    def attempt() -> None:
        job = stage.admin.create(elsewhere, {"metadata": {"generateName": "attempt-"}, "spec": job_spec("1h")})
        stage.admin.delete(f"{elsewhere}/{job['metadata']['name']}", uid=job["metadata"]["uid"])

    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    with policy(stage, "no-jobs", rule, "request.dryRun", "Jobs are closed today", attempt):
        stage.admin.patch(path_of(RULE, NAMESPACE, "only"), {"spec": {"jobSpec": job_spec("2h")}})
        stage.cvo.want(NEW)
        stopped = stage.reaches(run, "Failed")
        assert is_true(stage.admin.get(path_of(RULE, NAMESPACE, "only")), "ValidConfig")
        assert "Jobs are closed today" in condition(stopped, "JobRun")["message"]
        stage.tick()
        assert stage.created() == []
        assert stage.labelled() == set(names)
    await_ready("no policy", lambda: not is_refused(attempt), stage.product.servers)
    stage.admin.patch(run, {"metadata": {"annotations": {"nodemaintenance.dev/retry": "1"}}})
    stage.end_job(names[0], "only")
    stage.reaches(run, "UpgradingNode")


@proves("MUT-46")
def test_a_cleanup_job_that_fails_stops_the_run(stage: Stage) -> None:
    """Failed cleanup Jobs halt the run; the node stays upgraded and released, the next node keeps its labels."""
    run, names = begin(stage)
    bring_to(stage, run, "CleaningUp", names)
    stage.end_job(names[0], "only", "Failed")
    item = stage.reaches(run, "Failed")
    assert condition(item, "JobRun")["reason"] == "CleanUpJobFailed"
    assert version_of(stage.node(names[0])) == NEW
    assert is_released(stage.node(names[0]))
    assert not is_released(stage.node(names[1]))


@proves("MUT-35", "MUT-45")
def test_a_node_that_is_deleted_is_dropped(stage: Stage, mco: FakeMco) -> None:
    """Deleted nodes, whether released or pending, are dropped, and the run finishes with the remaining nodes."""
    run, names = begin(stage, 3)
    mco.hold(names[0])
    bring_to(stage, run, "UpgradingNode", names)
    stage.delete(node_path(names[0]))
    stage.delete(node_path(names[1]))
    stage.tick()
    stage.end_job(names[2], "only")
    stage.until(node_path(names[2]), lambda node: version_of(node) == NEW)
    stage.end_job(names[2], "only")
    item = stage.reaches(run, "Finished")
    dropped = [name for name, node in item["status"]["record"]["nodes"].items() if node.get("droppedAt")]
    assert dropped == names[:2]


@proves("MUT-45")
def test_the_live_version_is_followed_and_one_that_is_taken_back_holds_the_run(stage: Stage) -> None:
    """Runs finish a node when it has the currently desired version; without a desired version they wait."""
    run, names = begin(stage)
    bring_to(stage, run, "UpgradingNode", names)
    stage.cvo.want("", reached=NEW)
    stage.tick()
    stage.upgrade(names[0], NEW)
    stage.until(run, lambda item: "wants no version" in condition(item, "NodeUpgrade").get("message", ""))
    stage.cvo.want("4.16.5")
    stage.upgrade(names[0], "4.16.5")
    stage.reaches(run, "CleaningUp")


@proves("MUT-51")
def test_a_rule_that_is_deleted_in_use_halts_the_run_until_it_is_back(stage: Stage) -> None:
    """Deleting a rule in use halts the run, which reports it in ConfigValidated, until the rule is created again."""
    run, names = begin(stage)
    bring_to(stage, run, "RunningJobs", names)
    stage.delete(path_of(RULE, NAMESPACE, "only"))
    item = stage.until(run, lambda found: condition(found, "ConfigValidated").get("status") == "False")
    assert "there is no node-upgrade-mutex-operator/only" in condition(item, "ConfigValidated")["message"]
    stage.end_job(names[0], "only")
    stage.tick()
    assert stage.labelled() == set(names)
    stage.rule("only", cleanup=True)
    stage.reaches(run, "UpgradingNode")


@proves("MUT-33")
def test_a_pool_that_is_deleted_amid_a_run_halts_it(stage: Stage) -> None:
    """Deleting a pool makes its target invalid and halts the run; the run can still be deleted."""
    run, names = begin(stage)
    canary = stage.selectors()["canary"]
    bring_to(stage, run, "RunningJobs", names)
    stage.delete(stage.pool_path("blue"))
    stage.tick()
    stage.until(run, lambda found: condition(found, "ConfigValidated").get("status") == "False")
    stage.delete(run)
    stage.until(path_of(RUN, NAMESPACE, "example"), lambda item: item is None)
    assert stage.labelled() == set()
    assert stage.selectors() == {"canary": canary}
    assert stage.claims() == [""]
    assert {version_of(stage.node(name)) for name in names} == {OLD}
