"""Tests for the detection of stalled maintenances and unready objects, and for the warnings about them."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from console.operations.install_problems import (
    CONTROLLER_MISSING,
    MAX_MESSAGE_CHARACTERS,
    MAX_WARNINGS,
    STALLED_SECONDS,
    Problem,
    find_problems,
    format_problems,
    has_functions,
    select_stalled,
)
from kube.maintenance.objects import FINALIZER
from kube.paths import Object
from kube.times import format_time

UNFETCHABLE = (
    'Unable to fetch image "registry.example/nodemaintenance:v9": failed to resolve image to digest: '
    "HEAD https://registry.example/v2/nodemaintenance/manifests/v9: unexpected status code 404 Not Found"
)
NO_MINIMUM = {"type": "Available", "status": "False", "message": "Deployment does not have minimum availability."}
PULL_MESSAGE = 'Back-off pulling image "registry.example/nodemaintenance:v9"'
POD_LABELS = {"app.kubernetes.io/part-of": "node-maintenance", "nodemaintenance.dev/function": "begin"}


def build_object(name: str, *conditions: Object, **spec: Any) -> Object:
    """Build an object with these conditions and this spec."""
    return {"metadata": {"name": name}, "spec": spec, "status": {"conditions": list(conditions)}}


def build_ready_condition(status: str, message: str = "", reason: str = "") -> Object:
    """Build a condition `Ready`, omitting empty fields."""
    return {"type": "Ready", "status": status} | {
        key: value for key, value in (("message", message), ("reason", reason)) if value
    }


def build_revision_message(name: str) -> str:
    """Build the message that Knative Serving writes for a failed Revision of a Knative Service."""
    return f'Revision "{name}-00005" failed with message: {UNFETCHABLE}.'


def build_deployment(*conditions: Object, name: str = "begin", **status: Any) -> Object:
    """Build the Deployment of a function with these conditions and status fields."""
    labels = {**POD_LABELS, "nodemaintenance.dev/function": name}
    return {
        "metadata": {"name": name, "labels": {"app.kubernetes.io/component": "function"}},
        "spec": {"selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}}},
        "status": {"conditions": list(conditions), **status},
    }


def build_waiting_pod(waiting_state: Object, **status: Any) -> Object:
    """Build a pod of the Deployment `begin` with a container in the given waiting state."""
    container = {"name": "function", "state": {"waiting": waiting_state}}
    return {"metadata": {"labels": POD_LABELS}, "status": {"containerStatuses": [container], **status}}


@pytest.mark.parametrize(
    ("conditions", "message"),
    [
        ([build_ready_condition("False", build_revision_message("begin"), "RevisionFailed")], UNFETCHABLE),
        ([build_ready_condition("False", f"Revision creation failed with message: {UNFETCHABLE}.")], UNFETCHABLE),
        ([build_ready_condition("False", "first line\n  second\tline.")], "first line second line"),
        ([build_ready_condition("False", reason="RevisionMissing")], "RevisionMissing"),
        ([build_ready_condition("False")], "the condition Ready is False"),
        ([build_ready_condition("Unknown", "waiting for a Revision", "RevisionMissing")], "waiting for a Revision"),
        (
            [build_ready_condition("False", "read udp 10.0.0.3:41234->10.96.0.10:53: i/o timeout")],
            "read udp 10.0.0.3->10.96.0.10:53: i/o timeout",
        ),
        ([{"type": "RoutesReady", "status": "False", "message": "other"}], CONTROLLER_MISSING),
        ([], CONTROLLER_MISSING),
    ],
    ids=["revision", "creation", "lines", "reason", "no-reason", "unknown", "client-port", "no-ready", "none"],
)
def test_unready_knative_object_is_reported_with_message_of_condition(conditions: list[Object], message: str) -> None:
    problems = find_problems({"services": [build_object("begin", *conditions)]})

    assert problems == [Problem("Knative Service", "begin", message)]


@pytest.mark.parametrize("condition", [build_ready_condition("True", "all good"), build_ready_condition("Unknown")])
def test_ready_or_starting_knative_object_is_not_reported(condition: Object) -> None:
    """Check that an unready object is reported only if its condition has a reason, which a new object lacks."""
    assert find_problems({"services": [build_object("begin", condition)]}) == []


def test_knative_object_without_status_is_reported() -> None:
    (problem,) = find_problems({"brokers": [{"metadata": {"name": "default"}}]})

    assert problem == ("Broker", "default", CONTROLLER_MISSING)


def test_long_message_is_truncated() -> None:
    message = find_problems({"brokers": [build_object("default", build_ready_condition("False", "x" * 9000))]})[
        0
    ].message

    assert message.startswith("x" * MAX_MESSAGE_CHARACTERS)
    assert len(message) < MAX_MESSAGE_CHARACTERS + 50


def test_object_with_unready_dependency_is_not_reported() -> None:
    """Check that a Trigger with an unready function or Broker is not reported, nor a source with an unready Broker."""
    unready = build_ready_condition("False", "not ready")
    functions = [build_object("begin", unready), build_object("cordon", build_ready_condition("True"))]
    triggers = [
        build_object(f"{name}-on-{broker}", unready, broker=broker, subscriber={"ref": {"name": name}})
        for name, broker in (("begin", "default"), ("cordon", "failing"), ("cordon", "default"))
    ]
    sources = [
        build_object(broker, unready, sink={"ref": {"kind": "Broker", "name": broker}})
        for broker in ("default", "failing")
    ]
    brokers = [build_object("default", build_ready_condition("True")), build_object("failing", unready)]

    problems = find_problems({"services": functions, "triggers": triggers, "brokers": brokers, "pingsources": sources})

    assert [(problem.kind, problem.name) for problem in problems] == [
        ("Knative Service", "begin"),
        ("Broker", "failing"),
        ("Trigger", "cordon-on-default"),
        ("PingSource", "default"),
    ]


@pytest.mark.parametrize(
    ("conditions", "pods", "message"),
    [
        ([NO_MINIMUM], [], "Deployment does not have minimum availability"),
        ([{"type": "Available", "status": "False"}], [], "it has no available pod"),
        (
            [NO_MINIMUM, {"type": "ReplicaFailure", "status": "True", "message": "exceeded quota"}],
            [build_waiting_pod({"reason": "ContainerCreating"})],
            "exceeded quota",
        ),
        (
            [NO_MINIMUM],
            [build_waiting_pod({"reason": "ImagePullBackOff", "message": PULL_MESSAGE})],
            PULL_MESSAGE,
        ),
        (
            [NO_MINIMUM],
            [build_waiting_pod({"reason": "CrashLoopBackOff", "message": "back-off 10s pod=begin-7f(uid)"})],
            'container "function" exits again and again: read its logs',
        ),
        (
            [NO_MINIMUM],
            [build_waiting_pod({}, conditions=[{"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}])],
            "0/3 nodes",
        ),
        (
            [NO_MINIMUM],
            [{"metadata": {"labels": {"app": "other"}}, "status": {"phase": "Pending"}}],
            "Deployment does not have minimum availability",
        ),
    ],
    ids=["condition", "no-message", "quota", "image", "crash", "unschedulable", "other-pod"],
)
def test_deployment_without_available_pod_is_reported(
    conditions: list[Object], pods: list[Object], message: str
) -> None:
    problems = find_problems({"deployments": [build_deployment(*conditions)]}, pods)

    assert problems == [Problem("Deployment", "begin", message)]


def test_pod_message_is_used_only_for_its_own_deployment() -> None:
    deployments = [build_deployment(NO_MINIMUM), build_deployment(NO_MINIMUM, name="cordon")]
    pod = build_waiting_pod({"reason": "ErrImagePull", "message": PULL_MESSAGE})

    messages = [problem.message for problem in find_problems({"deployments": deployments}, [pod])]

    assert messages == [PULL_MESSAGE, "Deployment does not have minimum availability"]


@pytest.mark.parametrize(
    "deployment",
    [
        build_deployment({"type": "Available", "status": "True"}),
        build_deployment(NO_MINIMUM, availableReplicas=1),
        build_deployment(),
        {**build_deployment(NO_MINIMUM), "metadata": {"name": "begin-00001-deployment", "labels": {}}},
        {
            **build_deployment(NO_MINIMUM),
            "spec": {"selector": {}, "template": {"metadata": {"labels": {"app.kubernetes.io/part-of": "hco"}}}},
        },
    ],
    ids=["available", "one-pod", "new", "of-knative", "of-another-product"],
)
def test_available_or_unrelated_deployment_is_not_reported(deployment: Object) -> None:
    assert find_problems({"deployments": [deployment]}) == []


def test_problems_with_same_message_are_one_warning() -> None:
    """Check that functions with the same failed image cause one warning, although each message has its own Revision."""
    names = ["begin", "cordon", "evict", "guard", "record", "restore", "resync", "status", "taint"]
    services = [
        build_object(name, build_ready_condition("False", build_revision_message(name), "RevisionFailed"))
        for name in names
    ]

    assert format_problems(find_problems({"services": services})) == [
        f"Knative Services begin, cordon and 7 others are not ready: {UNFETCHABLE}"
    ]


@pytest.mark.parametrize(
    ("count", "start"),
    [
        (1, "Deployment f0 is not available: "),
        (2, "Deployments f0 and f1 are not available: "),
        (3, "Deployments f0, f1 and f2 are not available: "),
        (4, "Deployments f0, f1 and 2 others are not available: "),
    ],
)
def test_warning_names_few_objects(count: int, start: str) -> None:
    assert format_problems(Problem("Deployment", f"f{i}", "no pod") for i in range(count)) == [f"{start}no pod"]


def test_different_kinds_and_messages_are_separate_warnings() -> None:
    problems = [Problem("Broker", "default", "a"), Problem("Trigger", "t1", "a"), Problem("Trigger", "t2", "b")]

    assert format_problems(problems) == [
        "Broker default is not ready: a",
        "Trigger t1 is not ready: a",
        "Trigger t2 is not ready: b",
    ]


@pytest.mark.parametrize(
    ("count", "notes"),
    [
        (MAX_WARNINGS, []),
        (MAX_WARNINGS + 1, ["1 other object of the install is not ready"]),
        (MAX_WARNINGS + 2, ["2 other objects of the install are not ready"]),
    ],
)
def test_number_of_warnings_is_limited(count: int, notes: list[str]) -> None:
    warnings = format_problems(Problem("Trigger", f"t{i}", f"message {i}") for i in range(count))

    assert warnings[MAX_WARNINGS - 1] == f"Trigger t{MAX_WARNINGS - 1} is not ready: message {MAX_WARNINGS - 1}"
    assert warnings[MAX_WARNINGS:] == notes


def test_functions_are_knative_services_or_labelled_deployments() -> None:
    """Check that the Deployment of the admission webhook does not count as a function."""
    webhook = build_deployment(name="validate")
    webhook["metadata"]["labels"] = {"app.kubernetes.io/component": "admission"}

    assert has_functions({"services": [build_object("functions")], "deployments": []})
    assert has_functions({"services": [], "deployments": [build_deployment()]})
    assert not has_functions({"services": [], "deployments": [webhook]})


NOW = datetime(2026, 1, 1, 12, 0, tzinfo=timezone.utc)
LONG_AGO, RECENTLY = (format_time(NOW - timedelta(seconds=STALLED_SECONDS + offset)) for offset in (0, -1))
DELETED_LONG_AGO: Object = {"deletionTimestamp": LONG_AGO, "finalizers": [FINALIZER]}
DRAINED = {"phase": "Succeeded", "lastUpdate": LONG_AGO}


def build_maintenance(status: Object | None, created: str = LONG_AGO, **metadata: object) -> Object:
    """Build a NodeMaintenance with this status."""
    return {"metadata": {"name": "node-1", "creationTimestamp": created, **metadata}} | (
        {} if status is None else {"status": status}
    )


@pytest.mark.parametrize(
    "maintenance",
    [
        build_maintenance(None),
        build_maintenance({"lastError": "the Lease is held by another tool", "lastUpdate": LONG_AGO}),
        build_maintenance({"phase": "Running", "lastUpdate": LONG_AGO}),
        build_maintenance({"phase": "Running", "lastUpdate": "yesterday"}),
        build_maintenance({**DRAINED, "conditions": [{"type": "Cordoned", "status": "False"}]}),
        build_maintenance(DRAINED, **DELETED_LONG_AGO),
    ],
    ids=["no-status", "no-phase", "running", "invalid-time", "uncordoned", "deleting"],
)
def test_maintenance_with_unchanged_status_is_stalled(maintenance: Object) -> None:
    assert select_stalled([maintenance], NOW) == [maintenance]


@pytest.mark.parametrize(
    "maintenance",
    [
        build_maintenance(None, created=RECENTLY),
        build_maintenance({"phase": "Running", "lastUpdate": RECENTLY}),
        build_maintenance(DRAINED),
        build_maintenance({"phase": "Failed", "lastUpdate": LONG_AGO}),
        build_maintenance(None, **{**DELETED_LONG_AGO, "deletionTimestamp": RECENTLY}),
        build_maintenance(None, **{**DELETED_LONG_AGO, "finalizers": ["backup.example/keep"]}),
    ],
    ids=["new", "running", "drained", "failed", "deleted-recently", "released"],
)
def test_recently_changed_or_finished_maintenance_is_not_stalled(maintenance: Object) -> None:
    assert select_stalled([maintenance], NOW) == []
