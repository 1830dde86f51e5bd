"""Tests of the stages of a run by its record, of how a run stops and resumes, and of the record's size."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import Any

import pytest

from kube.mutex import node_labels, run_changes, run_record
from kube.mutex.jobs import CLEANUP, MAIN, job_key
from kube.mutex.objects import Reference, Verdict, conditions_with, rule_label, status_patch
from kube.mutex.run_record import Due, Stage
from kube.paths import Object
from tests.proofs import proves

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RULES = [Reference("ns", "a"), Reference("ns", "b")]
AT = "2026-01-01T00:00:00Z"


def done(kind: str, *rules: Reference) -> Object:
    return {job_key(kind, rule): {"attempt": 1, "name": "j", "uid": "u", "result": "Complete"} for rule in rules}


def run(first: Object | None = None, **record: Any) -> Object:
    known: Object = {
        "id": "uid-1",
        "number": 1,
        "desired": "4.16.4",
        "rules": [each._asdict() for each in RULES],
        "order": ["n1", "n2"],
        "nodes": {"n1": {"uid": "1", **(first or {})}, "n2": {"uid": "2"}},
        "pools": {},
        "canary": {"name": "c"},
        **record,
    }
    metadata = {"name": "r", "namespace": "ns", "uid": "uid", "generation": 3, "resourceVersion": "9"}
    return {"kind": "MutexRunConfig", "metadata": metadata, "spec": {}, "status": {"record": known}}


def has_cleanup(rule: Reference) -> bool:
    return rule.name == "b"


EDITED: Object = {"pausedAt": AT, "labelledAt": AT, "editedAt": AT}
BEGUN: Object = {"jobs": {job_key(MAIN, RULES[0]): {"attempt": 1, "name": "j", "uid": "u"}}}
MAINS = {"jobs": done(MAIN, *RULES)}
RELEASED = {**MAINS, "releasedAt": AT}
UPGRADED = {**RELEASED, "upgradedAt": AT}


@proves("MUT-40", "MUT-44")
@pytest.mark.parametrize(
    ("found", "stage"),
    [
        ({**run(), "status": {}}, Stage.IDLE),
        (run(finishedAt=AT), Stage.IDLE),
        (run(), Stage.CLAIMED),
        (run(pausedAt=AT), Stage.PAUSED),
        (run(pausedAt=AT, labelledAt=AT), Stage.LABELLED),
        (run(**EDITED), Stage.JOBS),
        (run({"jobs": done(MAIN, RULES[0])}, **EDITED), Stage.JOBS),
        (run(MAINS, **EDITED), Stage.CLEARED),
        (run(RELEASED, **EDITED), Stage.RELEASED),
        (run(UPGRADED, **EDITED), Stage.CLEANUP),
        (run({**UPGRADED, "cleanedAt": AT}, **EDITED), Stage.JOBS),
        (run({"droppedAt": AT}, **EDITED), Stage.JOBS),
        (run({"cleanedAt": AT}, **EDITED, order=["n1"]), Stage.DONE),
        (run(order=[]), Stage.CLAIMED),
        (run(order=[], pausedAt=AT), Stage.DONE),
        (run({"droppedAt": AT}, order=["n1"], pausedAt=AT, labelledAt=AT), Stage.DONE),
        (run(**EDITED, failure={"message": "m"}), Stage.FAILED),
    ],
)
def test_the_stage_of_a_run(found: Object, stage: Stage) -> None:
    """Derive the stage from the record, whose nodes are upgraded one after another."""
    assert run_record.stage(found, has_cleanup) is stage


@proves("MUT-40", "MUT-46")
def test_jobs_come_in_the_order_of_the_rules_and_cleanups_behind() -> None:
    """Return cleanup Jobs after the upgrade, and only for rules that have one."""
    assert run_record.next_job(run()["status"]["record"], "n1", has_cleanup) == Due(MAIN, RULES[0])
    half = run({"jobs": done(MAIN, RULES[0])})["status"]["record"]
    assert run_record.next_job(half, "n1", has_cleanup) == Due(MAIN, RULES[1])
    upgraded = run(UPGRADED)["status"]["record"]
    assert run_record.next_job(upgraded, "n1", has_cleanup) == Due(CLEANUP, RULES[1])
    assert run_record.next_job(upgraded, "n1", lambda _rule: False) is None


@proves("MUT-40", "MUT-46")
def test_a_cleanup_job_that_was_created_is_waited_for_whatever_its_rule_says_since() -> None:
    """Await a created cleanup Job even if its rule no longer has one, but do not retry it after a failure."""
    begun = {job_key(CLEANUP, RULES[1]): {"attempt": 1, "name": "j", "uid": "u"}}
    stopped = run_changes.failure(run(), "run-job", "m", node="n1", job="j", now=NOW)
    found = run({**UPGRADED, "jobs": {**done(MAIN, *RULES), **begun}}, **EDITED, **stopped)
    record = found["status"]["record"]
    assert run_record.next_job(record, "n1", lambda _rule: False) == Due(CLEANUP, RULES[1])

    resumed = run_changes.with_change(record, run_changes.resumption(found, lambda _rule: False, NOW))
    assert run_record.next_job(resumed, "n1", lambda _rule: False) is None


@proves("MUT-48")
def test_a_run_is_resumed_by_a_new_spec_or_a_new_word() -> None:
    """Resume a run only after a spec change or a new retry annotation.

    The failed Job gets another attempt, and a released node gets more time.
    """
    stopped = run_changes.failure(run(), "run-job", "m", node="n1", job="j", now=NOW)
    found = run(BEGUN, **EDITED, **stopped)
    assert not run_record.is_resumed(found)
    found["metadata"]["annotations"] = {"nodemaintenance.dev/retry": "1"}
    assert run_record.is_resumed(found)
    assert run_record.is_resumed({**found, "metadata": {**found["metadata"], "generation": 4, "annotations": {}}})
    change = run_changes.resumption(found, has_cleanup, NOW)
    assert change["failure"] is None
    assert change["nodes"]["n1"]["jobs"][job_key(MAIN, RULES[0])]["attempt"] == 2
    waited = run_changes.failure(run(), "await-version", "m", node="n1", now=NOW)
    later = run_changes.resumption(run(RELEASED, **EDITED, **waited), has_cleanup, NOW)
    assert later["nodes"] == {"n1": {"releasedAt": AT}}


@proves("MUT-42", "MUT-48")
@pytest.mark.parametrize("first", [BEGUN, {}])
@pytest.mark.parametrize("job", ["", "the Job", "another"])
def test_a_job_that_did_not_fail_gets_no_attempt_beside_it(first: Object, job: str) -> None:
    """Start no other attempt if the failure names no Job, or a different one.

    The Job may be recorded, or created and not recorded yet.
    """
    found = run(first, **EDITED, **run_changes.failure(run(), "run-job", "m", node="n1", job=job, now=NOW))
    assert run_changes.resumption(found, has_cleanup, NOW) == {"failure": None}


@proves("MUT-40")
def test_the_record_of_a_large_run_stays_short() -> None:
    """Drop the Jobs of nodes that were done long ago, since etcd cannot store ten Jobs for each of a thousand nodes.

    The order of the nodes decides, not their names, although the API server returns maps sorted by key.
    """
    rules = [Reference("openshift-upgrade-checks", f"rule-{number}-for-all-workers") for number in range(5)]
    keys = [job_key(kind, rule) for kind in (MAIN, CLEANUP) for rule in rules]
    entry = dict.fromkeys(run_changes.JOB_FIELDS, "openshift-upgrade-checks-and-what-else-is-known")
    names = [f"{pool}-{number:04}.region.example.com" for pool in ("worker", "infra") for number in range(500)]
    record = run(order=names, nodes={name: {"uid": "ae6a4a3b-5a0d-4f8e-a8a1-3a6b1c2d3e4f"} for name in names})
    known = record["status"]["record"]
    for name in names:
        known["nodes"][name] |= {"jobs": dict.fromkeys(keys, entry), "releasedAt": AT, "upgradedAt": AT}
        known = run_changes.with_change(known, run_changes.over(known, name, "cleanedAt", NOW))
        known["nodes"] = dict(sorted(known["nodes"].items()))
    assert len(json.dumps(known)) < 2**19
    assert [name for name in names if known["nodes"][name].get("jobs")] == names[-50:]
    assert run_record.current(known) == ""


def test_what_kubectl_shows_is_of_the_record_as_it_will_be() -> None:
    """Compute step, progress and Job from the record after the change."""
    change = {"nodes": {"n1": {"jobs": {job_key(MAIN, RULES[0]): {"name": "a-1", "attempt": 1, "uid": "u"}}}}}
    shown = run_changes.shown(run(**EDITED), change, has_cleanup)
    assert shown == {"step": "RunningJobs", "progress": "1 of 2: n1", "job": "a-1"}


def test_a_condition_keeps_its_time_until_its_status_changes() -> None:
    """Keep the transition time as long as the status stays, and return no patch for an unchanged status."""
    item = run()
    first = conditions_with(item, [Verdict("JobRun", True, "R", "one")], NOW)
    item["status"]["conditions"] = first
    later = NOW.replace(year=2027)
    (same,) = conditions_with(item, [Verdict("JobRun", True, "R", "two")], later)
    (other,) = conditions_with(item, [Verdict("JobRun", False, "R", "two")], later)
    assert (same["lastTransitionTime"], other["lastTransitionTime"]) == (AT, "2027-01-01T00:00:00Z")
    assert status_patch(item, {"step": None}, [Verdict("JobRun", True, "R", "one")], later) == {}


@proves("MUT-43", "MUT-44")
def test_a_release_holds_for_the_run_that_asks_for_it() -> None:
    """Remove all rule labels in one patch, and only from nodes of this run."""
    gates = {rule_label(rule): "" for rule in RULES}
    node = {
        "metadata": {"name": "n", "resourceVersion": "5", "labels": {**gates, "nodemaintenance.dev/mutex-run": "uid-1"}}
    }
    patch = node_labels.release_patch(node, "uid-1")
    assert [each["op"] for each in patch] == ["test", "remove", "remove"]
    assert node_labels.release_patch(node, "uid-2") == []
    assert node_labels.is_gated(node, "uid-1", RULES)
    assert not node_labels.is_gated(node, "uid-2", RULES)
    assert node_labels.gate_patch(node, "uid-1", RULES) == []
    bare = {"metadata": {"name": "n", "resourceVersion": "5"}}
    assert [each["op"] for each in node_labels.gate_patch(bare, "uid-1", RULES)] == ["test", "add"]
    assert len(node_labels.clear_patch(node, "uid-1")) == 4
