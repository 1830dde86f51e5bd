"""Tests of Job names, of the additions to a rule's Job template, and of Job outcomes."""

from __future__ import annotations

from typing import Any

import pytest

from kube.mutex import jobs
from kube.mutex.jobs import CLEANUP, MAIN, Outcome
from kube.mutex.objects import Reference, rule_label
from kube.mutex.validation import rule_problem
from kube.paths import Object
from tests.proofs import proves


def rule(name: str = "r", namespace: str = "ns", job: str = "example", **spec: Any) -> Object:
    template = {"template": {"spec": {"containers": [{"name": "c"}]}}}
    known = {"jobName": job, "jobNamespace": "jobs", "jobSpec": template, **spec}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": known}


@proves("MUT-41", "MUT-42")
def test_a_name_is_the_same_each_time_and_nobody_elses() -> None:
    """Derive the name from run, node, rule, kind and attempt, with the rule's prefix and at most 63 characters."""
    cases = [
        (rule(), MAIN, "run-1", "node-a", 1),
        (rule(), MAIN, "run-1", "node-a", 2),
        (rule(), MAIN, "run-1", "node-b", 1),
        (rule(), MAIN, "run-2", "node-a", 1),
        (rule(), CLEANUP, "run-1", "node-a", 1),
        (rule("other"), MAIN, "run-1", "node-a", 1),
        (rule(namespace="other"), MAIN, "run-1", "node-a", 1),
        (rule(job="x" * 200), MAIN, "run-1", "node-a", 1),
    ]
    names = [jobs.job_name(*case) for case in cases]
    assert names == [jobs.job_name(*case) for case in cases]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for name in names)
    assert names[0].startswith("example-")
    assert names[4].startswith("cleanup-example-")


@proves("MUT-13")
def test_a_rule_may_have_dots_in_its_name() -> None:
    """Rule labels are unambiguous, because a namespace cannot contain dots."""
    assert rule_label(Reference("c", "a.b")) == "mutexrule.openshift-optional.skrzypek.io/a.b.c"
    assert rule_problem(rule("a.b", "c")) == ""


@proves("MUT-12")
@pytest.mark.parametrize(("length", "fine"), [(60, True), (61, False)])
def test_a_label_has_63_bytes_behind_the_slash(length: int, fine: bool) -> None:
    """Limit the rule's name, the dot and the namespace together to 63 bytes."""
    assert (rule_problem(rule("r" * length, "ns")) == "") is fine


@proves("MUT-42")
@pytest.mark.parametrize(("told", "stays"), [(None, None), (0, 60), (59, 60), (3600, 3600), (-1, -1)])
def test_a_job_stays_long_enough_to_be_found_after_a_crash(told: int | None, stays: int | None) -> None:
    """Raise a short TTL, so that a crash creates no second Job; keep a negative one, which the server rejects."""
    item = rule()
    if told is not None:
        item["spec"]["jobSpec"]["ttlSecondsAfterFinished"] = told

    made = jobs.job_of(item, MAIN, "run-1", {"metadata": {"name": "n", "uid": "u"}}, 1)

    assert made["spec"].get("ttlSecondsAfterFinished") == stays


def test_the_rule_itself_is_not_changed() -> None:
    """Change a copy of the template, not the rule."""
    item = rule()
    jobs.job_of(item, MAIN, "run-1", {"metadata": {"name": "n", "uid": "u"}}, 1)
    assert item == rule()


@proves("MUT-41")
def test_the_host_is_that_of_the_nodes_label() -> None:
    """Use the node's hostname label, which may differ from the node's name."""
    node = {"metadata": {"name": "n", "uid": "u", "labels": {"kubernetes.io/hostname": "host"}}}
    assert "'host'" in str(jobs.job_of(rule(), MAIN, "run-1", node, 1)["spec"]["template"]["spec"]["affinity"])


REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
BROKEN_AFFINITIES: tuple[Any, ...] = ("x", [], {REQUIRED: "x"}, {REQUIRED: []})
BROKEN_TERMS: tuple[Any, ...] = ("x", 1, ["x"], {}, [{"matchExpressions": 1}])
BROKEN_PODS: tuple[Any, ...] = (
    *(None, [], "x", {"containers": "x"}, {"containers": [{"env": "x"}]}, {"containers": [{"env": [{"name": []}]}]}),
    {"containers": ["x"], "affinity": []},
    *({"affinity": {"nodeAffinity": known}} for known in BROKEN_AFFINITIES),
    *({"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": known}}}} for known in BROKEN_TERMS),
)


@pytest.mark.parametrize("template", [None, [], "x", *({"spec": pod} for pod in BROKEN_PODS)])
def test_a_template_that_is_none_is_left_to_the_server(template: Any) -> None:
    """Pass a malformed template on unchanged, so that the API server rejects it with its own message."""
    item = rule(jobSpec={"template": template})
    made = jobs.job_of(item, MAIN, "run-1", {"metadata": {"name": "n"}}, 1)
    pod = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(pod, dict):
        assert made["spec"]["template"] == template
    elif "affinity" in pod:
        assert made["spec"]["template"]["spec"]["affinity"] == pod["affinity"]
    assert jobs.overridden(item) == []


@proves("MUT-41")
@pytest.mark.parametrize("affinity", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {REQUIRED: None}}])
def test_an_affinity_that_says_nothing_keeps_off_the_node_all_the_same(affinity: Any) -> None:
    """Treat null like a missing field, as the API server does."""
    item = rule(jobSpec={"template": {"spec": {"containers": [], "affinity": affinity}}})
    made = jobs.job_of(item, MAIN, "run-1", {"metadata": {"name": "n"}}, 1)["spec"]["template"]["spec"]["affinity"]
    away = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n"]}
    assert made == {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [{"matchExpressions": [away]}]}}}


def conditions(*items: tuple[str, str]) -> Object:
    return {
        "status": {
            "conditions": [{"type": kind, "status": state, "reason": "R", "message": "m"} for kind, state in items]
        }
    }


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (None, Outcome.VANISHED),
        ({}, Outcome.RUNNING),
        (conditions(("Complete", "False")), Outcome.RUNNING),
        (conditions(("FailureTarget", "True")), Outcome.RUNNING),
        (conditions(("SuccessCriteriaMet", "True"), ("Complete", "True")), Outcome.COMPLETE),
        (conditions(("FailureTarget", "True"), ("Failed", "True")), Outcome.FAILED),
    ],
)
def test_how_a_job_ends(job: Object | None, outcome: Outcome) -> None:
    """Determine the outcome only from the conditions Complete and Failed."""
    assert jobs.outcome(job) is outcome
    assert jobs.failure_of(job)
