"""Tests for complete upgrade runs: from the new desired version to the restored MachineConfigPools."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest

from chaos.release_watcher import ReleaseWatcher
from kube.mutex.objects import DEFAULT_NAMESPACE, RULE_LABEL_PREFIX, get_condition
from kube.mutex.pools import POOLS_PATH
from kube.mutex.versions import get_version
from kube.paths import Object
from localcluster.audit_log import AuditLog
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import JOBS_PATH, NEW_VERSION, OLD_VERSION
from tests.chain.mutex.environment import MutexEnvironment, get_node_and_rule
from tests.proofs import proves

DOTTED_RULE_NAME = "first.of.two"


def parse_time(job: Object, time_field: str) -> datetime:
    text = job["metadata"][time_field] if time_field == "creationTimestamp" else job["status"][time_field]
    return datetime.fromisoformat(text.replace("Z", "+00:00"))


def list_node_and_pool_writes(audit: AuditLog) -> list[Object]:
    """Return the product's writes to nodes and pools."""
    return [
        entry for entry in audit.list_writes_by() if entry["objectRef"]["resource"] in ("nodes", "machineconfigpools")
    ]


class WriteOrder:
    """The successful writes in an audit log, used to check the order of a run's writes."""

    def __init__(self, audit: AuditLog) -> None:
        self._successful_writes = [
            entry for entry in audit.list_persisted_writes() if entry["responseStatus"]["code"] < 300
        ]

    def list_write_positions(self, resource: str, verb: str, text: str) -> list[int]:
        """Return the positions of the product's writes to a resource whose request body contains `text`."""
        return [
            position
            for position, entry in enumerate(self._successful_writes)
            if (entry["objectRef"]["resource"], entry["verb"]) == (resource, verb)
            and text in str(entry.get("requestObject"))
            and entry["user"]["username"].startswith("system:serviceaccount:node-maintenance")
        ]


@proves("MUT-13", "MUT-33", "MUT-35", "MUT-36", "MUT-37", "MUT-40", "MUT-43", "MUT-44", "MUT-46", "MUT-49")
@proves("C24", "C25", "C27")
def test_run_upgrades_two_pools_with_two_rules(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check steps 1 to 7 of the specification for two pools and two rules, one with cleanup Jobs and a dotted name."""
    names = [*environment.create_workers("blue", 2), *environment.create_workers("green", 2, NEW_VERSION)]
    fake_mco.skip_nodes(*names)  # `fake_mco` must not upgrade a node before the run pauses the pools.
    environment.create_canary()
    environment.create_target(
        "both", environment.create_pool("blue", "blue"), environment.create_pool("green", "green")
    )
    environment.create_rule(DOTTED_RULE_NAME, cleanup=True, jobName="first")
    environment.create_rule("second")
    run = environment.create_run("example", ["second", DOTTED_RULE_NAME], ["both"])
    environment.wait_for_step(run, "Waiting")
    original_selectors, audit = environment.get_pool_selectors(), environment.start_audit()
    with ReleaseWatcher(environment.client) as watcher:
        environment.cvo.set_desired_version(NEW_VERSION)
        for name in ("blue", "green"):
            environment.wait_for_state(f"{POOLS_PATH}/{name}", lambda pool: bool(pool and pool["spec"].get("paused")))
        fake_mco.skip_nodes()
        run_config = environment.wait_for_step(run, "Finished")

    assert run_config["status"]["record"]["order"] == names
    assert (watcher.released, watcher.concurrently_released_nodes) == (names, [])
    assert fake_mco.upgraded == names[:2]
    assert [get_version(environment.get_node(name)) for name in names] == [NEW_VERSION] * 4
    assert environment.get_pool_selectors() == original_selectors
    assert environment.list_labelled_nodes() == set()
    order = WriteOrder(audit)
    steps = [
        order.list_write_positions("machineconfigpools", "patch", "/spec/paused', 'value': True"),
        order.list_write_positions(
            "nodes",
            "patch",
            f"{RULE_LABEL_PREFIX.replace('/', '~1')}{DOTTED_RULE_NAME}.{DEFAULT_NAMESPACE}', 'value': ''",
        ),
        order.list_write_positions("machineconfigpools", "patch", "DoesNotExist"),
        order.list_write_positions("jobs", "create", "mutex"),
    ]
    assert [len(positions) for positions in steps] == [2, 4, 1, 12]
    assert all(max(before) < min(after) for before, after in pairwise(steps))
    edit_positions = order.list_write_positions("machineconfigpools", "patch", "'operator': 'Exists'")
    assert max(steps[1]) < min(edit_positions) < max(edit_positions[:2]) < min(steps[2])
    _assert_jobs_ran_in_order(environment, names)


def _assert_jobs_ran_in_order(environment: MutexEnvironment, names: list[str]) -> None:
    """Assert that each node's Jobs ran one at a time, in the order of the rules, with the cleanup Job last."""
    jobs = environment.client.list(JOBS_PATH)["items"]
    jobs.sort(key=lambda job: int(job["metadata"]["resourceVersion"]))
    started_jobs = [(*get_node_and_rule(job), job["metadata"]["name"].startswith("cleanup-")) for job in jobs]
    expected = [
        (name, *job)
        for name in names
        for job in (("second", False), (DOTTED_RULE_NAME, False), (DOTTED_RULE_NAME, True))
    ]
    assert started_jobs == expected
    end_and_next_start_times = [
        (parse_time(earlier, "completionTime"), parse_time(later, "creationTimestamp"))
        for earlier, later in pairwise(jobs)
    ]
    assert all(end <= start for end, start in end_and_next_start_times)


@pytest.mark.slow
@proves("MUT-34", "MUT-49")
def test_previously_paused_pool_is_reported_and_unpaused_at_end(
    environment: MutexEnvironment, fake_mco: FakeMco
) -> None:
    """Check that a run reports which pools were already paused, and unpauses them at its end (step 7).

    Before its end, the run does not change the field `paused` of these pools.
    """
    names = [*environment.create_workers("blue", 1), *environment.create_workers("green", 1)]
    environment.create_canary()
    environment.create_target(
        "both", environment.create_pool("blue", "blue", paused=True), environment.create_pool("green", "green")
    )
    environment.create_rule("only")
    run = environment.create_run("example", ["only"], ["both"])
    environment.wait_for_step(run, "Waiting")
    original_selectors, audit = environment.get_pool_selectors(), environment.start_audit()
    environment.cvo.set_desired_version(NEW_VERSION)

    run_config = environment.wait_for_step(run, "Finished")

    assert "blue" in get_condition(run_config, "TargetPoolsPaused")["message"]
    assert "green" not in get_condition(run_config, "TargetPoolsPaused")["message"]
    paused_values = [
        (entry["objectRef"]["name"], change["value"])
        for entry in audit.list_writes_by()
        if entry["objectRef"]["resource"] == "machineconfigpools" and entry["responseStatus"]["code"] < 300
        for change in entry["requestObject"]
        if change["path"] == "/spec/paused"
    ]
    assert paused_values[0] == ("green", True)
    assert sorted(paused_values[1:]) == [("blue", False), ("green", False)]
    assert original_selectors["blue"]["paused"] is True
    assert environment.get_pool_selectors() == original_selectors | {
        "blue": {**original_selectors["blue"], "paused": False}
    }
    assert fake_mco.upgraded == names


@pytest.mark.slow
@proves("MUT-47", "MUT-48")
def test_failed_job_halts_run_until_retry(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a failed Job halts the run until the user retries, and that finished nodes then get no new Jobs.

    While the run is halted, the pools stay paused and the remaining nodes keep their labels.
    """
    names = environment.create_workers("blue", 3)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("good")
    environment.create_rule("picky", delay="1h")
    run = environment.create_run("example", ["good", "picky"], ["all"])
    environment.wait_for_step(run, "Waiting")
    environment.cvo.set_desired_version(NEW_VERSION)
    environment.end_job_pod(names[0], "picky")
    environment.end_job_pod(names[1], "picky", "Failed")
    halted_run = environment.wait_for_step(run, "Failed")

    condition = get_condition(halted_run, "JobRun")
    assert (condition["status"], condition["reason"]) == ("False", "JobRunFailed")
    assert f"node 2 of 3, {names[1]}" in condition["message"]
    assert environment.list_labelled_nodes() == set(names[1:])
    assert environment.get_pool("blue")["spec"]["paused"] is True
    assert "DoesNotExist" in str(environment.get_pool("canary")["spec"]["nodeSelector"])
    environment.send_tick()
    job_count_before_retry = len(environment.list_jobs())
    environment.cluster.kubectl(
        "annotate", "mutexrunconfig", "example", "-n", DEFAULT_NAMESPACE, "nodemaintenance.dev/retry=1"
    )
    for name in names[1:]:
        environment.end_job_pod(name, "picky")
    environment.wait_for_step(run, "Finished")

    jobs = [get_node_and_rule(job) for job in environment.list_jobs()]
    assert job_count_before_retry == 4
    assert len(jobs) == 7
    all_jobs_once = [(name, rule) for name in names for rule in ("good", "picky")]
    assert sorted(jobs) == sorted([*all_jobs_once, (names[1], "picky")])
    assert fake_mco.upgraded == names


def create_run_that_pauses_early(environment: MutexEnvironment) -> tuple[list[str], str, dict[str, Object]]:
    """Create a run that pauses its pools early and then waits for the control plane.

    Returns the node names, the run's path, and the pools' selectors before the run.
    """
    names = environment.create_workers("blue", 2)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only")
    run = environment.create_run("example", ["only"], ["all"])
    environment.client.patch(run, {"spec": {"pauseEarly": True}})
    environment.wait_for_step(run, "Waiting")
    original_selectors = environment.get_pool_selectors()
    environment.cvo.set_desired_version(NEW_VERSION, "Partial")
    environment.wait_for_step(run, "LabellingNodes")
    return names, run, original_selectors


@pytest.mark.slow
@proves("C26", "MUT-32")
def test_run_with_early_pause_waits_for_control_plane(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run that pauses its pools early adds no labels or Jobs before the control plane is upgraded."""
    names, run, original_selectors = create_run_that_pauses_early(environment)
    environment.wait_until_delivered()
    assert environment.get_pool("blue")["spec"]["paused"] is True
    assert environment.list_labelled_nodes() == set()
    assert environment.list_jobs() == []

    environment.cvo.set_desired_version(NEW_VERSION)
    environment.wait_for_step(run, "Finished")

    assert fake_mco.upgraded == names
    assert environment.get_pool_selectors() == original_selectors


@pytest.mark.slow
@proves("C26", "MUT-51")
def test_deleting_run_of_cancelled_upgrade_restores_pools(environment: MutexEnvironment) -> None:
    """Check that a run reports that its upgrade was cancelled, and that deleting the run unpauses its pools."""
    _names, run, original_selectors = create_run_that_pauses_early(environment)
    environment.cvo.set_desired_version("", "Partial", OLD_VERSION)
    message = "the ClusterVersion has no spec.desiredUpdate.version"
    environment.wait_for_state(
        run, lambda run_config: get_condition(run_config, "UpgradeReady").get("message") == message
    )
    environment.request_deletion(run)
    environment.wait_for_state(run, lambda run_config: run_config is None)

    assert environment.get_pool_selectors() == original_selectors
    assert [claim for claim in environment.list_claim_uids() if claim] == []


@pytest.mark.slow
@proves("MUT-50", "X-2")
def test_finished_run_writes_nothing_until_new_version(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a finished run writes nothing on ticks, and that a new version starts a run with its own Jobs."""
    names = environment.create_workers("blue", 1)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only")
    run = environment.create_run("example", ["only"], ["all"])
    environment.wait_for_step(run, "Waiting")
    environment.cvo.set_desired_version(NEW_VERSION)
    environment.wait_for_step(run, "Finished")
    environment.send_tick()  # Wait until the events in flight are delivered.
    version = environment.client.get(run)["metadata"]["resourceVersion"]
    audit = environment.start_audit()
    for _ in range(2):
        environment.send_tick()
    assert [entry for entry in audit.list_writes_by() if entry["objectRef"]["resource"] != "leases"] == []
    assert environment.client.get(run)["metadata"]["resourceVersion"] == version

    environment.cvo.set_desired_version("4.17.0")
    environment.wait_for_state(run, lambda run_config: run_config["status"].get("record", {}).get("number") == 2)
    environment.wait_for_step(run, "Finished")
    assert get_version(environment.get_node(names[0])) == "4.17.0"
    assert len(environment.list_jobs()) == 2


@proves("MUT-32", "MUT-30")
def test_run_writes_no_pool_or_node_before_control_plane_is_upgraded(
    environment: MutexEnvironment, fake_mco: FakeMco
) -> None:
    """Check that a run writes to no pool or node before the control plane has reached the desired version."""
    environment.create_workers("blue", 1)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue", paused=True))
    environment.create_rule("only")
    run = environment.create_run("example", ["only"], ["all"])
    environment.wait_for_step(run, "Waiting")
    audit = environment.start_audit()
    environment.cvo.set_desired_version(NEW_VERSION, completed_version=OLD_VERSION)
    environment.wait_for_state(
        run, lambda run_config: OLD_VERSION in get_condition(run_config, "UpgradeReady").get("message", "")
    )
    environment.cvo.set_desired_version(NEW_VERSION, "Partial")
    environment.wait_for_state(
        run, lambda run_config: "Partial" in get_condition(run_config, "UpgradeReady").get("message", "")
    )
    assert list_node_and_pool_writes(audit) == []
    environment.cvo.set_desired_version(NEW_VERSION)
    run_config = environment.wait_for_step(run, "Finished")
    assert "blue" in get_condition(run_config, "TargetPoolsPaused")["message"]


@pytest.mark.slow
@proves("MUT-30")
def test_run_begins_once_invalid_rule_becomes_valid(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run begins once its invalid rule becomes valid, without a change to the run config.

    Before that, the product writes only conditions.
    """
    environment.create_workers("blue", 1)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("bad", jobSpec={"template": {"spec": {"containers": []}}})
    environment.cvo.set_desired_version(NEW_VERSION)
    audit = environment.start_audit()
    run = environment.create_run("example", ["bad"], ["all"])
    run_config = environment.wait_for_step(run, "Invalid")
    assert "bad" in get_condition(run_config, "ConfigValidated")["message"]
    assert list_node_and_pool_writes(audit) == []
    environment.fix_rule("bad")
    environment.wait_for_step(run, "Finished")


@pytest.mark.slow
@proves("MUT-44")
def test_second_run_with_same_pool_waits_for_first_run(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run waits for another run that uses the same pool, and that a condition names the other run."""
    environment.create_workers("blue", 2)
    environment.create_canary()
    environment.create_canary("other")
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only", delay="500ms")
    runs = [environment.create_run("one", ["only"], ["all"])]
    environment.wait_for_step(runs[0], "Waiting")
    with ReleaseWatcher(environment.client) as watcher:
        environment.cvo.set_desired_version(NEW_VERSION)
        environment.wait_for_step(runs[0], "RunningJobs")
        runs.append(environment.create_run("two", ["only"], ["all"], canary="other"))
        waiting_run = environment.wait_for_state(
            runs[1],
            lambda run_config: "/one" in get_condition(run_config or {}, "TargetPoolsPaused").get("message", ""),
        )
        environment.wait_for_step(runs[0], "Finished")
        environment.wait_for_state(
            runs[1], lambda run_config: get_condition(run_config, "UpgradeAvailable").get("status") == "False"
        )
    assert "node-upgrade-mutex-operator/one" in get_condition(waiting_run, "TargetPoolsPaused")["message"]
    assert watcher.concurrently_released_nodes == []
