"""Tests for upgrade runs that users disturb or delete, for example by removing labels or reapplying manifests."""

from __future__ import annotations

import pytest

from kube.mutex.nodes import is_released
from kube.mutex.objects import DEFAULT_NAMESPACE, RULE_KIND, RUN_KIND, build_path, get_condition, is_condition_true
from kube.mutex.versions import get_version
from kube.nodes import build_node_path
from localcluster.processes import wait_until_ready
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import JOBS_PATH, NEW_VERSION, OLD_VERSION, build_job_spec
from tests.chain.admission_policies import apply_policy, is_rejected
from tests.chain.mutex.environment import MutexEnvironment, get_node_and_rule
from tests.proofs import proves

pytestmark = pytest.mark.slow

STEPS = ("Waiting", "Invalid", "RunningJobs", "Failed", "UpgradingNode", "CleaningUp", "Finished")


def create_waiting_run(environment: MutexEnvironment, count: int = 2, delay: str = "1h") -> tuple[str, list[str]]:
    """Create a run that waits for the upgrade of one MachineConfigPool; return the run's path and the node names.

    By default, the pods of the run's Jobs run until the test ends them.
    """
    names = environment.create_workers("blue", count)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only", cleanup=True, delay=delay)
    run = environment.create_run("example", ["only"], ["all"])
    environment.wait_for_step(run, "Waiting")
    return run, names


def advance_run_to(environment: MutexEnvironment, run: str, step: str, names: list[str]) -> None:
    """Advance the run until its first node is at this step."""
    if step == "Invalid":
        environment.request_deletion(build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"))
    if step in ("Waiting", "Invalid"):
        environment.wait_for_step(run, step)
        return
    environment.cvo.set_desired_version(NEW_VERSION)
    environment.wait_for_step(run, "RunningJobs")
    if step == "RunningJobs":
        environment.wait_for_state(run, lambda run_config: run_config["status"].get("job"))
    elif step == "Failed":
        environment.end_job_pod(names[0], "only", "Failed")
    else:
        environment.end_job_pod(names[0], "only")
    if step in ("CleaningUp", "Finished"):
        environment.wait_for_step(run, "UpgradingNode")
        environment.set_node_version(names[0])
    if step == "Finished":
        environment.end_job_pod(names[0], "only")
    environment.wait_for_step(run, step)


@proves("MUT-51", "MUT-49")
@pytest.mark.parametrize("state", STEPS)
def test_deleting_run_restores_selectors_pauses_and_labels(environment: MutexEnvironment, state: str) -> None:
    """Check that deleting a run restores selectors, pauses and labels, and that only released nodes were upgraded."""
    run, names = create_waiting_run(environment, count=1 if state == "Finished" else 2)
    original_selectors = environment.get_pool_selectors()
    advance_run_to(environment, run, state, names)
    environment.request_deletion(run)
    environment.wait_for_state(run, lambda run_config: run_config is None)

    assert environment.get_pool_selectors() == original_selectors
    assert environment.list_labelled_nodes() == set()
    assert get_version(environment.get_node(names[-1])) == (NEW_VERSION if state == "Finished" else OLD_VERSION)
    assert [claim for claim in environment.list_claim_uids() if claim] == []


@proves("MUT-51")
def test_deleting_run_restores_selectors_then_labels_then_pauses(environment: MutexEnvironment) -> None:
    """Check that deleting a run first restores the node selectors, then removes the labels, then unpauses the pools.

    In this order, no unlabeled node joins the canary, and no node is upgraded before its own pool resumes.
    """
    run, names = create_waiting_run(environment)
    advance_run_to(environment, run, "RunningJobs", names)
    audit = environment.start_audit()
    environment.request_deletion(run)
    environment.wait_for_state(run, lambda run_config: run_config is None)
    writes = [
        (entry["objectRef"]["resource"], entry["objectRef"]["name"], str(entry["requestObject"]))
        for entry in audit.list_writes_by()
        if entry["objectRef"]["resource"] in ("machineconfigpools", "nodes")
    ]
    order = [(resource, name, "nodeSelector" in body, "paused" in body) for resource, name, body in writes]
    assert order[:2] == [("machineconfigpools", "canary", True, False), ("machineconfigpools", "blue", True, False)]
    assert sorted(order[2:4]) == [("nodes", name, False, False) for name in names]
    assert ("machineconfigpools", "blue", False, True) in order[4:]


@proves("MUT-36")
def test_canary_pool_is_edited_again_after_manifest_is_reapplied(environment: MutexEnvironment) -> None:
    """Check that a run changes the canary pool again after a user has reapplied the pool's manifest."""
    run, names = create_waiting_run(environment)
    original_selectors = environment.get_pool_selectors()["canary"]
    advance_run_to(environment, run, "RunningJobs", names)
    edited_selector = environment.get_pool_selectors()["canary"]
    selector = {name: value for name, value in original_selectors.items() if name != "paused"}
    environment.replace_pool_fields("canary", {"nodeSelector": selector})
    environment.wait_for_state(environment.build_pool_path("canary"), lambda pool: "DoesNotExist" in str(pool["spec"]))
    assert environment.get_pool_selectors()["canary"] == edited_selector


@proves("MUT-43", "X-3")
def test_removed_rule_labels_are_added_again(environment: MutexEnvironment) -> None:
    """Check that the next resync tick restores rule labels that a user removed before the node's Jobs completed."""
    run, names = create_waiting_run(environment)
    advance_run_to(environment, run, "RunningJobs", names)
    environment.remove_rule_labels(names[1])
    assert is_released(environment.get_node(names[1]))
    environment.send_tick()
    environment.wait_for_state(build_node_path(names[1]), lambda node: not is_released(node))


@proves("MUT-42", "MUT-48")
def test_deleted_job_halts_run(environment: MutexEnvironment) -> None:
    """Check that deleting a Job halts the run until the run config's spec is changed.

    The result of a deleted Job is unknown.
    """
    run, names = create_waiting_run(environment)
    advance_run_to(environment, run, "RunningJobs", names)
    (job,) = environment.list_jobs()
    environment.request_deletion(f"{JOBS_PATH}/{job['metadata']['name']}")
    run_config = environment.wait_for_step(run, "Failed")
    assert "deleted before its result was known" in get_condition(run_config, "JobRun")["message"]
    assert environment.list_labelled_nodes() == set(names)
    environment.client.patch(run, {"spec": {"skipTLSVerify": True}})
    environment.end_job_pod(names[0], "only")
    environment.wait_for_step(run, "UpgradingNode")
    assert [get_node_and_rule(current_job) for current_job in environment.list_jobs()] == [(names[0], "only")]


@proves("MUT-47", "MUT-48")
def test_run_halts_if_job_creation_is_rejected(environment: MutexEnvironment) -> None:
    """Check that a run halts with the policy's message if an admission policy rejects a Job, until a user retries.

    The policy does not reject dry runs, so the rule is still valid.
    """
    run, names = create_waiting_run(environment)
    jobs_path = "/apis/batch/v1/namespaces/default/jobs"

    def create_job() -> None:
        job = environment.client.create(
            jobs_path, {"metadata": {"generateName": "attempt-"}, "spec": build_job_spec("1h")}
        )
        environment.client.delete(f"{jobs_path}/{job['metadata']['name']}", uid=job["metadata"]["uid"])

    rule = {"apiGroups": ["batch"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["jobs"]}
    with apply_policy(
        environment, "no-jobs", rule, "request.dryRun", "creating Jobs is forbidden by the test", create_job
    ):
        environment.client.patch(
            build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"), {"spec": {"jobSpec": build_job_spec("2h")}}
        )
        environment.cvo.set_desired_version(NEW_VERSION)
        halted_run = environment.wait_for_step(run, "Failed")
        assert is_condition_true(
            environment.client.get(build_path(RULE_KIND, DEFAULT_NAMESPACE, "only")), "ValidConfig"
        )
        assert "creating Jobs is forbidden by the test" in get_condition(halted_run, "JobRun")["message"]
        environment.send_tick()
        assert environment.list_jobs() == []
        assert environment.list_labelled_nodes() == set(names)
    wait_until_ready("no policy", lambda: not is_rejected(create_job), environment.product.servers)
    environment.client.patch(run, {"metadata": {"annotations": {"nodemaintenance.dev/retry": "1"}}})
    environment.end_job_pod(names[0], "only")
    environment.wait_for_step(run, "UpgradingNode")


@proves("MUT-46")
def test_failed_cleanup_job_halts_run(environment: MutexEnvironment) -> None:
    """Check that a failed cleanup Job halts the run; the node stays released, and the next node keeps its labels."""
    run, names = create_waiting_run(environment)
    advance_run_to(environment, run, "CleaningUp", names)
    environment.end_job_pod(names[0], "only", "Failed")
    run_config = environment.wait_for_step(run, "Failed")
    assert get_condition(run_config, "JobRun")["reason"] == "CleanUpJobFailed"
    assert get_version(environment.get_node(names[0])) == NEW_VERSION
    assert is_released(environment.get_node(names[0]))
    assert not is_released(environment.get_node(names[1]))


@proves("MUT-35", "MUT-45")
def test_run_skips_deleted_nodes(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run skips deleted nodes, whether already released or not, and finishes with the remaining nodes."""
    run, names = create_waiting_run(environment, 3)
    fake_mco.skip_nodes(names[0])
    advance_run_to(environment, run, "UpgradingNode", names)
    environment.request_deletion(build_node_path(names[0]))
    environment.request_deletion(build_node_path(names[1]))
    environment.send_tick()
    environment.end_job_pod(names[2], "only")
    environment.wait_for_state(build_node_path(names[2]), lambda node: get_version(node) == NEW_VERSION)
    environment.end_job_pod(names[2], "only")
    run_config = environment.wait_for_step(run, "Finished")
    dropped_nodes = [name for name, node in run_config["status"]["record"]["nodes"].items() if node.get("droppedAt")]
    assert dropped_nodes == names[:2]


@proves("MUT-45")
def test_run_waits_for_currently_desired_version(environment: MutexEnvironment) -> None:
    """Check that a run waits until the node has the ClusterVersion's current desired version.

    The run also waits while no version is desired.
    """
    run, names = create_waiting_run(environment)
    advance_run_to(environment, run, "UpgradingNode", names)
    environment.cvo.set_desired_version("", completed_version=NEW_VERSION)
    environment.send_tick()
    environment.set_node_version(names[0], NEW_VERSION)
    environment.wait_for_state(
        run,
        lambda run_config: (
            "no longer requests a version" in get_condition(run_config, "NodeUpgrade").get("message", "")
        ),
    )
    environment.cvo.set_desired_version("4.16.5")
    environment.set_node_version(names[0], "4.16.5")
    environment.wait_for_step(run, "CleaningUp")


@proves("MUT-51")
def test_deleted_rule_halts_run_until_recreated(environment: MutexEnvironment) -> None:
    """Check that deleting a rule halts a run until the rule is recreated, and that a condition reports the deletion."""
    run, names = create_waiting_run(environment)
    advance_run_to(environment, run, "RunningJobs", names)
    environment.request_deletion(build_path(RULE_KIND, DEFAULT_NAMESPACE, "only"))
    run_config = environment.wait_for_state(
        run, lambda run_config: get_condition(run_config, "ConfigValidated").get("status") == "False"
    )
    assert "node-upgrade-mutex-operator/only not found" in get_condition(run_config, "ConfigValidated")["message"]
    environment.end_job_pod(names[0], "only")
    environment.send_tick()
    assert environment.list_labelled_nodes() == set(names)
    environment.create_rule("only", cleanup=True)
    environment.wait_for_step(run, "UpgradingNode")


@proves("MUT-33")
def test_run_with_deleted_pool_halts_and_can_be_deleted(environment: MutexEnvironment) -> None:
    """Check that deleting a MachineConfigPool invalidates its target and halts the run, which can still be deleted."""
    run, names = create_waiting_run(environment)
    canary = environment.get_pool_selectors()["canary"]
    advance_run_to(environment, run, "RunningJobs", names)
    environment.request_deletion(environment.build_pool_path("blue"))
    environment.send_tick()
    environment.wait_for_state(
        run, lambda run_config: get_condition(run_config, "ConfigValidated").get("status") == "False"
    )
    environment.request_deletion(run)
    environment.wait_for_state(
        build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"), lambda run_config: run_config is None
    )
    assert environment.list_labelled_nodes() == set()
    assert environment.get_pool_selectors() == {"canary": canary}
    assert environment.list_claim_uids() == [""]
    assert {get_version(environment.get_node(name)) for name in names} == {OLD_VERSION}
