"""Unit tests of the report on a run: steps, nodes, Jobs and what the run waits for, in each of its states."""

from __future__ import annotations

from typing import Any

import pytest

from console.operations.run_reports import DONE, NOW, STOPPED, TO_COME, report, waits_for
from kube.paths import Object

RULE = {"namespace": "ns", "name": "disks"}
EARLY, LATE, LATER = (f"2026-01-01T00:0{minute}:00Z" for minute in (1, 2, 3))
CREATED = "2026-01-01T00:00:00Z"
EDITED: Object = {"pausedAt": EARLY, "labelledAt": EARLY, "editedAt": EARLY}
JOB: Object = {"attempt": 1, "namespace": "jobs", "name": "disks-1", "uid": "u", "createdAt": LATE}
COMPLETE = {**JOB, "result": "Complete", "endedAt": LATER}
VALID = {"type": "ConfigValidated", "status": "True", "message": "", "lastTransitionTime": EARLY}


def node(**fields: Any) -> Object:
    return {"uid": "1", **fields}


def run(first: Object | None = None, conditions: list[Object] | None = None, step: str = "", **record: Any) -> Object:
    """Build a run config whose run covers two nodes; `record` holds additional fields of the run record."""
    known = {
        "id": "uid-1",
        "number": 1,
        "desired": "4.16.4",
        "startedAt": EARLY,
        "rules": [RULE],
        "order": ["n1", "n2"],
        "nodes": {"n1": first or node(), "n2": node()},
        "pools": {},
        "canary": {"name": "c"},
        **record,
    }
    metadata = {"name": "r", "namespace": "ns", "uid": "uid", "generation": 1, "creationTimestamp": CREATED}
    status = {"record": known, "step": step, "conditions": [VALID, *(conditions or [])]}
    return {"kind": "MutexRunConfig", "metadata": metadata, "spec": {}, "status": status}


def condition(kind: str, state: str, message: str) -> Object:
    return {"type": kind, "status": state, "reason": "R", "message": message, "lastTransitionTime": LATE}


JOBS = {"main:ns/disks": JOB}
DONE_JOBS = {"main:ns/disks": COMPLETE}
RELEASED = node(jobs=DONE_JOBS, releasedAt=LATER)
FAILURE: Object = {"step": "run-job", "message": "it broke", "job": "disks-1", "at": LATER}


@pytest.mark.parametrize(
    ("item", "what", "since"),
    [
        (run(), "its pools to be paused", EARLY),
        (run(conditions=[condition("TargetPoolsPaused", "False", "a/b under way")]), "a/b", LATE),
        (run(pausedAt=LATE), "its nodes to be labelled", LATE),
        (run(pausedAt=EARLY, labelledAt=LATE), "its pools to be edited", LATE),
        (run(**EDITED), "the next Job for node n1", EARLY),
        (run(node(jobs=JOBS), **EDITED), "Job jobs/disks-1 of rule ns/disks for node n1", LATE),
        (run(node(jobs=DONE_JOBS), **EDITED), "node n1 to be released", LATER),
        (
            run(node(jobs=DONE_JOBS), [condition("NodeUpgrade", "False", "node 1 of 2, n1: it is under")], **EDITED),
            "node 1 of 2, n1: it is under",
            LATE,
        ),
        (run(RELEASED, **EDITED), "node n1 to carry version 4.16.4", LATER),
        (run(RELEASED, [condition("NodeUpgrade", "False", "n1: at 4.15.9")], **EDITED), "n1: at 4.15.9", LATER),
        (run({**RELEASED, "upgradedAt": LATER}, **EDITED), "the next Job for node n1", LATER),
        (run(nodes={"n1": node(cleanedAt=LATE), "n2": node(droppedAt=LATER)}, **EDITED), "given back", LATER),
        (run(node(jobs=JOBS), failure=FAILURE, **EDITED), "it broke", LATER),
        (run(conditions=[condition("ConfigValidated", "False", "no rule x")]), "its pools to be paused", EARLY),
    ],
)
def test_what_a_run_under_way_waits_for_and_since_when(item: Object, what: str, since: str) -> None:
    """Check what an active run waits for, by its record, or by a condition if it waits for another actor."""
    wait = waits_for(item)
    assert wait is not None
    assert what in wait.what
    assert wait.since == since


def test_a_stopped_run_names_the_command_that_resumes_it() -> None:
    wait = waits_for(run(failure=FAILURE, **EDITED))
    assert wait is not None
    assert "kubectl maintenance mutex retry ns/r" in wait.remedy


@pytest.mark.parametrize(
    ("conditions", "what"),
    [
        ([condition("UpgradeChecked", "False", "no version on n1")], "no version on n1"),
        ([condition("UpgradeReady", "False", "still Partial")], "still Partial"),
        (
            [condition("UpgradeAvailable", "True", "n1"), condition("TargetPoolsPaused", "False", "x")],
            "x",
        ),
    ],
)
def test_what_a_run_config_without_a_run_waits_for(conditions: list[Object], what: str) -> None:
    item = run(conditions=conditions, step="Waiting")
    del item["status"]["record"]
    wait = waits_for(item)
    assert wait is not None
    assert what in wait.what


def test_a_config_that_is_not_valid_waits_for_what_is_named() -> None:
    item = run(step="Invalid")
    item["status"] = {"step": "Invalid", "conditions": [condition("ConfigValidated", "False", "there is no ns/x")]}
    shown = report(item)
    assert shown["waits"]["what"] == "there is no ns/x"
    assert [each["state"] for each in shown["steps"]] == [STOPPED, *[TO_COME] * 6]


def test_new_ending_and_finished_ones() -> None:
    """Check the reports on a finished run, on one under deletion, and on a new one without a status."""
    item = run(step="Finished", finishedAt=LATER, nodes={"n1": node(cleanedAt=LATE), "n2": node(cleanedAt=LATER)})
    item["status"]["record"].update(EDITED)
    assert report(item)["waits"] is None
    assert {each["state"] for each in report(item)["steps"]} == {DONE}
    item["metadata"]["deletionTimestamp"] = LATE
    assert report(item)["step"] == "Ending"
    assert report(item)["waits"]["since"] == LATE
    new = {**item, "metadata": {**item["metadata"], "deletionTimestamp": None}, "status": {}}
    assert (report(new)["step"], report(new)["waits"]["since"]) == ("New", CREATED)


def test_nodes_have_their_state_and_jobs_their_result_and_the_command_for_their_log() -> None:
    """Check that the current node has the state of the run, and that main Jobs are listed before cleanup Jobs."""
    jobs = {"cleanup:ns/disks": {**JOB, "name": "cleanup-1"}, "main:ns/disks": COMPLETE}
    shown = report(run({**RELEASED, "upgradedAt": LATER, "jobs": jobs}, **EDITED))
    first, second = shown["nodes"]
    assert (first["state"], first["since"], second["state"]) == ("CleaningUp", LATER, "Waiting")
    assert [(job["name"], job["result"], job["logs"]) for job in first["jobs"]] == [
        ("disks-1", "Complete", "kubectl logs -n jobs job/disks-1"),
        ("cleanup-1", "Running", "kubectl logs -n jobs job/cleanup-1"),
    ]
    assert [each["state"] for each in shown["steps"]] == [*[DONE] * 5, NOW, TO_COME]
    assert shown["steps"][5]["step"] == "Nodes upgraded (0 of 2)"


def test_a_job_that_failed_is_told_as_failed() -> None:
    shown = report(run(node(jobs=JOBS), failure=FAILURE, **EDITED))
    assert shown["nodes"][0]["jobs"][0]["result"] == "Failed"
    assert shown["nodes"][0]["state"] == "Failed"
    assert shown["steps"][5]["state"] == STOPPED
