"""Finds stalled maintenances and unready objects of an install, and formats warnings about them. Pure functions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import NamedTuple

from kube.maintenance.objects import (
    FAILED,
    Maintenance,
    MaintenanceT,
    get_condition,
    get_phase,
    get_status,
    is_deleting,
    is_released,
    is_reported_drained,
)
from kube.paths import Object
from kube.pods import format_key
from kube.selectors import matches
from kube.text_limits import format_count, truncate
from kube.times import parse_time, parse_time_or_none

STALLED_SECONDS = 10.0
"""Seconds without a status update after which a maintenance is stalled.

A function starts within a few seconds, so the functions may then be down.
"""
PRODUCT_SELECTOR = {"matchLabels": {"app.kubernetes.io/part-of": "node-maintenance"}}
"""Label selector of the product's own pods."""
DEPLOYMENT, KNATIVE_SERVICE, BROKER, POD = "Deployment", "Knative Service", "Broker", "Pod"
KIND_BY_RESOURCE = {
    "services": KNATIVE_SERVICE,
    "deployments": DEPLOYMENT,
    "brokers": BROKER,
    "triggers": "Trigger",
    "apiserversources": "ApiServerSource",
    "pingsources": "PingSource",
    "containersources": "ContainerSource",
    "sinkbindings": "SinkBinding",
}
"""Map from the resource name of each checked kind to the kind's name in warnings, in the order of the warnings."""
DEPENDENCY_NAMESPACES = ("knative-eventing", "knative-serving", "kourier-system")
"""Namespaces of Knative's controllers and Brokers; Knative's objects may stay Ready while their pods do not run."""
COMPONENT_LABEL, FUNCTION_COMPONENT = "app.kubernetes.io/component", "function"
"""Label key of the Deployments in the product's manifests, and the label's value on Deployments of functions."""
NO_NODE_REMEDY = 'see "If all nodes are under maintenance" in docs/install.md'
CONTROLLER_MISSING = "no controller has set its status: check that Knative's controllers run"
MAX_MESSAGE_CHARACTERS = 400
"""Maximum length of a condition's message in a warning; long enough for an image name and a registry's response."""
MAX_WARNINGS, MAX_NAMES = 6, 3
"""Maximum number of warnings, and maximum number of objects that one warning names."""
REVISION_PREFIX = re.compile(r'Revision (?:"[^"]*"|creation) failed with message: ')
"""Matches the prefix that Knative Serving adds to a Revision's message."""
CLIENT_PORT = re.compile(r":\d+(?=->)")
"""Matches the client port in a connection error such as `10.0.0.3:41234->10.0.0.10:53`; it differs in each message."""


class Problem(NamedTuple):
    """An object of the install that is not ready, and the reason on one line."""

    kind: str
    name: str
    message: str


def select_stalled(maintenances: Iterable[MaintenanceT], now: datetime) -> list[MaintenanceT]:
    """Return the unfinished maintenances whose status has not been updated for `STALLED_SECONDS`."""
    return [maintenance for maintenance in maintenances if _is_stalled(maintenance, now)]


def _is_stalled(maintenance: Maintenance, now: datetime) -> bool:
    metadata = maintenance["metadata"]
    if is_deleting(maintenance):
        waiting, since = not is_released(maintenance), parse_time(metadata["deletionTimestamp"])
    else:
        waiting = get_phase(maintenance) != FAILED and not is_reported_drained(maintenance)
        last_update = parse_time_or_none(get_status(maintenance).get("lastUpdate"))
        since = last_update or parse_time(metadata["creationTimestamp"])
    return waiting and (now - since).total_seconds() >= STALLED_SECONDS


def find_problems(objects: Mapping[str, Iterable[Object]], pods: Sequence[Object] = ()) -> list[Problem]:
    """Return a problem for each object that is not ready, unless one of its dependencies is not ready.

    The dependencies of a Trigger are its function and its Broker; the dependency of a source is its Broker. `objects`
    maps resource names to objects. The state of `pods` explains why a Deployment has no available pod.
    """
    messages = {
        (kind, obj["metadata"]["name"]): (message, _list_dependencies(obj))
        for resource, kind in KIND_BY_RESOURCE.items()
        for obj in objects.get(resource, ())
        if (
            message := _explain_unavailable_deployment(obj, pods)
            if kind == DEPLOYMENT
            else _explain_unready_object(obj)
        )
    }
    return [
        Problem(kind, name, message)
        for (kind, name), (message, dependencies) in messages.items()
        if not messages.keys() & dependencies
    ]


def find_unscheduled_pods(pods: Iterable[Object], namespace: str) -> list[Problem]:
    """Return a problem for each unscheduled pod of the product in `namespace`, and of the product's dependencies."""
    return [
        Problem(POD, format_key(pod), _shorten_message(str(scheduled["message"])))
        for pod in pods
        if pod["metadata"]["namespace"] in (namespace, *DEPENDENCY_NAMESPACES)
        and (scheduled := get_condition(pod, "PodScheduled")).get("status") == "False"
        and scheduled.get("message")
    ]


def has_functions(objects: Mapping[str, Iterable[Object]]) -> bool:
    """Return whether the objects include a Knative Service, or a Deployment of a function."""
    return any(objects["services"]) or any(
        _get_labels(deployment).get(COMPONENT_LABEL) == FUNCTION_COMPONENT and _is_product_deployment(deployment)
        for deployment in objects["deployments"]
    )


def _list_dependencies(obj: Object) -> set[tuple[str, str]]:
    """Return the kinds and names of the objects that a Trigger or an event source depends on."""
    spec = obj.get("spec") or {}
    function, sink = ((spec.get(field) or {}).get("ref") or {} for field in ("subscriber", "sink"))
    dependencies = {
        (BROKER, spec.get("broker")),
        (KNATIVE_SERVICE, function.get("name")),
        (sink.get("kind"), sink.get("name")),
    }
    return {(kind, name) for kind, name in dependencies if kind and name}


def _explain_unready_object(obj: Object) -> str:
    """Return why a Knative object is not ready, or "" if it is ready, or if its state is unknown without a reason."""
    condition = get_condition(obj, "Ready")
    if not condition:
        return CONTROLLER_MISSING
    if condition["status"] == "True":
        return ""
    message = condition.get("message") or condition.get("reason") or ""
    return _shorten_message(message or ("the condition Ready is False" if condition["status"] == "False" else ""))


def _explain_unavailable_deployment(deployment: Object, pods: Iterable[Object]) -> str:
    """Return why a Deployment of the product has no available pod, or "" if it has one.

    The reason comes from a pod if possible, or else from the Deployment's condition `ReplicaFailure` or `Available`.
    """
    condition = get_condition(deployment, "Available")
    if (
        not _is_product_deployment(deployment)
        or (deployment.get("status") or {}).get("availableReplicas")
        or condition.get("status", "True") == "True"
    ):
        return ""
    own_pods = [pod for pod in pods if matches(deployment["spec"]["selector"], _get_labels(pod))]
    failure = get_condition(deployment, "ReplicaFailure")
    messages = (*map(_explain_waiting_pod, own_pods), failure.get("message"), condition.get("message"))
    return _shorten_message(next(filter(None, messages), "it has no available pod"))


def _is_product_deployment(deployment: Object) -> bool:
    """Return whether the Deployment comes from the product's manifests.

    Returns False for a Deployment that Knative created for a Knative Service or an event source, because the problem is
    reported for that object.
    """
    return COMPONENT_LABEL in _get_labels(deployment) and matches(
        PRODUCT_SELECTOR, _get_labels(deployment["spec"]["template"])
    )


def _explain_waiting_pod(pod: Object) -> str:
    """Return why a container of the pod is waiting or why the pod is not scheduled, or "" if neither applies."""
    status = pod.get("status") or {}
    for container in (*(status.get("initContainerStatuses") or []), *(status.get("containerStatuses") or [])):
        waiting = (container.get("state") or {}).get("waiting") or {}
        if waiting.get("reason") == "CrashLoopBackOff":  # The original message differs for each pod.
            return f'container "{container["name"]}" exits again and again: read its logs'
        if waiting.get("message"):
            return str(waiting["message"])
    scheduled = get_condition(pod, "PodScheduled")
    return str(scheduled.get("message") or "") if scheduled.get("status") == "False" else ""


def _get_labels(obj: Object) -> Mapping[str, str]:
    return (obj.get("metadata") or {}).get("labels") or {}


def _shorten_message(message: str) -> str:
    """Return the message on one line of limited length, without parts that differ between objects with one cause."""
    text = CLIENT_PORT.sub("", REVISION_PREFIX.sub("", " ".join(message.split()), count=1))
    return truncate(text.removesuffix("."), MAX_MESSAGE_CHARACTERS)


def format_problems(problems: Iterable[Problem]) -> list[str]:
    """Return one warning per kind and message, which lists the names of the affected objects."""
    names_by_problem: dict[tuple[str, str], list[str]] = {}
    for problem in problems:
        names_by_problem.setdefault((problem.kind, problem.message), []).append(problem.name)
    lines = [_format_problem_group(kind, names, message) for (kind, message), names in names_by_problem.items()]
    omitted = sum(map(len, [*names_by_problem.values()][MAX_WARNINGS:]))
    note = f"{format_count(omitted, 'other object')} of the install {'is' if omitted == 1 else 'are'} not ready"
    return [*lines[:MAX_WARNINGS], *([note] if omitted else [])]


def _format_problem_group(kind: str, names: Sequence[str], message: str) -> str:
    state = {DEPLOYMENT: "available", POD: "scheduled"}.get(kind, "ready")
    if len(names) == 1:
        return f"{kind} {names[0]} is not {state}: {message}"
    shown = names if len(names) <= MAX_NAMES else [*names[: MAX_NAMES - 1], f"{len(names) - MAX_NAMES + 1} others"]
    return f"{kind}s {', '.join(shown[:-1])} and {shown[-1]} are not {state}: {message}"
