"""Tests for the report on an upgrade run in each state: its steps, nodes and Jobs, and what the run waits for."""

from __future__ import annotations

from typing import Any

import pytest

from console.operations.run_reports import STEP_CURRENT, STEP_DONE, STEP_HALTED, STEP_PENDING, build_report, find_wait
from kube.paths import Object

RULE = {"namespace": "ns", "name": "disks"}
EARLY_TIME, LATE_TIME, LATEST_TIME = (f"2026-01-01T00:0{minute}:00Z" for minute in (1, 2, 3))
CREATED = "2026-01-01T00:00:00Z"
EDITED_POOLS: Object = {"pausedAt": EARLY_TIME, "labelledAt": EARLY_TIME, "editedAt": EARLY_TIME}
JOB: Object = {"attempt": 1, "namespace": "jobs", "name": "disks-1", "uid": "u", "createdAt": LATE_TIME}
COMPLETE_JOB = {**JOB, "result": "Complete", "endedAt": LATEST_TIME}
NEXT_VERSION_TEXT = "the next desired version after 4.16.4, which starts another run"
VALID_CONDITION = {"type": "ConfigValidated", "status": "True", "message": "", "lastTransitionTime": EARLY_TIME}


def build_node(**fields: Any) -> Object:
    return {"uid": "1", **fields}


def build_run_config(
    first_node: Object | None = None, conditions: list[Object] | None = None, step: str = "", **record: Any
) -> Object:
    """Build a MutexRunConfig whose run upgrades two nodes; `record` contains additional fields of the run record."""
    fields = {
        "id": "uid-1",
        "number": 1,
        "desired": "4.16.4",
        "startedAt": EARLY_TIME,
        "rules": [RULE],
        "order": ["n1", "n2"],
        "nodes": {"n1": first_node or build_node(), "n2": build_node()},
        "pools": {},
        "canary": {"name": "c"},
        **record,
    }
    metadata = {"name": "r", "namespace": "ns", "uid": "uid", "generation": 1, "creationTimestamp": CREATED}
    status = {"record": fields, "step": step, "conditions": [VALID_CONDITION, *(conditions or [])]}
    return {"kind": "MutexRunConfig", "metadata": metadata, "spec": {}, "status": status}


def build_condition(condition_type: str, state: str, message: str) -> Object:
    return {"type": condition_type, "status": state, "reason": "R", "message": message, "lastTransitionTime": LATE_TIME}


RUNNING_JOBS = {"main:ns/disks": JOB}
DONE_JOBS = {"main:ns/disks": COMPLETE_JOB}
RELEASED_NODE = build_node(jobs=DONE_JOBS, releasedAt=LATEST_TIME)
JOB_FAILURE: Object = {"step": "run-job", "message": "Job failed", "job": "disks-1", "at": LATEST_TIME}


@pytest.mark.parametrize(
    ("run_config", "expected_text", "expected_since"),
    [
        (build_run_config(), "the run's pools to be paused", EARLY_TIME),
        (
            build_run_config(conditions=[build_condition("TargetPoolsPaused", "False", "a/b under way")]),
            "a/b",
            LATE_TIME,
        ),
        (build_run_config(pausedAt=LATE_TIME), "the run's nodes to be labelled", LATE_TIME),
        (build_run_config(pausedAt=EARLY_TIME, labelledAt=LATE_TIME), "the run's pools to be edited", LATE_TIME),
        (build_run_config(**EDITED_POOLS), "the next Job for node n1", EARLY_TIME),
        (
            build_run_config(build_node(jobs=RUNNING_JOBS), **EDITED_POOLS),
            "Job jobs/disks-1 of rule ns/disks for node n1",
            LATE_TIME,
        ),
        (build_run_config(build_node(jobs=DONE_JOBS), **EDITED_POOLS), "node n1 to be released", LATEST_TIME),
        (
            build_run_config(
                build_node(jobs=DONE_JOBS),
                [build_condition("NodeUpgrade", "False", "node 1 of 2, n1: it is under")],
                **EDITED_POOLS,
            ),
            "node 1 of 2, n1: it is under",
            LATE_TIME,
        ),
        (build_run_config(RELEASED_NODE, **EDITED_POOLS), "node n1 to be upgraded to version 4.16.4", LATEST_TIME),
        (
            build_run_config(RELEASED_NODE, [build_condition("NodeUpgrade", "False", "n1: at 4.15.9")], **EDITED_POOLS),
            "n1: at 4.15.9",
            LATEST_TIME,
        ),
        (
            build_run_config({**RELEASED_NODE, "upgradedAt": LATEST_TIME}, **EDITED_POOLS),
            "the next Job for node n1",
            LATEST_TIME,
        ),
        (
            build_run_config(
                nodes={"n1": build_node(cleanedAt=LATE_TIME), "n2": build_node(droppedAt=LATEST_TIME)}, **EDITED_POOLS
            ),
            "the run's pools to be restored",
            LATEST_TIME,
        ),
        (
            build_run_config(build_node(jobs=RUNNING_JOBS), failure=JOB_FAILURE, **EDITED_POOLS),
            "Job failed",
            LATEST_TIME,
        ),
        (
            build_run_config(conditions=[build_condition("ConfigValidated", "False", "rule x not found")]),
            "the run's pools to be paused",
            EARLY_TIME,
        ),
    ],
)
def test_report_names_what_active_run_waits_for(run_config: Object, expected_text: str, expected_since: str) -> None:
    """Check that the report states what a run waits for, according to the run's record or to a condition."""
    wait = find_wait(run_config)
    assert wait is not None
    assert expected_text in wait.what
    assert wait.since == expected_since


def test_remedy_of_halted_run_contains_retry_command() -> None:
    wait = find_wait(build_run_config(failure=JOB_FAILURE, **EDITED_POOLS))
    assert wait is not None
    assert "kubectl maintenance mutex retry ns/r" in wait.remedy


@pytest.mark.parametrize(
    ("conditions", "expected_text"),
    [
        ([build_condition("UpgradeChecked", "False", "no version on n1")], "no version on n1"),
        ([build_condition("UpgradeReady", "False", "still Partial")], "still Partial"),
        (
            [build_condition("UpgradeAvailable", "False", "all workers have version 4.16.4 or newer")],
            "an upgrade: all workers have version 4.16.4 or newer",
        ),
        (
            [build_condition("UpgradeAvailable", "True", "n1"), build_condition("TargetPoolsPaused", "False", "x")],
            "x",
        ),
    ],
)
def test_report_names_what_run_config_without_run_waits_for(conditions: list[Object], expected_text: str) -> None:
    run_config = build_run_config(conditions=conditions, step="Waiting")
    del run_config["status"]["record"]
    wait = find_wait(run_config)
    assert wait is not None
    assert expected_text in wait.what


def test_report_of_invalid_run_config_contains_reason() -> None:
    run_config = build_run_config(step="Invalid")
    run_config["status"] = {
        "step": "Invalid",
        "conditions": [build_condition("ConfigValidated", "False", "ns/x not found")],
    }
    report = build_report(run_config)
    assert report["waits"]["what"] == "ns/x not found"
    assert [step["state"] for step in report["steps"]] == [STEP_HALTED, *[STEP_PENDING] * 6]


def test_reports_of_finished_deleted_and_new_runs() -> None:
    """Check the reports on a finished run, on a run that is being deleted, and on a new run config without a status."""
    run_config = build_run_config(
        step="Finished",
        finishedAt=LATEST_TIME,
        nodes={"n1": build_node(cleanedAt=LATE_TIME), "n2": build_node(cleanedAt=LATEST_TIME)},
    )
    run_config["status"]["record"].update(EDITED_POOLS)
    assert build_report(run_config)["waits"] == {
        "what": NEXT_VERSION_TEXT,
        "since": LATEST_TIME,
        "remedy": "to prevent this, run kubectl delete mutexrunconfig -n ns r",
    }
    assert {step["state"] for step in build_report(run_config)["steps"]} == {STEP_DONE}
    run_config["metadata"]["deletionTimestamp"] = LATE_TIME
    assert build_report(run_config)["step"] == "Ending"
    assert build_report(run_config)["waits"]["since"] == LATE_TIME
    new_run_config = {**run_config, "metadata": {**run_config["metadata"], "deletionTimestamp": None}, "status": {}}
    assert (build_report(new_run_config)["step"], build_report(new_run_config)["waits"]["since"]) == ("New", CREATED)


@pytest.mark.parametrize(
    ("condition", "expected_step", "expected_text"),
    [
        (build_condition("UpgradeAvailable", "False", "the run is finished"), "Finished", NEXT_VERSION_TEXT),
        (build_condition("UpgradeAvailable", "True", "n1 is older than 4.16.5"), "Waiting", "n1 is older than 4.16.5"),
        (build_condition("UpgradeReady", "False", "still Partial"), "Waiting", "still Partial"),
    ],
)
def test_run_stays_finished_until_next_upgrade(condition: Object, expected_step: str, expected_text: str) -> None:
    """Check the report on a MutexRunConfig whose step is `Waiting` again because it was checked after its run."""
    report = build_report(build_run_config(conditions=[condition], step="Waiting", finishedAt=LATEST_TIME))
    assert report["step"] == expected_step
    assert report["waits"]["what"] == expected_text


def test_report_contains_node_states_job_results_and_log_commands() -> None:
    """Check that the current node has the run's state, and that its main Jobs are listed before its cleanup Jobs."""
    jobs = {"cleanup:ns/disks": {**JOB, "name": "cleanup-1"}, "main:ns/disks": COMPLETE_JOB}
    report = build_report(build_run_config({**RELEASED_NODE, "upgradedAt": LATEST_TIME, "jobs": jobs}, **EDITED_POOLS))
    first_node, second_node = report["nodes"]
    assert (first_node["state"], first_node["since"], second_node["state"]) == ("CleaningUp", LATEST_TIME, "Waiting")
    assert [(job["name"], job["result"], job["logs"]) for job in first_node["jobs"]] == [
        ("disks-1", "Complete", "kubectl logs -n jobs job/disks-1"),
        ("cleanup-1", "Running", "kubectl logs -n jobs job/cleanup-1"),
    ]
    assert [step["state"] for step in report["steps"]] == [*[STEP_DONE] * 5, STEP_CURRENT, STEP_PENDING]
    assert report["steps"][5]["step"] == "Nodes upgraded (0 of 2)"


def test_failed_job_is_reported_as_failed() -> None:
    report = build_report(build_run_config(build_node(jobs=RUNNING_JOBS), failure=JOB_FAILURE, **EDITED_POOLS))
    assert report["nodes"][0]["jobs"][0]["result"] == "Failed"
    assert report["nodes"][0]["state"] == "Failed"
    assert report["steps"][5]["state"] == STEP_HALTED
