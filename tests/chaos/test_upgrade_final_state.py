"""The check of an upgrade finds concurrent releases, missing or repeated Jobs, and everything that was not restored."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from chaos.plan import Rule, Upgrade
from chaos.upgrade_final_state import Job, Seen, expected, left, told, violations
from kube.mutex.jobs import NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.objects import RULE_LABEL, RUN_LABEL
from kube.mutex.versions import VERSION_LABEL
from kube.paths import Object

UPGRADE = Upgrade({"blue": 2}, (Rule("drain", has_cleanup=True, delay=""), Rule("test", has_cleanup=False, delay="")))
WORKERS = ["a", "b"]
OLD, NEW = "4.15.9", "4.16.4"
POOLS = {"blue": {"matchLabels": {"role": "blue"}, "paused": False}}
EARLY, LATE = "2026-01-01T00:00:00Z", "2026-01-01T00:00:01Z"


def job(node: str, rule: str, kind: str = "main", done: str = EARLY) -> Object:
    noted = {NODE_ANNOTATION: node, RULE_ANNOTATION: f"namespace/{rule}"}
    name = f"{'cleanup-' if kind == 'cleanup' else ''}{rule}-1"
    return {"metadata": {"name": name, "annotations": noted}, "status": {"completionTime": done}}


def node(name: str, version: str = NEW, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": {VERSION_LABEL: version, **labels}}}


def seen(**more: Any) -> Seen:
    record = {"nodes": {name: {"releasedAt": EARLY} for name in WORKERS}}
    whole = Seen(
        upgrade=UPGRADE,
        workers=WORKERS,
        version=NEW,
        together=[],
        released=WORKERS,
        upgraded=WORKERS,
        created=sorted(expected(UPGRADE, WORKERS)),
        run={"status": {"step": "Finished", "record": record}},
        jobs=[job(*each) for each in sorted(expected(UPGRADE, WORKERS))],
        nodes=[node(name) for name in WORKERS],
        pools_before=POOLS,
        pools=POOLS,
        claims=[""],
    )
    return replace(whole, **more)


def test_nothing_is_wrong() -> None:
    assert [*violations(seen()), *left(seen())] == []


def test_a_job_is_known_by_its_node_rule_and_kind() -> None:
    assert {told(each) for each in seen().jobs} == expected(UPGRADE, WORKERS)
    assert len(expected(UPGRADE, WORKERS)) == 6


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"together": [frozenset("ab")]}, "a, b were released and unfinished at once"),
        ({"created": [*seen().created, Job("a", "drain", "cleanup")]}, "the cleanup Job of drain for a was created 2"),
        ({"released": ["a", "b", "a"]}, "a was released 2 times"),
        ({"released": ["a"]}, "b was upgraded, and never released"),
        (
            {"jobs": [job("a", "test", done=LATE)]},
            f"a was released at {EARLY}, and its Job of test was complete {LATE}",
        ),
    ],
)
def test_what_must_not_happen_is_said(more: dict[str, Any], line: str) -> None:
    [said] = violations(seen(**more))

    assert said.startswith(line)


@pytest.mark.parametrize("jobs", [[], [job("a", "drain", "cleanup", LATE)]])
def test_a_cleanup_job_comes_behind_the_release(jobs: list[Object]) -> None:
    assert list(violations(seen(jobs=jobs))) == []


@pytest.mark.parametrize(
    ("more", "line"),
    [
        ({"run": {"status": {"step": "CleaningUp", "progress": "node 1 of 2: a"}}}, "the run is CleaningUp: node 1 of"),
        ({"run": {"status": {"step": "Failed", "record": {"failure": {"message": "why"}}}}}, "the run is Failed:  why"),
        ({"created": seen().created[1:]}, "the cleanup Job of drain for a was never created"),
        ({"created": [*seen().created, Job("c", "drain", "main")]}, "the main Job of drain for c is of no rule and no"),
        ({"pools": {}}, "pool blue was {"),
        ({"pools": {"blue": {**POOLS["blue"], "paused": True}}}, "pool blue was {"),
        ({"claims": ["uid"]}, "a pool is claimed by uid"),
        ({"nodes": [node("a", OLD)]}, f"a is at {OLD}"),
        ({"nodes": [node("a", **{RUN_LABEL: "1"})]}, "a has labels of a run left"),
        ({"nodes": [node("a", **{f"{RULE_LABEL}drain.x": ""})]}, "a has labels of a run left"),
    ],
)
def test_what_is_left_is_said(more: dict[str, Any], line: str) -> None:
    [said] = left(seen(**more))

    assert said.startswith(line)
