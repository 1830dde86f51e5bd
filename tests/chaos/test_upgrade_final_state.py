"""Tests that the check of an upgrade finds concurrent releases, missing or repeated Jobs, and unrestored nodes."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.plan import Rule, Upgrade
from chaos.upgrade_final_state import (
    JobKey,
    UpgradeSnapshot,
    build_job_key,
    list_expected_jobs,
    list_problems,
    list_violations,
)
from kube.mutex.jobs import NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.objects import RULE_LABEL_PREFIX, RUN_LABEL
from kube.mutex.versions import VERSION_LABEL
from kube.paths import Object

UPGRADE = Upgrade(
    {"blue": 2}, (Rule("drain", has_cleanup=True, job_delay=""), Rule("test", has_cleanup=False, job_delay=""))
)
WORKERS = ["a", "b"]
OLD_VERSION, NEW_VERSION = "4.15.9", "4.16.4"
POOLS = {"blue": {"matchLabels": {"role": "blue"}, "paused": False}}
EARLY_TIME, LATE_TIME = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def build_job(node: str, rule: str, kind: str = "main", completed_at: str = EARLY_TIME) -> Object:
    annotations = {NODE_ANNOTATION: node, RULE_ANNOTATION: f"namespace/{rule}"}
    name = f"{'cleanup-' if kind == 'cleanup' else ''}{rule}-1"
    return {"metadata": {"name": name, "annotations": annotations}, "status": {"completionTime": completed_at}}


def build_node(name: str, version: str = NEW_VERSION, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": {VERSION_LABEL: version, **labels}}}


def build_snapshot(**overrides: Any) -> UpgradeSnapshot:
    record = {"nodes": {name: {"releasedAt": EARLY_TIME} for name in WORKERS}}
    snapshot = UpgradeSnapshot(
        upgrade=UPGRADE,
        workers=WORKERS,
        version=NEW_VERSION,
        concurrent_nodes=[],
        released_nodes=WORKERS,
        upgraded_nodes=WORKERS,
        created_jobs=sorted(list_expected_jobs(UPGRADE, WORKERS)),
        run={"status": {"step": "Finished", "record": record}},
        jobs=[build_job(*job_key) for job_key in sorted(list_expected_jobs(UPGRADE, WORKERS))],
        nodes=[build_node(name) for name in WORKERS],
        pools_before=POOLS,
        pools=POOLS,
        pool_claims=[""],
    )
    return replace(snapshot, **overrides)


def test_correct_upgrade_has_no_problems() -> None:
    assert [*list_violations(build_snapshot()), *list_problems(build_snapshot())] == []


def test_job_is_identified_by_node_rule_and_kind() -> None:
    assert {build_job_key(job) for job in build_snapshot().jobs} == list_expected_jobs(UPGRADE, WORKERS)
    assert len(list_expected_jobs(UPGRADE, WORKERS)) == 6


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"concurrent_nodes": [frozenset("ab")]}, "nodes a, b were released and unfinished at the same time"),
        (
            {"created_jobs": [*build_snapshot().created_jobs, JobKey("a", "drain", "cleanup")]},
            "the cleanup Job of rule drain for node a was created 2",
        ),
        ({"released_nodes": ["a", "b", "a"]}, "node a was released 2 times"),
        ({"released_nodes": ["a"]}, "node b was upgraded without being released"),
        (
            {"jobs": [build_job("a", "test", completed_at=LATE_TIME)]},
            f"node a was released at {EARLY_TIME}, before its Job of rule test completed ({LATE_TIME})",
        ),
    ],
)
def test_violation_is_listed(changes: dict[str, Any], expected: str) -> None:
    [violation] = list_violations(build_snapshot(**changes))

    assert violation.startswith(expected)


@pytest.mark.parametrize("jobs", [[], [build_job("a", "drain", "cleanup", LATE_TIME)]])
def test_cleanup_job_may_complete_after_release(jobs: list[Object]) -> None:
    assert list(list_violations(build_snapshot(jobs=jobs))) == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"run": {"status": {"step": "CleaningUp", "progress": "node 1 of 2: a"}}},
            "the run is in step CleaningUp: node 1 of",
        ),
        (
            {"run": {"status": {"step": "Failed", "record": {"failure": {"message": "why"}}}}},
            "the run is in step Failed:  why",
        ),
        (
            {"created_jobs": build_snapshot().created_jobs[1:]},
            "the cleanup Job of rule drain for node a was never created",
        ),
        (
            {"created_jobs": [*build_snapshot().created_jobs, JobKey("c", "drain", "main")]},
            "the main Job of rule drain for node c belongs to another rule or node",
        ),
        ({"pools": {}}, "pool blue was not restored: "),
        ({"pools": {"blue": {**POOLS["blue"], "paused": True}}}, "pool blue was not restored: "),
        ({"pool_claims": ["uid"]}, "a pool is still claimed by run uid"),
        ({"nodes": [build_node("a", OLD_VERSION)]}, f"node a has version {OLD_VERSION} instead of {NEW_VERSION}"),
        ({"nodes": [build_node("a", **{RUN_LABEL: "1"})]}, "node a still has labels of a run"),
        ({"nodes": [build_node("a", **{f"{RULE_LABEL_PREFIX}drain.x": ""})]}, "node a still has labels of a run"),
    ],
)
def test_unrestored_state_is_listed(changes: dict[str, Any], expected: str) -> None:
    [problem] = list_problems(build_snapshot(**changes))

    assert problem.startswith(expected)
