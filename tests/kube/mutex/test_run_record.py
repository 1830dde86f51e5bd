"""Tests for the record of an upgrade run: deriving the run's stage, halting and resuming, and the record's size."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from kube.mutex import nodes, run_record
from kube.mutex.jobs import CLEANUP, MAIN, format_job_key
from kube.mutex.objects import Condition, Reference, build_rule_label, build_status_patch, merge_conditions
from kube.mutex.run_record import DueJob, Stage
from kube.paths import Object
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RULES = [Reference("ns", "a"), Reference("ns", "b")]
NOW_TEXT = "2026-01-01T00:00:00Z"


def make_completed_jobs(job_kind: str, *rules: Reference) -> Object:
    return {
        format_job_key(job_kind, rule): {"attempt": 1, "name": "j", "uid": "u", "result": "Complete"} for rule in rules
    }


def make_run(first_node_record: Object | None = None, **record_fields: Any) -> Object:
    record: Object = {
        "id": "uid-1",
        "number": 1,
        "desired": "4.16.4",
        "rules": [rule._asdict() for rule in RULES],
        "order": ["n1", "n2"],
        "nodes": {"n1": {"uid": "1", **(first_node_record or {})}, "n2": {"uid": "2"}},
        "pools": {},
        "canary": {"name": "c"},
        **record_fields,
    }
    metadata = {"name": "r", "namespace": "ns", "uid": "uid", "generation": 3, "resourceVersion": "9"}
    return {"kind": "MutexRunConfig", "metadata": metadata, "spec": {}, "status": {"record": record}}


def has_cleanup(rule: Reference) -> bool:
    return rule.name == "b"


EDITED_RECORD: Object = {"pausedAt": NOW_TEXT, "labelledAt": NOW_TEXT, "editedAt": NOW_TEXT}
NODE_WITH_BEGUN_JOB: Object = {"jobs": {format_job_key(MAIN, RULES[0]): {"attempt": 1, "name": "j", "uid": "u"}}}
NODE_WITH_MAIN_JOBS_DONE = {"jobs": make_completed_jobs(MAIN, *RULES)}
RELEASED_NODE = {**NODE_WITH_MAIN_JOBS_DONE, "releasedAt": NOW_TEXT}
UPGRADED_NODE = {**RELEASED_NODE, "upgradedAt": NOW_TEXT}


@proves("MUT-40", "MUT-44")
@pytest.mark.parametrize(
    ("run", "stage"),
    [
        ({**make_run(), "status": {}}, Stage.IDLE),
        (make_run(finishedAt=NOW_TEXT), Stage.IDLE),
        (make_run(), Stage.CLAIMED),
        (make_run(pausedAt=NOW_TEXT), Stage.PAUSED),
        (make_run(pausedAt=NOW_TEXT, labelledAt=NOW_TEXT), Stage.LABELLED),
        (make_run(**EDITED_RECORD), Stage.JOBS),
        (make_run({"jobs": make_completed_jobs(MAIN, RULES[0])}, **EDITED_RECORD), Stage.JOBS),
        (make_run(NODE_WITH_MAIN_JOBS_DONE, **EDITED_RECORD), Stage.PREJOBS_DONE),
        (make_run(RELEASED_NODE, **EDITED_RECORD), Stage.RELEASED),
        (make_run(UPGRADED_NODE, **EDITED_RECORD), Stage.CLEANUP),
        (make_run({**UPGRADED_NODE, "cleanedAt": NOW_TEXT}, **EDITED_RECORD), Stage.JOBS),
        (make_run({"droppedAt": NOW_TEXT}, **EDITED_RECORD), Stage.JOBS),
        (make_run({"cleanedAt": NOW_TEXT}, **EDITED_RECORD, order=["n1"]), Stage.NODES_DONE),
        (make_run(order=[]), Stage.CLAIMED),
        (make_run(order=[], pausedAt=NOW_TEXT), Stage.NODES_DONE),
        (make_run({"droppedAt": NOW_TEXT}, order=["n1"], pausedAt=NOW_TEXT, labelledAt=NOW_TEXT), Stage.NODES_DONE),
        (make_run(**EDITED_RECORD, failure={"message": "m"}), Stage.FAILED),
    ],
)
def test_stage_of_run_is_derived_from_record(run: Object, stage: Stage) -> None:
    """Check that the stage of a run is derived from its record, in which nodes are upgraded one after another."""
    assert run_record.compute_stage(run) is stage


@proves("MUT-40", "MUT-46")
def test_cleanup_jobs_are_due_after_upgrade() -> None:
    """Check that cleanup Jobs are due after a node's upgrade, and only for rules that define a cleanup Job."""
    assert run_record.find_due_job(make_run()["status"]["record"], "n1", has_cleanup) == DueJob(MAIN, RULES[0])
    half_done = make_run({"jobs": make_completed_jobs(MAIN, RULES[0])})["status"]["record"]
    assert run_record.find_due_job(half_done, "n1", has_cleanup) == DueJob(MAIN, RULES[1])
    upgraded = make_run(UPGRADED_NODE)["status"]["record"]
    assert run_record.find_due_job(upgraded, "n1", has_cleanup) == DueJob(CLEANUP, RULES[1])
    assert run_record.find_due_job(upgraded, "n1", lambda _rule: False) is None


@proves("MUT-40", "MUT-46")
def test_run_waits_for_created_cleanup_job_that_its_rule_no_longer_defines() -> None:
    """Check that the run waits for a created cleanup Job that its rule no longer defines, but does not retry it."""
    created_job = {format_job_key(CLEANUP, RULES[1]): {"attempt": 1, "name": "j", "uid": "u"}}
    failure_change = run_record.build_failure_change(make_run(), "run-job", "m", node_name="n1", job_name="j", now=NOW)
    run = make_run(
        {**UPGRADED_NODE, "jobs": {**make_completed_jobs(MAIN, *RULES), **created_job}},
        **EDITED_RECORD,
        **failure_change,
    )
    record = run["status"]["record"]
    assert run_record.find_due_job(record, "n1", lambda _rule: False) == DueJob(CLEANUP, RULES[1])

    resumed = run_record.apply_merge_patch(record, run_record.build_resume_change(run, lambda _rule: False, NOW))
    assert run_record.find_due_job(resumed, "n1", lambda _rule: False) is None


@proves("MUT-48")
def test_run_is_resumed_by_spec_change_or_retry_annotation() -> None:
    """Check that a run is resumed only after a spec change or a new retry annotation.

    The failed Job gets another attempt, and the upgrade's time limit of a released node starts again.
    """
    failure_change = run_record.build_failure_change(make_run(), "run-job", "m", node_name="n1", job_name="j", now=NOW)
    run = make_run(NODE_WITH_BEGUN_JOB, **EDITED_RECORD, **failure_change)
    assert not run_record.is_resume_requested(run)
    run["metadata"]["annotations"] = {"nodemaintenance.dev/retry": "1"}
    assert run_record.is_resume_requested(run)
    assert run_record.is_resume_requested({**run, "metadata": {**run["metadata"], "generation": 4, "annotations": {}}})
    change = run_record.build_resume_change(run, has_cleanup, NOW)
    assert change["failure"] is None
    assert change["nodes"]["n1"]["jobs"][format_job_key(MAIN, RULES[0])]["attempt"] == 2
    failure = run_record.build_failure_change(make_run(), "await-version", "m", node_name="n1", now=NOW)
    resume_change = run_record.build_resume_change(
        make_run(RELEASED_NODE, **EDITED_RECORD, **failure), has_cleanup, NOW
    )
    assert resume_change["nodes"] == {"n1": {"releasedAt": NOW_TEXT}}


@proves("MUT-42", "MUT-48")
@pytest.mark.parametrize("node_record", [NODE_WITH_BEGUN_JOB, {}])
@pytest.mark.parametrize("job_name", ["", "the Job", "another"])
def test_only_failed_job_gets_another_attempt(node_record: Object, job_name: str) -> None:
    """Check that no new attempt starts if the failure names no Job, or a different one.

    The Job may be recorded, or created but not recorded yet.
    """
    run = make_run(
        node_record,
        **EDITED_RECORD,
        **run_record.build_failure_change(make_run(), "run-job", "m", node_name="n1", job_name=job_name, now=NOW),
    )
    assert run_record.build_resume_change(run, has_cleanup, NOW) == {"failure": None}


@proves("MUT-40")
def test_record_of_large_run_fits_into_etcd() -> None:
    """Check that the Jobs of the nodes that were finished first are dropped from the record.

    etcd cannot store ten Jobs for each of a thousand nodes. The order of the nodes in the run decides, and not their
    names, by which the API server sorts the map.
    """
    rules = [Reference("openshift-upgrade-checks", f"rule-{number}-for-all-workers") for number in range(5)]
    keys = [format_job_key(kind, rule) for kind in (MAIN, CLEANUP) for rule in rules]
    job_record = dict.fromkeys(run_record.JOB_FIELDS, "openshift-upgrade-checks-and-what-else-is-known")
    names = [f"{pool}-{number:04}.region.example.com" for pool in ("worker", "infra") for number in range(500)]
    run = make_run(order=names, nodes={name: {"uid": "ae6a4a3b-5a0d-4f8e-a8a1-3a6b1c2d3e4f"} for name in names})
    record = run["status"]["record"]
    for name in names:
        record["nodes"][name] |= {
            "jobs": dict.fromkeys(keys, job_record),
            "releasedAt": NOW_TEXT,
            "upgradedAt": NOW_TEXT,
        }
        record = run_record.apply_merge_patch(record, run_record.build_node_done_change(record, name, "cleanedAt", NOW))
        record["nodes"] = dict(sorted(record["nodes"].items()))
    assert len(json.dumps(record)) < 2**19
    assert [name for name in names if record["nodes"][name].get("jobs")] == names[-50:]
    assert run_record.get_current_node(record) == ""


def test_printer_columns_show_changed_record() -> None:
    """Check that the printer columns for step, progress and Job are computed from the changed record."""
    change = {"nodes": {"n1": {"jobs": {format_job_key(MAIN, RULES[0]): {"name": "a-1", "attempt": 1, "uid": "u"}}}}}
    printed_fields = run_record.build_printed_fields(make_run(**EDITED_RECORD), change, has_cleanup)
    assert printed_fields == {"step": "RunningJobs", "progress": "1 of 2: n1", "job": "a-1"}


def test_transition_time_of_run_condition_changes_only_with_status() -> None:
    """Check that a condition keeps its transition time with its status, and gets no patch if it is unchanged."""
    run = make_run()
    run["status"]["conditions"] = merge_conditions(run, [Condition("JobRun", True, "R", "one")], NOW)
    later = NOW.replace(year=2027)
    (same_status,) = merge_conditions(run, [Condition("JobRun", True, "R", "two")], later)
    (other_status,) = merge_conditions(run, [Condition("JobRun", False, "R", "two")], later)
    assert (same_status["lastTransitionTime"], other_status["lastTransitionTime"]) == (NOW_TEXT, "2027-01-01T00:00:00Z")
    assert build_status_patch(run, {"step": None}, [Condition("JobRun", True, "R", "one")], later) == {}


@proves("MUT-43", "MUT-44")
def test_rule_labels_are_removed_only_from_nodes_of_run() -> None:
    """Check that all rule labels of a node are removed in one patch, and only from nodes of this run."""
    gate_labels = {build_rule_label(rule): "" for rule in RULES}
    node = {
        "metadata": {
            "name": "n",
            "resourceVersion": "5",
            "labels": {**gate_labels, "nodemaintenance.dev/mutex-run": "uid-1"},
        }
    }
    patch = nodes.build_release_patch(node, "uid-1")
    assert [operation["op"] for operation in patch] == ["test", "remove", "remove"]
    assert nodes.build_release_patch(node, "uid-2") == []
    assert nodes.has_run_labels(node, "uid-1", RULES)
    assert not nodes.has_run_labels(node, "uid-2", RULES)
    assert nodes.build_run_labels_patch(node, "uid-1", RULES) == []
    unlabelled_node = {"metadata": {"name": "n", "resourceVersion": "5"}}
    assert [operation["op"] for operation in nodes.build_run_labels_patch(unlabelled_node, "uid-1", RULES)] == [
        "test",
        "add",
    ]
    assert len(nodes.build_label_removal_patch(node, "uid-1")) == 4
