"""Tests of whole upgrades: from the desired version until the pools are restored."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest

from kube.mutex.objects import NAMESPACE, RULE_LABEL, condition
from kube.mutex.pools import POOLS
from kube.mutex.versions import version_of
from kube.paths import Object
from tests.chain.mutex.environment import NEW, OLD, Stage, told
from tests.chain.mutex.release_watcher import Watcher
from tests.openshift import FakeMco
from tests.proofs import proves
from tests.workload import Audit

DOTTED = "first.of.two"


def moment(job: Object, field: str) -> datetime:
    text = job["metadata"][field] if field == "creationTimestamp" else job["status"][field]
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def touched(audit: Audit) -> list[Object]:
    """Return the product's writes to nodes and pools."""
    return [each for each in audit.writes_by() if each["objectRef"]["resource"] in ("nodes", "machineconfigpools")]


class Order:
    """The order of a run's writes in an audit log."""

    def __init__(self, audit: Audit) -> None:
        self._kept = [entry for entry in audit.kept() if entry["responseStatus"]["code"] < 300]

    def places(self, resource: str, verb: str, text: str) -> list[int]:
        """Return the positions of the product's writes to a resource whose body contains `text`."""
        return [
            place
            for place, entry in enumerate(self._kept)
            if (entry["objectRef"]["resource"], entry["verb"]) == (resource, verb)
            and text in str(entry.get("requestObject"))
            and entry["user"]["username"].startswith("system:serviceaccount:node-maintenance")
        ]


@proves("MUT-13", "MUT-33", "MUT-35", "MUT-36", "MUT-37", "MUT-40", "MUT-43", "MUT-44", "MUT-46", "MUT-49")
@proves("C24", "C25", "C27")
def test_a_whole_upgrade(stage: Stage, mco: FakeMco) -> None:
    """Steps 1 to 7 of the specification upgrade two pools with two rules, one with cleanup Jobs and a dotted name."""
    names = [*stage.workers("blue", 2), *stage.workers("green", 2, NEW)]
    mco.hold(*names)  # otherwise it might upgrade a node before the run pauses the pools
    stage.canary()
    stage.target("both", stage.pool("blue", "blue"), stage.pool("green", "green"))
    stage.rule(DOTTED, cleanup=True, jobName="first")
    stage.rule("second")
    run = stage.run("example", ["second", DOTTED], ["both"])
    stage.reaches(run, "Waiting")
    before, audit = stage.selectors(), stage.audit()
    with Watcher(stage.admin) as watcher:
        stage.cvo.want(NEW)
        for name in ("blue", "green"):
            stage.until(f"{POOLS}/{name}", lambda item: bool(item and item["spec"].get("paused")))
        mco.hold()
        item = stage.reaches(run, "Finished")

    assert item["status"]["record"]["order"] == names
    assert (watcher.released, watcher.together) == (names, [])
    assert mco.upgraded == names[:2]
    assert [version_of(stage.node(name)) for name in names] == [NEW] * 4
    assert stage.selectors() == before
    assert stage.labelled() == set()
    order = Order(audit)
    steps = [
        order.places("machineconfigpools", "patch", "/spec/paused', 'value': True"),
        order.places("nodes", "patch", f"{RULE_LABEL.replace('/', '~1')}{DOTTED}.{NAMESPACE}', 'value': ''"),
        order.places("machineconfigpools", "patch", "DoesNotExist"),
        order.places("jobs", "create", "mutex"),
    ]
    assert [len(places) for places in steps] == [2, 4, 1, 12]
    assert all(max(before) < min(after) for before, after in pairwise(steps))
    edited = order.places("machineconfigpools", "patch", "'operator': 'Exists'")
    assert max(steps[1]) < min(edited) < max(edited[:2]) < min(steps[2])
    _assert_one_after_another(stage, names)


def _assert_one_after_another(stage: Stage, names: list[str]) -> None:
    """Assert that each node's Jobs ran in the order of the rules, with the cleanup Job last, and one Job at a time."""
    jobs = stage.admin.list(stage.jobs)["items"]
    jobs.sort(key=lambda job: int(job["metadata"]["resourceVersion"]))
    found = [(*told(job), job["metadata"]["name"].startswith("cleanup-")) for job in jobs]
    expected = [(name, *job) for name in names for job in (("second", False), (DOTTED, False), (DOTTED, True))]
    assert found == expected
    ended = [(moment(one, "completionTime"), moment(two, "creationTimestamp")) for one, two in pairwise(jobs)]
    assert all(end <= begin for end, begin in ended)


@pytest.mark.slow
@proves("MUT-34", "MUT-49")
def test_a_pool_that_was_paused_before_its_run_is_named_and_goes_on_at_the_end(stage: Stage, mco: FakeMco) -> None:
    """Pools that were paused before their run are reported, and unpaused at the end (step 7 of the specification).

    Until then the run does not write their `paused`.
    """
    names = [*stage.workers("blue", 1), *stage.workers("green", 1)]
    stage.canary()
    stage.target("both", stage.pool("blue", "blue", paused=True), stage.pool("green", "green"))
    stage.rule("only")
    run = stage.run("example", ["only"], ["both"])
    stage.reaches(run, "Waiting")
    before, audit = stage.selectors(), stage.audit()
    stage.cvo.want(NEW)

    item = stage.reaches(run, "Finished")

    assert "blue" in condition(item, "TargetPoolsPaused")["message"]
    assert "green" not in condition(item, "TargetPoolsPaused")["message"]
    pauses = [
        (entry["objectRef"]["name"], change["value"])
        for entry in audit.writes_by()
        if entry["objectRef"]["resource"] == "machineconfigpools" and entry["responseStatus"]["code"] < 300
        for change in entry["requestObject"]
        if change["path"] == "/spec/paused"
    ]
    assert pauses[0] == ("green", True)
    assert sorted(pauses[1:]) == [("blue", False), ("green", False)]
    assert before["blue"]["paused"] is True
    assert stage.selectors() == before | {"blue": {**before["blue"], "paused": False}}
    assert mco.upgraded == names


@pytest.mark.slow
@proves("MUT-47", "MUT-48")
def test_a_failing_job_stops_everything_and_a_retry_resumes_there(stage: Stage, mco: FakeMco) -> None:
    """Failed Jobs halt the run; a retry resumes it there, and creates no Job for a finished node.

    While the run is halted, the pools stay paused and the remaining nodes keep their labels.
    """
    names = stage.workers("blue", 3)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("good")
    stage.rule("picky", delay="1h")
    run = stage.run("example", ["good", "picky"], ["all"])
    stage.reaches(run, "Waiting")
    stage.cvo.want(NEW)
    stage.end_job(names[0], "picky")
    stage.end_job(names[1], "picky", "Failed")
    stopped = stage.reaches(run, "Failed")

    verdict = condition(stopped, "JobRun")
    assert (verdict["status"], verdict["reason"]) == ("False", "JobRunFailed")
    assert f"node 2 of 3, {names[1]}" in verdict["message"]
    assert stage.labelled() == set(names[1:])
    assert stage.pool_now("blue")["spec"]["paused"] is True
    assert "DoesNotExist" in str(stage.pool_now("canary")["spec"]["nodeSelector"])
    stage.tick()
    count = len(stage.created())
    stage.cluster.kubectl("annotate", "mutexrunconfig", "example", "-n", NAMESPACE, "nodemaintenance.dev/retry=1")
    for name in names[1:]:
        stage.end_job(name, "picky")
    stage.reaches(run, "Finished")

    jobs = [told(job) for job in stage.created()]
    assert count == 4
    assert len(jobs) == 7
    once = [(name, rule) for name in names for rule in ("good", "picky")]
    assert sorted(jobs) == sorted([*once, (names[1], "picky")])
    assert mco.upgraded == names


def pausing_early(stage: Stage) -> tuple[list[str], str, dict[str, Object]]:
    """Create a run that pauses its pools early and then waits for the control plane.

    Returns the node names, the run's path and the pools' selectors before the run.
    """
    names = stage.workers("blue", 2)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only")
    run = stage.run("example", ["only"], ["all"])
    stage.admin.patch(run, {"spec": {"pauseEarly": True}})
    stage.reaches(run, "Waiting")
    before = stage.selectors()
    stage.cvo.want(NEW, "Partial")
    stage.reaches(run, "LabellingNodes")
    return names, run, before


@pytest.mark.slow
@proves("C26", "MUT-32")
def test_pools_that_are_paused_early_wait_for_the_control_plane(stage: Stage, mco: FakeMco) -> None:
    """Runs that pause their pools early create labels and Jobs only after the control plane's upgrade."""
    names, run, before = pausing_early(stage)
    stage.settle()
    assert stage.pool_now("blue")["spec"]["paused"] is True
    assert stage.labelled() == set()
    assert stage.created() == []

    stage.cvo.want(NEW)
    stage.reaches(run, "Finished")

    assert mco.upgraded == names
    assert stage.selectors() == before


@pytest.mark.slow
@proves("C26", "MUT-51")
def test_an_upgrade_that_is_called_off_gives_the_pools_back_with_its_run(stage: Stage) -> None:
    """Runs report an upgrade that was cancelled while their pools are paused; deleting a run restores its pools."""
    _names, run, before = pausing_early(stage)
    stage.cvo.want("", "Partial", OLD)
    told = "the ClusterVersion has no spec.desiredUpdate.version"
    stage.until(run, lambda item: condition(item, "UpgradeReady").get("message") == told)
    stage.delete(run)
    stage.until(run, lambda item: item is None)

    assert stage.selectors() == before
    assert [claim for claim in stage.claims() if claim] == []


@pytest.mark.slow
@proves("MUT-50", "X-2")
def test_a_finished_run_rests_and_a_new_version_begins_another(stage: Stage, mco: FakeMco) -> None:
    """Finished runs write nothing at ticks; a new version starts another run with its own Jobs."""
    names = stage.workers("blue", 1)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only")
    run = stage.run("example", ["only"], ["all"])
    stage.reaches(run, "Waiting")
    stage.cvo.want(NEW)
    stage.reaches(run, "Finished")
    stage.tick()  # wait until the events in flight are processed
    version = stage.admin.get(run)["metadata"]["resourceVersion"]
    audit = stage.audit()
    for _ in range(2):
        stage.tick()
    assert [entry for entry in audit.writes_by() if entry["objectRef"]["resource"] != "leases"] == []
    assert stage.admin.get(run)["metadata"]["resourceVersion"] == version

    stage.cvo.want("4.17.0")
    stage.until(run, lambda item: item["status"].get("record", {}).get("number") == 2)
    stage.reaches(run, "Finished")
    assert version_of(stage.node(names[0])) == "4.17.0"
    assert len(stage.created()) == 2


@proves("MUT-32", "MUT-30")
def test_nothing_is_touched_before_the_control_plane_is_upgraded(stage: Stage, mco: FakeMco) -> None:
    """Runs write to no pool or node before the control plane is Completed at the desired version."""
    stage.workers("blue", 1)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue", paused=True))
    stage.rule("only")
    run = stage.run("example", ["only"], ["all"])
    stage.reaches(run, "Waiting")
    audit = stage.audit()
    stage.cvo.want(NEW, reached=OLD)
    stage.until(run, lambda item: OLD in condition(item, "UpgradeReady").get("message", ""))
    stage.cvo.want(NEW, "Partial")
    stage.until(run, lambda item: "Partial" in condition(item, "UpgradeReady").get("message", ""))
    assert touched(audit) == []
    stage.cvo.want(NEW)
    item = stage.reaches(run, "Finished")
    assert "blue" in condition(item, "TargetPoolsPaused")["message"]


@pytest.mark.slow
@proves("MUT-30")
def test_a_rule_that_becomes_valid_lets_the_run_begin(stage: Stage, mco: FakeMco) -> None:
    """Runs begin once their invalid rule becomes valid, without a change of the run config.

    Before that, only conditions are written.
    """
    stage.workers("blue", 1)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("bad", jobSpec={"template": {"spec": {"containers": []}}})
    stage.cvo.want(NEW)
    audit = stage.audit()
    run = stage.run("example", ["bad"], ["all"])
    item = stage.reaches(run, "Invalid")
    assert "bad" in condition(item, "ConfigValidated")["message"]
    assert touched(audit) == []
    stage.amend("bad")
    stage.reaches(run, "Finished")


@pytest.mark.slow
@proves("MUT-44")
def test_two_runs_over_one_pool_run_one_after_the_other(stage: Stage, mco: FakeMco) -> None:
    """Runs wait for another run over the same pool, with a condition that names it."""
    stage.workers("blue", 2)
    stage.canary()
    stage.canary("other")
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only", delay="500ms")
    runs = [stage.run("one", ["only"], ["all"])]
    stage.reaches(runs[0], "Waiting")
    with Watcher(stage.admin) as watcher:
        stage.cvo.want(NEW)
        stage.reaches(runs[0], "RunningJobs")
        runs.append(stage.run("two", ["only"], ["all"], canary="other"))
        waiting = stage.until(
            runs[1], lambda item: "/one" in condition(item or {}, "TargetPoolsPaused").get("message", "")
        )
        stage.reaches(runs[0], "Finished")
        stage.until(runs[1], lambda item: condition(item, "UpgradeAvailable").get("status") == "False")
    assert "node-upgrade-mutex-operator/one" in condition(waiting, "TargetPoolsPaused")["message"]
    assert watcher.together == []
