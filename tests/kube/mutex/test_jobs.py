"""Tests for the names, templates and outcomes of the Jobs of an upgrade run."""

from __future__ import annotations

from typing import Any

import pytest

from kube.mutex import jobs
from kube.mutex.jobs import CLEANUP, MAIN, JobOutcome
from kube.mutex.objects import Reference, build_rule_label
from kube.mutex.validation import find_rule_problem
from kube.paths import Object
from tests.proofs import proves


def make_rule(name: str = "r", namespace: str = "ns", job_name: str = "example", **spec_fields: Any) -> Object:
    template = {"template": {"spec": {"containers": [{"name": "c"}]}}}
    rule_spec = {"jobName": job_name, "jobNamespace": "jobs", "jobSpec": template, **spec_fields}
    return {"metadata": {"name": name, "namespace": namespace}, "spec": rule_spec}


@proves("MUT-41", "MUT-42")
def test_job_name_is_reproducible_and_unique() -> None:
    """Check that run, node, rule, kind and attempt determine a Job's name, which has at most 63 characters."""
    cases = [
        (make_rule(), MAIN, "run-1", "node-a", 1),
        (make_rule(), MAIN, "run-1", "node-a", 2),
        (make_rule(), MAIN, "run-1", "node-b", 1),
        (make_rule(), MAIN, "run-2", "node-a", 1),
        (make_rule(), CLEANUP, "run-1", "node-a", 1),
        (make_rule("other"), MAIN, "run-1", "node-a", 1),
        (make_rule(namespace="other"), MAIN, "run-1", "node-a", 1),
        (make_rule(job_name="x" * 200), MAIN, "run-1", "node-a", 1),
    ]
    names = [jobs.build_job_name(*case) for case in cases]
    assert names == [jobs.build_job_name(*case) for case in cases]
    assert len(set(names)) == len(names)
    assert all(len(name) <= 63 for name in names)
    assert names[0].startswith("example-")
    assert names[4].startswith("cleanup-example-")


@proves("MUT-13")
def test_mutex_rule_name_may_contain_dots() -> None:
    """Check that a MutexRule's name may contain dots; its label is unambiguous, since a namespace contains no dots."""
    assert build_rule_label(Reference("c", "a.b")) == "mutexrule.openshift-optional.skrzypek.io/a.b.c"
    assert find_rule_problem(make_rule("a.b", "c")) == ""


@proves("MUT-12")
@pytest.mark.parametrize(("length", "is_valid"), [(60, True), (61, False)])
def test_mutex_rule_label_has_at_most_63_bytes(length: int, is_valid: bool) -> None:
    """Check that a MutexRule's label, which consists of its name, a dot and its namespace, has at most 63 bytes."""
    assert (find_rule_problem(make_rule("r" * length, "ns")) == "") is is_valid


@proves("MUT-42")
@pytest.mark.parametrize(("ttl_seconds", "expected_seconds"), [(None, None), (0, 60), (59, 60), (3600, 3600), (-1, -1)])
def test_short_ttl_of_job_is_raised(ttl_seconds: int | None, expected_seconds: int | None) -> None:
    """Check that a short TTL is raised, so that no second Job is created after a crash; a negative TTL is kept."""
    rule = make_rule()
    if ttl_seconds is not None:
        rule["spec"]["jobSpec"]["ttlSecondsAfterFinished"] = ttl_seconds

    job = jobs.build_job(rule, MAIN, "run-1", {"metadata": {"name": "n", "uid": "u"}}, 1)

    assert job["spec"].get("ttlSecondsAfterFinished") == expected_seconds


def test_job_template_of_rule_is_not_changed() -> None:
    """Check that the product changes a copy of the rule's Job template, and not the rule."""
    rule = make_rule()
    jobs.build_job(rule, MAIN, "run-1", {"metadata": {"name": "n", "uid": "u"}}, 1)
    assert rule == make_rule()


@proves("MUT-41")
def test_job_affinity_uses_hostname_label() -> None:
    """Check that a Job's affinity uses the node's hostname label, which may differ from the node's name."""
    node = {"metadata": {"name": "n", "uid": "u", "labels": {"kubernetes.io/hostname": "host"}}}
    assert "'host'" in str(jobs.build_job(make_rule(), MAIN, "run-1", node, 1)["spec"]["template"]["spec"]["affinity"])


REQUIRED_AFFINITY_FIELD = "requiredDuringSchedulingIgnoredDuringExecution"
BROKEN_AFFINITIES: tuple[Any, ...] = ("x", [], {REQUIRED_AFFINITY_FIELD: "x"}, {REQUIRED_AFFINITY_FIELD: []})
BROKEN_TERMS: tuple[Any, ...] = ("x", 1, ["x"], {}, [{"matchExpressions": 1}])
BROKEN_PODS: tuple[Any, ...] = (
    *(None, [], "x", {"containers": "x"}, {"containers": [{"env": "x"}]}, {"containers": [{"env": [{"name": []}]}]}),
    {"containers": ["x"], "affinity": []},
    *({"affinity": {"nodeAffinity": affinity}} for affinity in BROKEN_AFFINITIES),
    *(
        {"affinity": {"nodeAffinity": {REQUIRED_AFFINITY_FIELD: {"nodeSelectorTerms": terms}}}}
        for terms in BROKEN_TERMS
    ),
)


@pytest.mark.parametrize("template", [None, [], "x", *({"spec": pod} for pod in BROKEN_PODS)])
def test_malformed_job_template_is_passed_on_unchanged(template: Any) -> None:
    """Check that a malformed template is passed on unchanged, so that the API server rejects it with a message."""
    rule = make_rule(jobSpec={"template": template})
    job = jobs.build_job(rule, MAIN, "run-1", {"metadata": {"name": "n"}}, 1)
    pod = template.get("spec") if isinstance(template, dict) else None
    if not isinstance(pod, dict):
        assert job["spec"]["template"] == template
    elif "affinity" in pod:
        assert job["spec"]["template"]["spec"]["affinity"] == pod["affinity"]
    assert jobs.find_overridden_variables(rule) == []


@proves("MUT-41")
@pytest.mark.parametrize(
    "affinity", [None, {}, {"nodeAffinity": None}, {"nodeAffinity": {REQUIRED_AFFINITY_FIELD: None}}]
)
def test_job_with_empty_affinity_still_excludes_node(affinity: Any) -> None:
    """Check that a null field in the Job template's affinity is treated as missing, as by the API server."""
    rule = make_rule(jobSpec={"template": {"spec": {"containers": [], "affinity": affinity}}})
    built_affinity = jobs.build_job(rule, MAIN, "run-1", {"metadata": {"name": "n"}}, 1)["spec"]["template"]["spec"][
        "affinity"
    ]
    exclusion = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": ["n"]}
    assert built_affinity == {
        "nodeAffinity": {REQUIRED_AFFINITY_FIELD: {"nodeSelectorTerms": [{"matchExpressions": [exclusion]}]}}
    }


def make_job_with_conditions(*conditions: tuple[str, str]) -> Object:
    """Return a Job with these conditions, given as (type, status)."""
    return {
        "status": {
            "conditions": [
                {"type": condition_type, "status": status, "reason": "R", "message": "m"}
                for condition_type, status in conditions
            ]
        }
    }


@pytest.mark.parametrize(
    ("job", "outcome"),
    [
        (None, JobOutcome.VANISHED),
        ({}, JobOutcome.RUNNING),
        (make_job_with_conditions(("Complete", "False")), JobOutcome.RUNNING),
        (make_job_with_conditions(("FailureTarget", "True")), JobOutcome.RUNNING),
        (make_job_with_conditions(("SuccessCriteriaMet", "True"), ("Complete", "True")), JobOutcome.COMPLETE),
        (make_job_with_conditions(("FailureTarget", "True"), ("Failed", "True")), JobOutcome.FAILED),
    ],
)
def test_job_outcome_depends_on_conditions_complete_and_failed(job: Object | None, outcome: JobOutcome) -> None:
    """Check that only the conditions Complete and Failed determine the outcome of a Job."""
    assert jobs.get_job_outcome(job) is outcome
    assert jobs.format_job_failure(job)
