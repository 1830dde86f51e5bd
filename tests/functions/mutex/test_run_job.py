"""Tests of `run-job`, which runs the Jobs of a node one after another, each once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from eventing import events
from kube.mutex import jobs, pools
from kube.mutex.jobs import jobs_path
from kube.mutex.objects import NAMESPACE, RULE, RUN, Reference, condition, path, path_of
from kube.mutex.versions import VERSION_LABEL
from kube.paths import Object
from tests.fault_proxy import Fault, Faults
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import CONTAINER, NEW, Upgrade, job_spec, rule_spec
from tests.proofs import proves

ONLY = Reference(NAMESPACE, "only")


def pod_of(job: Object) -> Object:
    found: Object = job["spec"]["template"]["spec"]
    return found


@proves("MUT-42", "X-2")
def test_each_job_is_created_once_however_often_it_is_asked_for(upgrade: Upgrade) -> None:
    """Check that a Job is created once, even if its record was lost.

    The record is lost if the process is killed between the two writes.
    """
    upgrade.start()
    for _ in range(3):
        assert upgrade.answer("run-job", events.POOLS_EDITED) == ""
    (job,) = upgrade.jobs()
    assert job["metadata"]["name"].startswith("only-")
    assert job["metadata"]["name"].endswith("-1")
    gone = {"status": {"record": {"nodes": {upgrade.nodes[0]: {"jobs": None}}}}}
    upgrade.admin.patch(f"{path_of(RUN, NAMESPACE, 'example')}/status", gone)
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert [each["metadata"]["uid"] for each in upgrade.jobs()] == [job["metadata"]["uid"]]
    (entry,) = upgrade.status()["record"]["nodes"][upgrade.nodes[0]]["jobs"].values()
    assert entry["uid"] == job["metadata"]["uid"]


@proves("MUT-42", "MUT-47")
def test_a_job_of_somebody_else_lets_no_node_pass(upgrade: Upgrade) -> None:
    """Check that a Job with the expected name that the run has not created halts the run; the condition reports it."""
    upgrade.start()
    rule = upgrade.admin.get(path_of(RULE, NAMESPACE, "only"))
    node, run_id = upgrade.node(upgrade.nodes[0]), upgrade.status()["record"]["id"]
    body = jobs.job_of(rule, jobs.MAIN, run_id, node, 1)
    del body["metadata"]["labels"]
    made = upgrade.admin.create(jobs_path(NAMESPACE), body)
    assert upgrade.answer("run-job", events.POOLS_EDITED) == events.RUN_STOPPED
    assert "this run has not made" in condition(upgrade.again(upgrade.run), "JobRun")["message"]
    assert not upgrade.status()["record"]["nodes"][upgrade.nodes[0]].get("jobs")
    upgrade.admin.delete(f"{jobs_path(NAMESPACE)}/{made['metadata']['name']}", uid=made["metadata"]["uid"])


@proves("MUT-41")
def test_a_job_is_its_rules_and_is_told_of_node_rule_and_run(upgrade: Upgrade) -> None:
    """Check that a Job keeps its rule's pod template and gets the variables and affinity of the run.

    The run's variables take precedence over the rule's. Command and arguments stay unchanged.
    """
    own = {"name": "NODE_NAME", "value": "mine"}, {"name": "OTHER", "value": "kept"}
    container = {**CONTAINER, "command": ["sleep"], "args": ["30"], "env": list(own)}
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    spec = job_spec(containers=[container, {**CONTAINER, "name": "two"}], affinity=affinity)
    upgrade.admin.patch(path_of(RULE, NAMESPACE, "only"), {"spec": {"jobSpec": spec}})
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    (job,) = upgrade.jobs()
    first, second = pod_of(job)["containers"]
    ours = {"NODE_NAME": upgrade.nodes[0], "MUTEX_RULE": "only", "MUTEX_RUN": upgrade.status()["record"]["id"]}
    assert {each["name"]: each["value"] for each in first["env"]} == {**ours, "OTHER": "kept"}
    assert {each["name"]: each["value"] for each in second["env"]} == ours
    assert (first["command"], first["args"]) == (["sleep"], ["30"])
    terms = pod_of(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [upgrade.nodes[0]]}
    assert terms["nodeSelectorTerms"] == [{"matchExpressions": [zone, away]}] * 2
    told = upgrade.admin.list(f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
    assert any(each["reason"] == "VariableOverridden" and "NODE_NAME" in each["message"] for each in told)


@proves("MUT-47", "MUT-1")
def test_a_template_that_is_refused_only_at_its_creation_stops_the_run(upgrade: Upgrade) -> None:
    """Check that a Job that the API server rejects halts the run, and later events change nothing.

    The rule was changed after its check. The condition contains the API server's message.
    """
    upgrade.start()
    bad = rule_spec(jobSpec={"template": {"spec": {"restartPolicy": "Never", "containers": []}}})
    upgrade.admin.patch(path_of(RULE, NAMESPACE, "only"), {"spec": bad})
    assert upgrade.answer("run-job", events.POOLS_EDITED) == events.RUN_STOPPED
    found = condition(upgrade.again(upgrade.run), "JobRun")
    assert (found["status"], found["reason"], "containers" in found["message"]) == ("False", "JobRunFailed", True)
    assert upgrade.jobs() == []
    assert upgrade.answer("run-job", events.JOB_DUE) == ""


@proves("MUT-1")
def test_a_namespace_that_no_administrator_lists_gets_no_job(upgrade: Upgrade) -> None:
    """Check that the run halts if the step may not create Jobs in the rule's namespace.

    The condition names the verb.
    """
    upgrade.start()
    upgrade.admin.patch(path_of(RULE, NAMESPACE, "only"), {"spec": {"jobNamespace": "default"}})
    assert upgrade.answer("run-job", events.POOLS_EDITED) == events.RUN_STOPPED
    assert "cannot create" in condition(upgrade.again(upgrade.run), "JobRun")["message"]
    assert upgrade.admin.list(jobs_path("default"))["items"] == []


@proves("MUT-42", "MUT-40")
def test_a_job_is_looked_for_where_it_was_created(upgrade: Upgrade) -> None:
    """Check that a running Job is found although its rule names another namespace now.

    The run is not halted, and no second Job is created.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    upgrade.rule = upgrade.admin.patch(path(upgrade.rule), {"spec": {"jobNamespace": "default"}})
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert "failure" not in upgrade.status()["record"]
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED


@proves("MUT-40", "MUT-42", "MUT-1")
def test_a_look_at_a_job_that_is_refused_stops_no_run(upgrade: Upgrade, spoiled: Functions, faults: Faults) -> None:
    """Check that a rejected read of a running Job does not halt the run.

    The condition contains the error, and the Job's end continues the run.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    faults.spoil(lambda request: Fault(403, "cannot get jobs") if request.startswith("get jobs") else None)
    assert spoiled.answer("run-job", upgrade.said(events.JOB_DUE)) is None
    faults.speak_again()
    assert "failure" not in upgrade.status()["record"]
    assert condition(upgrade.again(upgrade.run), "JobRun")["message"] == "cannot get jobs"
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEARED
    assert len(upgrade.jobs()) == 1


@proves("MUT-42", "X-2")
def test_a_conflict_with_no_job_is_tried_again(upgrade: Upgrade, spoiled: Functions, faults: Faults) -> None:
    """Check that a conflict about another object is retried by the broker and does not halt the run.

    For example, the creation of a Job conflicts with a concurrent write of a resource quota.
    """
    upgrade.start()
    quota = Fault(409, 'Operation cannot be fulfilled on resourcequotas "jobs": the object has been modified')
    faults.spoil(lambda request: quota if request.startswith("create jobs") else None)
    assert spoiled.post("run-job", upgrade.said(events.POOLS_EDITED)).status_code == 503
    faults.speak_again()
    assert "failure" not in upgrade.status()["record"]
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert len(upgrade.jobs()) == 1


@pytest.mark.slow
@proves("MUT-40", "MUT-35")
@pytest.mark.parametrize("anew", [False, True])
def test_a_node_that_goes_amid_its_job_is_dropped_when_that_ends(upgrade: Upgrade, anew: bool) -> None:
    """Check that a node that is deleted or recreated during its Job is dropped only when the Job has ended.

    Until then, no other node's Job is created, whichever step notices the deletion.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    name, (job,) = upgrade.nodes[0], upgrade.jobs()
    upgrade.remove(name, anew=anew)
    assert events.JOB_DUE not in [reply.get_type() for reply in upgrade.told_by_a_tick()]
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert upgrade.answer("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert upgrade.answer("run-job", events.POOLS_EDITED) == ""
    assert len(upgrade.jobs()) == 1
    assert "droppedAt" not in upgrade.status()["record"]["nodes"][name]
    upgrade.end(job)
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEANED
    assert "droppedAt" in upgrade.status()["record"]["nodes"][name]
    upgrade.answer("run-job", events.NODE_CLEANED)
    assert len(upgrade.jobs()) == 2


@pytest.mark.slow
@proves("MUT-40", "MUT-42")
@pytest.mark.parametrize("anew", [False, True])
def test_a_node_that_goes_before_its_job_is_recorded_is_dropped_when_that_ends(
    upgrade: Upgrade, spoiled: Functions, faults: Faults, anew: bool
) -> None:
    """Check that the Job of a deleted node is found by its name if it was created but not recorded.

    The process was killed after the creation. The Job is recorded now, so its end triggers the step, which drops the
    node.
    """
    upgrade.start()
    spoil = Fault(504, "the answer was lost")
    faults.spoil(lambda request: spoil if request.startswith("patch mutexrunconfigs/status") else None)
    assert spoiled.post("run-job", upgrade.said(events.POOLS_EDITED)).status_code == 503
    faults.speak_again()
    name, (job,) = upgrade.nodes[0], upgrade.jobs()
    upgrade.remove(name, anew=anew)
    assert upgrade.answer("run-job", events.POOLS_EDITED) == ""
    record = upgrade.status()["record"]
    assert "droppedAt" not in record["nodes"][name]
    assert [each["uid"] for each in record["nodes"][name]["jobs"].values()] == [job["metadata"]["uid"]]
    assert events.JOB_DUE not in [reply.get_type() for reply in upgrade.told_by_a_tick()]
    upgrade.end(job)
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEANED
    assert len(upgrade.jobs()) == 1


@proves("MUT-40")
def test_the_nodes_that_were_done_last_keep_their_jobs_whatever_their_names(upgrade: Upgrade) -> None:
    """Check that the record keeps the Jobs of the nodes that finished last, in the run's order and not by name."""
    upgrade.start()
    names = [f"{pool}-{number:02}" for pool in ("worker", "infra") for number in range(30)]
    known = {"cleanedAt": "2026-01-01T00:00:00Z", "jobs": {jobs.job_key(jobs.MAIN, ONLY): {"name": "only-1"}}}
    done = {name: {"uid": name, **known} for name in names}
    upgrade.write_record({"order": [*names, *upgrade.nodes], "nodes": done})
    upgrade.remove(upgrade.nodes[0])
    assert upgrade.answer("run-job", events.POOLS_EDITED) == events.NODE_CLEANED
    record = upgrade.status()["record"]
    assert [name for name in names if "jobs" in record["nodes"][name]] == names[11:]


def with_a_paused_canary(upgrade: Upgrade) -> Callable[[], object]:
    where = pools.pool_path("canary")
    upgrade.admin.patch(where, {"spec": {"paused": True}})
    return lambda: upgrade.admin.patch(where, {"spec": {"paused": False}})


def without_its_rule(upgrade: Upgrade) -> Callable[[], object]:
    upgrade.admin.delete(path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])

    def mend() -> None:
        upgrade.rule = upgrade.create(RULE, "only", rule_spec())
        upgrade.judge()

    return mend


@pytest.mark.slow
@proves("MUT-40", "MUT-47")
@pytest.mark.parametrize("spoil", [with_a_paused_canary, without_its_rule])
def test_a_job_that_ends_while_the_config_is_not_valid_is_recorded(
    upgrade: Upgrade, spoil: Callable[[Upgrade], Callable[[], object]]
) -> None:
    """Check that a Job's result is recorded while the run config is not valid, before the Job's TTL deletes it.

    The run continues only when the config is valid again.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    mend = spoil(upgrade)
    assert upgrade.answer("check-run", events.RUN_FOUND) == ""
    assert upgrade.told_by_a_tick() == []
    (job,) = upgrade.jobs()
    upgrade.end(job)
    assert [reply.get_type() for reply in upgrade.told_by_a_tick()] == [events.JOB_DUE]
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert upgrade.answer("release-node", events.NODE_CLEARED) == ""
    assert upgrade.told_by_a_tick() == []
    mend()
    assert upgrade.answer("check-run", events.RUN_FOUND) == events.NODE_CLEARED
    assert upgrade.answer("release-node", events.NODE_CLEARED) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-46", "MUT-47")
def test_a_job_that_fails_while_the_config_is_not_valid_stops_the_run(upgrade: Upgrade) -> None:
    """Check that a failed Job halts the run at once while the run config is not valid.

    The run does not resume when the config is valid again.
    """
    upgrade.start()
    upgrade.answer("run-job", events.POOLS_EDITED)
    mend = with_a_paused_canary(upgrade)
    assert upgrade.answer("check-run", events.RUN_FOUND) == ""
    upgrade.end(upgrade.jobs()[-1], "Failed")
    assert upgrade.answer("run-job", events.JOB_DUE) == events.RUN_STOPPED
    mend()
    assert upgrade.answer("check-run", events.RUN_FOUND) == ""
    assert upgrade.told_by_a_tick() == []


def upgraded(upgrade: Upgrade) -> str:
    """Advance the run to the end of its first node's upgrade, and return that node's name."""
    name = upgrade.release()
    upgrade.label(name, {VERSION_LABEL: NEW})
    assert upgrade.answer("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED
    return name


@proves("MUT-46", "MUT-44")
def test_behind_the_upgrade_comes_the_cleanup_job_and_then_the_next_node(upgrade: Upgrade) -> None:
    """Check that the cleanup Job follows the upgrade, and the next node's Job follows the cleanup Job.

    Before the next Job is created, the node loses the run's label and the record its `released` node.
    """
    name = upgraded(upgrade)
    upgrade.answer("run-job", events.NODE_UPGRADED)
    job = upgrade.jobs()[-1]
    assert job["metadata"]["name"].startswith("cleanup-only-")
    assert {each["name"] for each in pod_of(job)["containers"][0]["env"]} == {"NODE_NAME", "MUTEX_RULE", "MUTEX_RUN"}
    assert upgrade.status()["record"]["released"] == name
    upgrade.end(job)
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEANED
    assert "released" not in upgrade.status()["record"]
    assert "nodemaintenance.dev/mutex-run" not in upgrade.node(name)["metadata"]["labels"]
    upgrade.answer("run-job", events.NODE_CLEANED)
    assert len(upgrade.jobs()) == 3


@pytest.mark.slow
@proves("MUT-41", "MUT-46")
def test_a_cleanup_job_keeps_its_own_affinity_and_variables_beside_ours(upgrade: Upgrade) -> None:
    """Check that a cleanup Job keeps its rule's affinity and variables besides those of the run, as the main Job does.

    Each of its node selector terms also excludes the upgraded node.
    """
    zones = [{"key": "zone", "operator": "In", "values": [zone]} for zone in "ab"]
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]} for zone in zones]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [zones[0]]}}]
    spread = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    affinity: Object = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "podAntiAffinity": spread,
    }
    own = {"name": "NODE_NAME", "value": "mine"}, {"name": "OTHER", "value": "kept"}
    container = {**CONTAINER, "command": ["sleep"], "args": ["30"], "env": list(own)}
    cleanup = job_spec(containers=[container], affinity=affinity)
    upgrade.rule = upgrade.admin.patch(path(upgrade.rule), {"spec": {"cleanUpJobSpec": cleanup}})
    name = upgraded(upgrade)

    upgrade.answer("run-job", events.NODE_UPGRADED)

    main, cleaning = upgrade.jobs()
    assert cleaning["metadata"]["name"].startswith("cleanup-only-")
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [name]}
    kept_off = {"nodeSelectorTerms": [{"matchExpressions": [zone, away]} for zone in zones]}
    node_affinity = {**affinity["nodeAffinity"], "requiredDuringSchedulingIgnoredDuringExecution": kept_off}
    assert pod_of(cleaning)["affinity"] == {**affinity, "nodeAffinity": node_affinity}
    alone = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [away]}]}}
    assert pod_of(main)["affinity"] == {"nodeAffinity": alone}
    (made,) = pod_of(cleaning)["containers"]
    ours = {"NODE_NAME": name, "MUTEX_RULE": "only", "MUTEX_RUN": upgrade.status()["record"]["id"]}
    assert {each["name"]: each["value"] for each in made["env"]} == {**ours, "OTHER": "kept"}
    assert (made["command"], made["args"]) == (["sleep"], ["30"])


@pytest.mark.slow
@proves("MUT-46", "MUT-51")
def test_a_rule_that_is_away_for_a_moment_has_its_cleanup_job_waited_for(upgrade: Upgrade) -> None:
    """Check that a node is not done while its rule does not exist, because only the rule states its cleanup Job."""
    name = upgraded(upgrade)
    upgrade.admin.delete(path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])
    assert upgrade.answer("run-job", events.NODE_UPGRADED) == ""
    assert "cleanedAt" not in upgrade.status()["record"]["nodes"][name]
    assert len(upgrade.jobs()) == 1

    upgrade.rule = upgrade.create(RULE, "only", rule_spec())
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert upgrade.jobs()[-1]["metadata"]["name"].startswith("cleanup-only-")


@pytest.mark.slow
@proves("MUT-46", "MUT-40")
def test_a_cleanup_job_that_runs_is_waited_for_when_its_rule_has_none_any_more(upgrade: Upgrade) -> None:
    """Check that a running cleanup Job is awaited although its rule no longer has one.

    Otherwise the next node's Job would run concurrently.
    """
    name = upgraded(upgrade)
    upgrade.answer("run-job", events.NODE_UPGRADED)
    upgrade.rule = upgrade.admin.patch(path(upgrade.rule), {"spec": {"cleanUpJobSpec": None}})
    upgrade.judge()
    assert upgrade.told_by_a_tick() == []
    assert upgrade.answer("run-job", events.JOB_DUE) == ""
    assert "cleanedAt" not in upgrade.status()["record"]["nodes"][name]
    upgrade.end(upgrade.jobs()[-1])
    assert upgrade.answer("run-job", events.JOB_DUE) == events.NODE_CLEANED
    assert len(upgrade.jobs()) == 2
