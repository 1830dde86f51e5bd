"""Check a MutexRule: a dry-run request shows whether the API server accepts its Jobs; no Job is created (MUT-10..13).

In: an added, updated or deleted MutexRule, `rule.check_pending`. Out: `rule.checked`.
Touches: mutexrules get; mutexrules/status patch; jobs create in node-upgrade-mutex-operator.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from functions.mutex.event_objects import (
    Replies,
    is_about_kind,
    is_update_after_validation,
    log_failure,
    parse_reference,
    read_object,
    write_status,
)
from functions.steps import step
from kube.client.api_errors import ApiError, Conflict, Denied, Unavailable
from kube.client.sync_client import SyncClient
from kube.mutex import jobs
from kube.mutex.objects import RULE_KIND, is_deleting
from kube.mutex.validation import build_rule_condition, find_rule_problem
from kube.paths import Object

DRY_RUN_QUERY = {"dryRun": "All", "fieldValidation": "Strict"}
PLACEHOLDER_NODE = {"metadata": {"name": "some-node", "uid": "trial"}}
"""Placeholder for the node in the dry-run request, because a rule is checked before a run selects nodes."""


@step(
    "check-rule",
    consumes=(events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RESOURCE_DELETED, events.RULE_CHECK_PENDING),
    emits=(events.RULE_CHECKED,),
    on_failure=log_failure,
)
def check_rule(event: BaseCloudEvent, client: SyncClient) -> Replies:
    """Report in the status whether the MutexRule is valid; ignore the update event that this status write causes."""
    if not is_about_kind(event, RULE_KIND) or is_update_after_validation(event):
        return []
    rule = read_object(event, client, RULE_KIND)
    if rule is None or is_deleting(rule):
        has_changed = event.get_type() == events.RESOURCE_DELETED
    else:
        problem = find_rule_problem(rule) or _dry_run_jobs(rule, client)
        has_changed = write_status(rule, client, {}, [build_rule_condition(problem)]) is not None
    reference = parse_reference(event, RULE_KIND)
    return [events.build_event(events.RULE_CHECKED, "check-rule", reference, cause=event)] if has_changed else []


def _dry_run_jobs(rule: Object, client: SyncClient) -> str:
    """Return the error with which the API server rejects one of the rule's Jobs, or "" if it accepts all of them."""
    for kind, field in jobs.SPEC_FIELDS.items():
        if rule["spec"].get(field) is None:
            continue
        body = jobs.build_job(rule, kind, "trial", PLACEHOLDER_NODE, 1)
        path = jobs.build_jobs_path(jobs.get_job_namespace(rule))
        try:
            client.run(client.api.request("POST", path, query=DRY_RUN_QUERY, body=body))
        except (Unavailable, Conflict):
            raise
        except Denied as error:
            return f"spec.jobNamespace: {jobs.format_permission_error(error.message, rule)}"
        except ApiError as error:
            return f"spec.{field}: {error.message}"
    return ""
