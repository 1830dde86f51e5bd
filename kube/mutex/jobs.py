"""Jobs before and after a node's upgrade: their names, the additions to a rule's template, and their outcomes."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from typing import Any

from kube.mutex.objects import RUN_LABEL, Item, Reference, reference
from kube.paths import Object, segment

MAIN, CLEANUP = "main", "cleanup"
SPECS = {MAIN: "jobSpec", CLEANUP: "cleanUpJobSpec"}
"""Kind of Job → the rule's field with the Job template."""
HOSTNAME = "kubernetes.io/hostname"
REQUIRED_TERMS = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
"""Path within an affinity to the terms that select the nodes for a pod."""
NODE_ANNOTATION, RULE_ANNOTATION = "nodemaintenance.dev/mutex-node", "nodemaintenance.dev/mutex-rule"
NODE_VARIABLE, RULE_VARIABLE, RUN_VARIABLE = "NODE_NAME", "MUTEX_RULE", "MUTEX_RUN"
"""Environment variables in each container: the node, the name of the rule, the id of the run."""
LONGEST_NAME = 63
"""Maximum length in characters; the name becomes a label of the Job's pods."""
SHORTEST_TTL = 60
"""Minimum TTL of a finished Job, in seconds.

A function that is killed right after creating a Job must find it at the next attempt, or it would create a second one.
"""
NAME = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
"""Valid prefix for a Job's name."""


class Outcome(Enum):
    """State of a Job."""

    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"
    VANISHED = "Vanished"


def jobs_path(namespace: str) -> str:
    """Return the API path of the Jobs in a namespace."""
    return f"/apis/batch/v1/namespaces/{segment(namespace)}/jobs"


def job_path(namespace: str, name: str) -> str:
    """Return the API path of a Job."""
    return f"{jobs_path(namespace)}/{segment(name)}"


def job_key(kind: str, rule: Reference) -> str:
    """Return the key under which a run's record stores the Job of a rule."""
    return f"{kind}:{rule}"


def namespace_of(rule: Item) -> str:
    """Return the namespace in which the rule's Jobs run."""
    return str(rule["spec"]["jobNamespace"])


def has_cleanup(rule: Item) -> bool:
    """Return whether the rule has a cleanup Job, which runs after the upgrade."""
    return rule["spec"].get("cleanUpJobSpec") is not None


def job_name(rule: Item, kind: str, run_id: str, node_uid: str, attempt: int) -> str:
    """Return the reproducible and unique name of one attempt; it begins with the rule's prefix (MUT-41, MUT-42)."""
    identity = "|".join((run_id, node_uid, kind, *reference(rule)))
    end = f"-{hashlib.sha256(identity.encode()).hexdigest()[:10]}-{attempt}"
    prefix = f"{'cleanup-' if kind == CLEANUP else ''}{rule['spec']['jobName']}"
    return prefix[: LONGEST_NAME - len(end)].rstrip("-.") + end


def job_of(rule: Item, kind: str, run_id: str, node: Mapping[str, Any], attempt: int) -> Object:
    """Build the Job of a rule for a node from the rule's template (MUT-41).

    Each container gets the node, the rule and the run as environment variables. The pod's affinity excludes the node.
    """
    metadata, spec = node["metadata"], copy.deepcopy(rule["spec"][SPECS[kind]])
    if type(ttl := spec.get("ttlSecondsAfterFinished")) is int:
        spec["ttlSecondsAfterFinished"] = max(ttl, SHORTEST_TTL) if ttl >= 0 else ttl
    pod = _pod(spec)
    if pod is not None:
        host = (metadata.get("labels") or {}).get(HOSTNAME, metadata["name"])
        pod["affinity"] = _elsewhere(pod.get("affinity"), host)
        told = {NODE_VARIABLE: metadata["name"], RULE_VARIABLE: rule["metadata"]["name"], RUN_VARIABLE: run_id}
        for container in _containers(pod):
            container["env"] = _env(container.get("env"), told)
    annotations = {NODE_ANNOTATION: metadata["name"], RULE_ANNOTATION: str(reference(rule))}
    name = job_name(rule, kind, run_id, metadata.get("uid", ""), attempt)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": namespace_of(rule),
            "labels": {RUN_LABEL: run_id},
            "annotations": annotations,
        },
        "spec": spec,
    }


def is_of(job: Item, body: Item) -> bool:
    """Return whether an existing Job belongs to the same run, rule and node as the Job to create."""
    told, ours = job["metadata"], body["metadata"]
    notes = told.get("annotations") or {}
    same = all(notes.get(name) == value for name, value in ours["annotations"].items())
    return same and (told.get("labels") or {}).get(RUN_LABEL) == ours["labels"][RUN_LABEL]


def _pod(spec: Item) -> Object | None:
    """Return the pod spec of a Job's spec, or None if it is malformed; the API server rejects such a Job."""
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else None
    return pod if isinstance(pod, dict) else None


def _containers(pod: Object) -> Iterator[Object]:
    for field in ("initContainers", "containers"):
        found = pod.get(field)
        yield from (each for each in found if isinstance(each, dict)) if isinstance(found, list) else ()


def _env(known: Any, ours: Mapping[str, str]) -> Any:
    """Return the container's own variables and ours, which take precedence.

    A malformed value is returned unchanged, so that the API server rejects it.
    """
    if known is not None and not isinstance(known, list):
        return known
    kept = [each for each in known or [] if not (isinstance(each, dict) and str(each.get("name")) in ours)]
    return [*kept, *({"name": name, "value": value} for name, value in ours.items())]


def _elsewhere(affinity: Any, host: str) -> Any:
    """Return the affinity, extended so that it excludes the host.

    The exclusion is added to every term, because the scheduler needs only one term to match.
    """
    away = {"key": HOSTNAME, "operator": "NotIn", "values": [host]}

    def kept_off(term: Any) -> Any:
        return _with(term, ("matchExpressions",), lambda known: [*(known or []), away] if _is_list(known) else known)

    def all_kept_off(terms: Any) -> Any:
        return [kept_off(term) for term in terms or [{}]] if _is_list(terms) else terms

    return _with(affinity, REQUIRED_TERMS, all_kept_off)


def _with(known: Any, path: tuple[str, ...], change: Callable[[Any], Any]) -> Any:
    """Return a mapping with the value at `path` changed.

    A malformed value is returned unchanged, so that the API server rejects it.
    """
    if not path:
        return change(known)
    if known is not None and not isinstance(known, dict):
        return known
    inner = known or {}
    return {**inner, path[0]: _with(inner.get(path[0]), path[1:], change)}


def _is_list(known: Any) -> bool:
    """Return whether the value is a list or None."""
    return known is None or isinstance(known, list)


def overridden(rule: Item) -> list[str]:
    """Return the variables that the rule's containers set themselves and that ours replace."""
    found: set[str] = set()
    for field in SPECS.values():
        for container in _containers(_pod(rule["spec"].get(field) or {}) or {}):
            known = container.get("env")
            own = known if isinstance(known, list) else []
            names = {str(each.get("name")) for each in own if isinstance(each, dict)}
            found |= names & {NODE_VARIABLE, RULE_VARIABLE, RUN_VARIABLE}
    return sorted(found)


def outcome(job: Mapping[str, Any] | None) -> Outcome:
    """Return the state of a Job; None stands for a Job that no longer exists, so that its result is unknown."""
    if job is None:
        return Outcome.VANISHED
    conditions = (job.get("status") or {}).get("conditions") or []
    met = {each["type"] for each in conditions if each.get("status") == "True"}
    return Outcome.COMPLETE if "Complete" in met else Outcome.FAILED if "Failed" in met else Outcome.RUNNING


def failure_of(job: Mapping[str, Any] | None) -> str:
    """Return why the Job failed, in the Job controller's words."""
    if job is None:
        return "it was deleted before its result was known"
    conditions = (job.get("status") or {}).get("conditions") or []
    failed: Mapping[str, Any] = next((each for each in conditions if each["type"] == "Failed"), {})
    return f"{failed.get('reason') or 'Failed'}: {failed.get('message') or 'no message'}"
