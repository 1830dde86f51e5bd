"""Check a MutexRule: a dry run shows whether the API server accepts its Jobs; no Job is created (MUT-10..13).

In: an added, updated or deleted MutexRule, `rule.found`. Out: `rule.checked`.
Touches: mutexrules get; mutexrules/status patch; jobs create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from functions.event_data import data_of
from functions.mutex.event_objects import Replies, is_for, read, reference_of, write_status
from kube.client.api_errors import ApiError, Conflict, Denied, Unavailable
from kube.client.sync_client import Cluster
from kube.mutex import jobs
from kube.mutex.objects import RULE, condition, is_deleting
from kube.mutex.validation import VALID_CONFIG, rule_problem, rule_verdict
from kube.paths import Object

CONSUMES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.RULE_FOUND)
EMITS = (events.RULE_CHECKED,)
STRICT = {"dryRun": "All", "fieldValidation": "Strict"}
TRIAL = {"metadata": {"name": "some-node", "uid": "trial"}}
"""Placeholder for the node, which is not known when a rule is checked."""
REMEDY = "let an administrator add a RoleBinding there, see docs/mutex.md"


def check_rule(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Write to the status whether the rule is valid.

    The write comes back as an update event. The step ignores it, because the condition has the current generation.
    """
    if not is_for(event, RULE) or (event.get_type() == events.RESOURCE_UPDATED and _is_judged(event)):
        return []
    rule = read(event, cluster, RULE)
    if rule is None or is_deleting(rule):
        return _checked(event) if event.get_type() == events.RESOURCE_DELETED else []
    problem = rule_problem(rule) or _refusal(rule, cluster)
    return _checked(event) if write_status(rule, cluster, {}, [rule_verdict(problem)]) else []


def _checked(event: BaseCloudEvent) -> Replies:
    about: Reference = reference_of(event, RULE)
    return [events.event(events.RULE_CHECKED, "check-rule", about, cause=event)]


def _is_judged(event: BaseCloudEvent) -> bool:
    hint = data_of(event)
    metadata, known = hint.get("metadata"), hint.get("status")
    if not (isinstance(metadata, dict) and isinstance(known, dict) and isinstance(known.get("conditions"), list)):
        return False
    return condition(hint, VALID_CONFIG).get("observedGeneration") == metadata.get("generation")


def _refusal(rule: Object, cluster: Cluster) -> str:
    """Return why the API server rejects the rule's Jobs, "" if it accepts them."""
    for kind, field in jobs.SPECS.items():
        if rule["spec"].get(field) is None:
            continue
        body = jobs.job_of(rule, kind, "trial", TRIAL, 1)
        where = jobs.jobs_path(jobs.namespace_of(rule))
        try:
            cluster.run(cluster.api.request("POST", where, query=STRICT, body=body))
        except (Unavailable, Conflict):
            raise
        except Denied as error:
            return f"spec.jobNamespace: {error.message}: {REMEDY}"
        except ApiError as error:
            return f"spec.{field}: {error.message}"
    return ""
