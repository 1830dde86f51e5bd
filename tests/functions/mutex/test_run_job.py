"""Tests for `run-job`, which runs the Jobs of a node sequentially, and each Job only once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from chaos.api_fault_proxy import Fault, FaultProxy
from eventing import events
from kube.mutex import jobs, pools
from kube.mutex.jobs import build_jobs_path
from kube.mutex.objects import (
    DEFAULT_NAMESPACE,
    RULE_KIND,
    RUN_KIND,
    Reference,
    build_object_path,
    build_path,
    get_condition,
)
from kube.mutex.versions import VERSION_LABEL
from kube.paths import Object
from tests.functions.conftest import Functions
from tests.functions.mutex.conftest import CONTAINER, NEW_VERSION, UpgradeScenario, build_job_spec, build_rule_spec
from tests.proofs import proves

RULE_REFERENCE = Reference(DEFAULT_NAMESPACE, "only")


def get_pod_spec(job: Object) -> Object:
    spec: Object = job["spec"]["template"]["spec"]
    return spec


@proves("MUT-42", "X-2")
def test_each_job_is_created_once(upgrade: UpgradeScenario) -> None:
    """Check that a Job is created only once, even if the write that records it was lost.

    That write is lost if the process is killed after it has created the Job.
    """
    upgrade.advance_to_jobs()
    for _ in range(3):
        assert upgrade.run_step("run-job", events.POOLS_EDITED) == ""
    (job,) = upgrade.list_jobs()
    assert job["metadata"]["name"].startswith("only-")
    assert job["metadata"]["name"].endswith("-1")
    status_patch = {"status": {"record": {"nodes": {upgrade.nodes[0]: {"jobs": None}}}}}
    upgrade.administrator_client.patch(f"{build_path(RUN_KIND, DEFAULT_NAMESPACE, 'example')}/status", status_patch)
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert [listed_job["metadata"]["uid"] for listed_job in upgrade.list_jobs()] == [job["metadata"]["uid"]]
    (job_record,) = upgrade.read_status()["record"]["nodes"][upgrade.nodes[0]]["jobs"].values()
    assert job_record["uid"] == job["metadata"]["uid"]


@proves("MUT-42", "MUT-47")
def test_job_of_other_creator_with_expected_name_halts_run(upgrade: UpgradeScenario) -> None:
    """Check that a Job with the expected name that the run did not create halts the run and is reported."""
    upgrade.advance_to_jobs()
    rule = upgrade.administrator_client.get(build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"))
    node, run_id = upgrade.read_node(upgrade.nodes[0]), upgrade.read_status()["record"]["id"]
    body = jobs.build_job(rule, jobs.MAIN, run_id, node, 1)
    del body["metadata"]["labels"]
    foreign_job = upgrade.administrator_client.create(build_jobs_path(DEFAULT_NAMESPACE), body)
    assert upgrade.run_step("run-job", events.POOLS_EDITED) == events.RUN_HALTED
    assert "does not belong to this run" in get_condition(upgrade.read_object(upgrade.run_config), "JobRun")["message"]
    assert not upgrade.read_status()["record"]["nodes"][upgrade.nodes[0]].get("jobs")
    upgrade.administrator_client.delete(
        f"{build_jobs_path(DEFAULT_NAMESPACE)}/{foreign_job['metadata']['name']}", uid=foreign_job["metadata"]["uid"]
    )


@proves("MUT-41")
def test_job_has_pod_template_of_rule_and_variables_of_run(upgrade: UpgradeScenario) -> None:
    """Check that a Job has its rule's pod template, with the environment variables and affinity of the run.

    The run's variables take precedence over the rule's variables. Command and arguments stay unchanged.
    """
    rule_variables = {"name": "NODE_NAME", "value": "mine"}, {"name": "OTHER", "value": "kept"}
    container = {**CONTAINER, "command": ["sleep"], "args": ["30"], "env": list(rule_variables)}
    zone = {"key": "zone", "operator": "In", "values": ["a"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]}, {"matchExpressions": [zone]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    spec = build_job_spec(containers=[container, {**CONTAINER, "name": "two"}], affinity=affinity)
    upgrade.administrator_client.patch(build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"), {"spec": {"jobSpec": spec}})
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    (job,) = upgrade.list_jobs()
    first_container, second_container = get_pod_spec(job)["containers"]
    run_variables = {
        "NODE_NAME": upgrade.nodes[0],
        "MUTEX_RULE": "only",
        "MUTEX_RUN": upgrade.read_status()["record"]["id"],
    }
    assert {variable["name"]: variable["value"] for variable in first_container["env"]} == {
        **run_variables,
        "OTHER": "kept",
    }
    assert {variable["name"]: variable["value"] for variable in second_container["env"]} == run_variables
    assert (first_container["command"], first_container["args"]) == (["sleep"], ["30"])
    terms = get_pod_spec(job)["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    exclusion = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [upgrade.nodes[0]]}
    assert terms["nodeSelectorTerms"] == [{"matchExpressions": [zone, exclusion]}] * 2
    recorded_events = upgrade.administrator_client.list(f"/api/v1/namespaces/{DEFAULT_NAMESPACE}/events")["items"]
    assert any(event["reason"] == "VariableOverridden" and "NODE_NAME" in event["message"] for event in recorded_events)


@proves("MUT-47", "MUT-1")
def test_rejected_job_halts_run(upgrade: UpgradeScenario) -> None:
    """Check that a Job that the API server rejects halts the run, and that later events change nothing.

    The rule was changed after its check. The condition contains the API server's message.
    """
    upgrade.advance_to_jobs()
    invalid_spec = build_rule_spec(jobSpec={"template": {"spec": {"restartPolicy": "Never", "containers": []}}})
    upgrade.administrator_client.patch(build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"), {"spec": invalid_spec})
    assert upgrade.run_step("run-job", events.POOLS_EDITED) == events.RUN_HALTED
    condition = get_condition(upgrade.read_object(upgrade.run_config), "JobRun")
    assert (condition["status"], condition["reason"], "containers" in condition["message"]) == (
        "False",
        "JobRunFailed",
        True,
    )
    assert upgrade.list_jobs() == []
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""


@proves("MUT-1")
def test_missing_permission_in_namespace_halts_run(upgrade: UpgradeScenario) -> None:
    """Check that the run halts if `run-job` may not create Jobs in the rule's namespace.

    The condition names the verb `create`, and the command that shows the missing Roles.
    """
    upgrade.advance_to_jobs()
    upgrade.administrator_client.patch(
        build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"), {"spec": {"jobNamespace": "default"}}
    )
    assert upgrade.run_step("run-job", events.POOLS_EDITED) == events.RUN_HALTED
    message = get_condition(upgrade.read_object(upgrade.run_config), "JobRun")["message"]
    assert "cannot create" in message
    assert message.endswith("run kubectl get role,rolebinding check-rule run-job -n default")
    assert upgrade.administrator_client.list(build_jobs_path("default"))["items"] == []


@proves("MUT-42", "MUT-40")
def test_job_is_found_in_its_original_namespace(upgrade: UpgradeScenario) -> None:
    """Check that a running Job is found even if its rule names a different namespace now.

    The run is not halted, and no second Job is created.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    upgrade.rule = upgrade.administrator_client.patch(
        build_object_path(upgrade.rule), {"spec": {"jobNamespace": "default"}}
    )
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert "failure" not in upgrade.read_status()["record"]
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_PREJOBS_DONE


@proves("MUT-40", "MUT-42", "MUT-1")
def test_rejected_read_of_job_does_not_halt_run(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a rejected read of a running Job does not halt the run.

    The condition contains the error, and the run continues after the end of the Job.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    fault_proxy.inject(lambda request: Fault(403, "cannot get jobs") if request.startswith("get jobs") else None)
    assert proxied_functions.invoke("run-job", upgrade.build_event(events.JOB_DUE)) is None
    fault_proxy.stop_faults()
    assert "failure" not in upgrade.read_status()["record"]
    assert get_condition(upgrade.read_object(upgrade.run_config), "JobRun")["message"] == "cannot get jobs"
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_PREJOBS_DONE
    assert len(upgrade.list_jobs()) == 1


@proves("MUT-42", "X-2")
def test_conflict_on_other_object_is_retried(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy
) -> None:
    """Check that a conflict on another object makes the broker retry the event, and does not halt the run.

    For example, the creation of a Job conflicts with a concurrent write of a resource quota.
    """
    upgrade.advance_to_jobs()
    quota_conflict = Fault(409, 'Operation cannot be fulfilled on resourcequotas "jobs": the object has been modified')
    fault_proxy.inject(lambda request: quota_conflict if request.startswith("create jobs") else None)
    assert proxied_functions.post("run-job", upgrade.build_event(events.POOLS_EDITED)).status_code == 503
    fault_proxy.stop_faults()
    assert "failure" not in upgrade.read_status()["record"]
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert len(upgrade.list_jobs()) == 1


@pytest.mark.slow
@proves("MUT-40", "MUT-35")
@pytest.mark.parametrize("recreate", [False, True])
def test_node_deleted_during_job_is_dropped_after_job_ends(upgrade: UpgradeScenario, recreate: bool) -> None:
    """Check that a node that is deleted or recreated during its Job is dropped only when the Job has ended.

    Until then, no other node's Job is created, whichever step notices the deletion.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    name, (job,) = upgrade.nodes[0], upgrade.list_jobs()
    upgrade.delete_node(name, recreate=recreate)
    assert events.JOB_DUE not in [reply.get_type() for reply in upgrade.resync_by_tick()]
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert upgrade.run_step("label-nodes", events.POOLS_PAUSED) == events.NODES_LABELLED
    assert upgrade.run_step("run-job", events.POOLS_EDITED) == ""
    assert len(upgrade.list_jobs()) == 1
    assert "droppedAt" not in upgrade.read_status()["record"]["nodes"][name]
    upgrade.end_job(job)
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_DONE
    assert "droppedAt" in upgrade.read_status()["record"]["nodes"][name]
    upgrade.run_step("run-job", events.NODE_DONE)
    assert len(upgrade.list_jobs()) == 2


@pytest.mark.slow
@proves("MUT-40", "MUT-42")
@pytest.mark.parametrize("recreate", [False, True])
def test_unrecorded_job_of_deleted_node_is_found(
    upgrade: UpgradeScenario, proxied_functions: Functions, fault_proxy: FaultProxy, recreate: bool
) -> None:
    """Check that the Job of a deleted node is found by its name if it was created but not recorded.

    The process was killed after the creation. `run-job` then records the Job, so that the Job's end triggers `run-job`,
    which drops the node.
    """
    upgrade.advance_to_jobs()
    gateway_timeout = Fault(504, "the response was lost")
    fault_proxy.inject(lambda request: gateway_timeout if request.startswith("patch mutexrunconfigs/status") else None)
    assert proxied_functions.post("run-job", upgrade.build_event(events.POOLS_EDITED)).status_code == 503
    fault_proxy.stop_faults()
    name, (job,) = upgrade.nodes[0], upgrade.list_jobs()
    upgrade.delete_node(name, recreate=recreate)
    assert upgrade.run_step("run-job", events.POOLS_EDITED) == ""
    record = upgrade.read_status()["record"]
    assert "droppedAt" not in record["nodes"][name]
    assert [job_record["uid"] for job_record in record["nodes"][name]["jobs"].values()] == [job["metadata"]["uid"]]
    assert events.JOB_DUE not in [reply.get_type() for reply in upgrade.resync_by_tick()]
    upgrade.end_job(job)
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_DONE
    assert len(upgrade.list_jobs()) == 1


@proves("MUT-40")
def test_record_keeps_jobs_of_last_nodes_in_run_order(upgrade: UpgradeScenario) -> None:
    """Check that the record keeps the Jobs only of the last nodes in the run's order, which differs from name order."""
    upgrade.advance_to_jobs()
    names = [f"{pool}-{number:02}" for pool in ("worker", "infra") for number in range(30)]
    node_record = {
        "cleanedAt": "2026-01-01T00:00:00Z",
        "jobs": {jobs.format_job_key(jobs.MAIN, RULE_REFERENCE): {"name": "only-1"}},
    }
    done_nodes = {name: {"uid": name, **node_record} for name in names}
    upgrade.write_record({"order": [*names, *upgrade.nodes], "nodes": done_nodes})
    upgrade.delete_node(upgrade.nodes[0])
    assert upgrade.run_step("run-job", events.POOLS_EDITED) == events.NODE_DONE
    record = upgrade.read_status()["record"]
    assert [name for name in names if "jobs" in record["nodes"][name]] == names[11:]


def pause_canary_pool(upgrade: UpgradeScenario) -> Callable[[], object]:
    """Pause the canary pool, and return a function that unpauses it."""
    path = pools.build_pool_path("canary")
    upgrade.administrator_client.patch(path, {"spec": {"paused": True}})
    return lambda: upgrade.administrator_client.patch(path, {"spec": {"paused": False}})


def delete_rule(upgrade: UpgradeScenario) -> Callable[[], object]:
    """Delete the run config's MutexRule, and return a function that creates the rule again."""
    upgrade.administrator_client.delete(build_object_path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])

    def recreate_rule() -> None:
        upgrade.rule = upgrade.create_object(RULE_KIND, "only", build_rule_spec())
        upgrade.check_rule_and_target()

    return recreate_rule


@pytest.mark.slow
@proves("MUT-40", "MUT-47")
@pytest.mark.parametrize("invalidate", [pause_canary_pool, delete_rule])
def test_job_result_is_recorded_while_run_config_is_invalid(
    upgrade: UpgradeScenario, invalidate: Callable[[UpgradeScenario], Callable[[], object]]
) -> None:
    """Check that a Job's result is recorded while the run config is not valid, before the Job's TTL deletes it.

    The run continues only when the run config is valid again.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    restore_config = invalidate(upgrade)
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == ""
    assert upgrade.resync_by_tick() == []
    (job,) = upgrade.list_jobs()
    upgrade.end_job(job)
    assert [reply.get_type() for reply in upgrade.resync_by_tick()] == [events.JOB_DUE]
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == ""
    assert upgrade.resync_by_tick() == []
    restore_config()
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == events.NODE_PREJOBS_DONE
    assert upgrade.run_step("release-node", events.NODE_PREJOBS_DONE) == events.NODE_RELEASED


@pytest.mark.slow
@proves("MUT-46", "MUT-47")
def test_failed_job_halts_run_while_run_config_is_invalid(upgrade: UpgradeScenario) -> None:
    """Check that a failed Job halts the run immediately while the run config is not valid.

    The run does not resume when the run config is valid again.
    """
    upgrade.advance_to_jobs()
    upgrade.run_step("run-job", events.POOLS_EDITED)
    unpause_canary = pause_canary_pool(upgrade)
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == ""
    upgrade.end_job(upgrade.list_jobs()[-1], "Failed")
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.RUN_HALTED
    unpause_canary()
    assert upgrade.run_step("check-run", events.RUN_CHECK_PENDING) == ""
    assert upgrade.resync_by_tick() == []


def advance_to_node_upgraded(upgrade: UpgradeScenario) -> str:
    """Advance the run to the end of its first node's upgrade, and return that node's name."""
    name = upgrade.advance_to_release()
    upgrade.patch_node_labels(name, {VERSION_LABEL: NEW_VERSION})
    assert upgrade.run_step("await-version", events.NODE_RELEASED) == events.NODE_UPGRADED
    return name


@proves("MUT-46", "MUT-44")
def test_cleanup_job_follows_upgrade_and_precedes_next_node(upgrade: UpgradeScenario) -> None:
    """Check that a node's cleanup Job follows its upgrade and precedes the next node's Job.

    Before the next node's Job is created, the run's label is removed from the node, and `released` from the record.
    """
    name = advance_to_node_upgraded(upgrade)
    upgrade.run_step("run-job", events.NODE_UPGRADED)
    job = upgrade.list_jobs()[-1]
    assert job["metadata"]["name"].startswith("cleanup-only-")
    assert {variable["name"] for variable in get_pod_spec(job)["containers"][0]["env"]} == {
        "NODE_NAME",
        "MUTEX_RULE",
        "MUTEX_RUN",
    }
    assert upgrade.read_status()["record"]["released"] == name
    upgrade.end_job(job)
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_DONE
    assert "released" not in upgrade.read_status()["record"]
    assert "nodemaintenance.dev/mutex-run" not in upgrade.read_node(name)["metadata"]["labels"]
    upgrade.run_step("run-job", events.NODE_DONE)
    assert len(upgrade.list_jobs()) == 3


@pytest.mark.slow
@proves("MUT-41", "MUT-46")
def test_cleanup_job_keeps_affinity_and_variables_of_rule(upgrade: UpgradeScenario) -> None:
    """Check that a cleanup Job, like a main Job, has the affinity and environment variables of its rule and its run.

    Each of the Job's node selector terms also excludes the upgraded node.
    """
    zones = [{"key": "zone", "operator": "In", "values": [zone]} for zone in "ab"]
    required = {"nodeSelectorTerms": [{"matchExpressions": [zone]} for zone in zones]}
    preferred = [{"weight": 1, "preference": {"matchExpressions": [zones[0]]}}]
    pod_anti_affinity = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "zone"}]}
    affinity: Object = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": required,
            "preferredDuringSchedulingIgnoredDuringExecution": preferred,
        },
        "podAntiAffinity": pod_anti_affinity,
    }
    rule_variables = {"name": "NODE_NAME", "value": "mine"}, {"name": "OTHER", "value": "kept"}
    container = {**CONTAINER, "command": ["sleep"], "args": ["30"], "env": list(rule_variables)}
    cleanup = build_job_spec(containers=[container], affinity=affinity)
    upgrade.rule = upgrade.administrator_client.patch(
        build_object_path(upgrade.rule), {"spec": {"cleanUpJobSpec": cleanup}}
    )
    name = advance_to_node_upgraded(upgrade)

    upgrade.run_step("run-job", events.NODE_UPGRADED)

    main_job, cleanup_job = upgrade.list_jobs()
    assert cleanup_job["metadata"]["name"].startswith("cleanup-only-")
    exclusion = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [name]}
    required_terms = {"nodeSelectorTerms": [{"matchExpressions": [zone, exclusion]} for zone in zones]}
    node_affinity = {**affinity["nodeAffinity"], "requiredDuringSchedulingIgnoredDuringExecution": required_terms}
    assert get_pod_spec(cleanup_job)["affinity"] == {**affinity, "nodeAffinity": node_affinity}
    main_terms = {
        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [exclusion]}]}
    }
    assert get_pod_spec(main_job)["affinity"] == {"nodeAffinity": main_terms}
    (cleanup_container,) = get_pod_spec(cleanup_job)["containers"]
    run_variables = {"NODE_NAME": name, "MUTEX_RULE": "only", "MUTEX_RUN": upgrade.read_status()["record"]["id"]}
    assert {variable["name"]: variable["value"] for variable in cleanup_container["env"]} == {
        **run_variables,
        "OTHER": "kept",
    }
    assert (cleanup_container["command"], cleanup_container["args"]) == (["sleep"], ["30"])


@pytest.mark.slow
@proves("MUT-46", "MUT-51")
def test_node_waits_for_cleanup_job_of_missing_rule(upgrade: UpgradeScenario) -> None:
    """Check that a node is not done while its rule does not exist, because only the rule defines its cleanup Job."""
    name = advance_to_node_upgraded(upgrade)
    upgrade.administrator_client.delete(build_object_path(upgrade.rule), uid=upgrade.rule["metadata"]["uid"])
    assert upgrade.run_step("run-job", events.NODE_UPGRADED) == ""
    assert "cleanedAt" not in upgrade.read_status()["record"]["nodes"][name]
    assert len(upgrade.list_jobs()) == 1

    upgrade.rule = upgrade.create_object(RULE_KIND, "only", build_rule_spec())
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert upgrade.list_jobs()[-1]["metadata"]["name"].startswith("cleanup-only-")


@pytest.mark.slow
@proves("MUT-46", "MUT-40")
def test_run_waits_for_running_cleanup_job_that_was_removed_from_rule(upgrade: UpgradeScenario) -> None:
    """Check that the run waits for a running cleanup Job even if its rule no longer defines one.

    Otherwise the next node's Job would run concurrently.
    """
    name = advance_to_node_upgraded(upgrade)
    upgrade.run_step("run-job", events.NODE_UPGRADED)
    upgrade.rule = upgrade.administrator_client.patch(
        build_object_path(upgrade.rule), {"spec": {"cleanUpJobSpec": None}}
    )
    upgrade.check_rule_and_target()
    assert upgrade.resync_by_tick() == []
    assert upgrade.run_step("run-job", events.JOB_DUE) == ""
    assert "cleanedAt" not in upgrade.read_status()["record"]["nodes"][name]
    upgrade.end_job(upgrade.list_jobs()[-1])
    assert upgrade.run_step("run-job", events.JOB_DUE) == events.NODE_DONE
    assert len(upgrade.list_jobs()) == 2
