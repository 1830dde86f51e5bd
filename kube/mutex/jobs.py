"""Jobs before and after a node's upgrade: their names, their content from the rule's template, and their outcomes."""

from __future__ import annotations

import copy
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from enum import Enum
from shlex import quote
from typing import Any

from kube.mutex.objects import DEFAULT_NAMESPACE, RUN_LABEL, Reference, Resource, get_reference
from kube.paths import Object, encode_path_segment

MAIN, CLEANUP = "main", "cleanup"
SPEC_FIELDS = {MAIN: "jobSpec", CLEANUP: "cleanUpJobSpec"}
"""Field of a MutexRule that contains the Job template, by kind of Job."""
HOSTNAME_LABEL = "kubernetes.io/hostname"
NODE_SELECTOR_TERMS_PATH = ("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution", "nodeSelectorTerms")
"""Path from an affinity to the terms that select the nodes for a pod."""
NODE_ANNOTATION, RULE_ANNOTATION = "nodemaintenance.dev/mutex-node", "nodemaintenance.dev/mutex-rule"
NODE_VARIABLE, RULE_VARIABLE, RUN_VARIABLE = "NODE_NAME", "MUTEX_RULE", "MUTEX_RUN"
"""Names of environment variables in each container: the node's name, the rule's name and the run's id."""
MAX_NAME_CHARACTERS = 63
"""Maximum length of a Job's name, in characters; the name is also a label value on the Job's pods."""
MIN_TTL_SECONDS = 60
"""Minimum time, in seconds, after which a finished Job may be deleted (`ttlSecondsAfterFinished`).

A function that is killed right after creating a Job must find that Job on its retry. Otherwise, it would create a
second Job.
"""
NAME_PATTERN = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", re.ASCII)
"""Matches a valid prefix of a Job's name."""


class JobOutcome(Enum):
    """The outcome of a Job; `VANISHED` means that the Job was deleted before its result was known."""

    RUNNING = "Running"
    COMPLETE = "Complete"
    FAILED = "Failed"
    VANISHED = "Vanished"


def build_jobs_path(namespace: str) -> str:
    """Return the API path of the Jobs in a namespace."""
    return f"/apis/batch/v1/namespaces/{encode_path_segment(namespace)}/jobs"


def build_job_path(namespace: str, name: str) -> str:
    """Return the API path of a Job."""
    return f"{build_jobs_path(namespace)}/{encode_path_segment(name)}"


def format_job_key(job_kind: str, rule: Reference) -> str:
    """Return the key under which a run's record stores a node's Job of this rule."""
    return f"{job_kind}:{rule}"


def get_job_namespace(rule: Resource) -> str:
    """Return the namespace in which the rule's Jobs run."""
    return str(rule["spec"]["jobNamespace"])


def format_permission_error(message: str, rule: Resource) -> str:
    """Return the API server's message that denies a Job in the rule's namespace, followed by the remedy.

    The remedy names the Roles and RoleBindings that the namespace needs, and the command that shows which are missing.
    """
    return (
        f"{message}: copy the Roles and RoleBindings check-rule and run-job from namespace {DEFAULT_NAMESPACE}, "
        "as docs/mutex.md shows (Namespaces of Jobs); to see which of them are missing, run "
        f"kubectl get role,rolebinding check-rule run-job -n {quote(get_job_namespace(rule))}"
    )


def has_cleanup(rule: Resource) -> bool:
    """Return whether the rule has a cleanup Job, which runs after a node's upgrade."""
    return rule["spec"].get("cleanUpJobSpec") is not None


def build_job_name(rule: Resource, job_kind: str, run_id: str, node_uid: str, attempt: int) -> str:
    """Return a Job's name, which is deterministic, unique per attempt, and has the rule's prefix (MUT-41, MUT-42)."""
    identity = "|".join((run_id, node_uid, job_kind, *get_reference(rule)))
    end = f"-{hashlib.sha256(identity.encode()).hexdigest()[:10]}-{attempt}"
    prefix = f"{'cleanup-' if job_kind == CLEANUP else ''}{rule['spec']['jobName']}"
    return prefix[: MAX_NAME_CHARACTERS - len(end)].rstrip("-.") + end


def build_job(rule: Resource, job_kind: str, run_id: str, node: Mapping[str, Any], attempt: int) -> Object:
    """Build a rule's Job for a node from the rule's template (MUT-41).

    Each container gets environment variables for the node, the rule and the run. The pod's affinity keeps the pod off
    this node.
    """
    metadata, spec = node["metadata"], copy.deepcopy(rule["spec"][SPEC_FIELDS[job_kind]])
    if type(ttl := spec.get("ttlSecondsAfterFinished")) is int:
        spec["ttlSecondsAfterFinished"] = max(ttl, MIN_TTL_SECONDS) if ttl >= 0 else ttl
    pod_spec = _get_pod_spec(spec)
    if pod_spec is not None:
        host = (metadata.get("labels") or {}).get(HOSTNAME_LABEL, metadata["name"])
        pod_spec["affinity"] = _exclude_host(pod_spec.get("affinity"), host)
        run_variables = {NODE_VARIABLE: metadata["name"], RULE_VARIABLE: rule["metadata"]["name"], RUN_VARIABLE: run_id}
        for container in _iterate_containers(pod_spec):
            container["env"] = _merge_env(container.get("env"), run_variables)
    annotations = {NODE_ANNOTATION: metadata["name"], RULE_ANNOTATION: str(get_reference(rule))}
    name = build_job_name(rule, job_kind, run_id, metadata.get("uid", ""), attempt)
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": name,
            "namespace": get_job_namespace(rule),
            "labels": {RUN_LABEL: run_id},
            "annotations": annotations,
        },
        "spec": spec,
    }


def is_same_job(job: Resource, desired: Resource) -> bool:
    """Return whether an existing Job belongs to the same run, rule and node as the desired Job."""
    metadata, desired_metadata = job["metadata"], desired["metadata"]
    annotations = metadata.get("annotations") or {}
    same = all(annotations.get(name) == value for name, value in desired_metadata["annotations"].items())
    return same and (metadata.get("labels") or {}).get(RUN_LABEL) == desired_metadata["labels"][RUN_LABEL]


def _get_pod_spec(spec: Resource) -> Object | None:
    """Return the pod spec in a Job's spec, None if it is malformed; the API server rejects a Job without it."""
    template = spec.get("template")
    pod = template.get("spec") if isinstance(template, dict) else None
    return pod if isinstance(pod, dict) else None


def _iterate_containers(pod_spec: Object) -> Iterator[Object]:
    for field in ("initContainers", "containers"):
        containers = pod_spec.get(field)
        if isinstance(containers, list):
            yield from (container for container in containers if isinstance(container, dict))


def _merge_env(existing: Any, run_variables: Mapping[str, str]) -> Any:
    """Merge a container's environment variables with `run_variables`, which take precedence.

    A malformed value is returned unchanged, so that the API server rejects the Job.
    """
    if existing is not None and not isinstance(existing, list):
        return existing
    kept = [
        variable
        for variable in existing or []
        if not (isinstance(variable, dict) and str(variable.get("name")) in run_variables)
    ]
    return [*kept, *({"name": name, "value": value} for name, value in run_variables.items())]


def _exclude_host(affinity: Any, host: str) -> Any:
    """Return the affinity, extended so that no pod is scheduled to the host.

    The exclusion is added to every node selector term, because kube-scheduler needs only one term to match.
    """
    not_on_host = {"key": HOSTNAME_LABEL, "operator": "NotIn", "values": [host]}

    def exclude_in_term(term: Any) -> Any:
        return _update_at_path(
            term,
            ("matchExpressions",),
            lambda expressions: [*(expressions or []), not_on_host] if _is_list_or_none(expressions) else expressions,
        )

    def exclude_nodes_in_selector_terms(terms: Any) -> Any:
        return [exclude_in_term(term) for term in terms or [{}]] if _is_list_or_none(terms) else terms

    return _update_at_path(affinity, NODE_SELECTOR_TERMS_PATH, exclude_nodes_in_selector_terms)


def _update_at_path(value: Any, path: tuple[str, ...], update: Callable[[Any], Any]) -> Any:
    """Return a copy of a nested mapping with the value at `path` updated.

    A malformed mapping is returned unchanged, so that the API server rejects it.
    """
    if not path:
        return update(value)
    if value is not None and not isinstance(value, dict):
        return value
    inner = value or {}
    return {**inner, path[0]: _update_at_path(inner.get(path[0]), path[1:], update)}


def _is_list_or_none(value: Any) -> bool:
    """Return whether the value is a list or None."""
    return value is None or isinstance(value, list)


def find_overridden_variables(rule: Resource) -> list[str]:
    """Return the names of the environment variables in the rule's containers that the run's variables override."""
    overridden: set[str] = set()
    for field in SPEC_FIELDS.values():
        for container in _iterate_containers(_get_pod_spec(rule["spec"].get(field) or {}) or {}):
            container_env = container.get("env")
            env_entries = container_env if isinstance(container_env, list) else []
            names = {str(entry.get("name")) for entry in env_entries if isinstance(entry, dict)}
            overridden |= names & {NODE_VARIABLE, RULE_VARIABLE, RUN_VARIABLE}
    return sorted(overridden)


def get_job_outcome(job: Mapping[str, Any] | None) -> JobOutcome:
    """Return the outcome of a Job; None stands for a Job that no longer exists, whose result is unknown."""
    if job is None:
        return JobOutcome.VANISHED
    conditions = (job.get("status") or {}).get("conditions") or []
    true_types = {condition["type"] for condition in conditions if condition.get("status") == "True"}
    return (
        JobOutcome.COMPLETE
        if "Complete" in true_types
        else JobOutcome.FAILED
        if "Failed" in true_types
        else JobOutcome.RUNNING
    )


def format_job_failure(job: Mapping[str, Any] | None) -> str:
    """Return why the Job failed, according to its condition."""
    if job is None:
        return "it was deleted before its result was known"
    conditions = (job.get("status") or {}).get("conditions") or []
    failed_condition: Mapping[str, Any] = next(
        (condition for condition in conditions if condition["type"] == "Failed"), {}
    )
    return f"{failed_condition.get('reason') or 'Failed'}: {failed_condition.get('message') or 'no message'}"
