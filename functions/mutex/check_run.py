"""Check that all objects named by a MutexRunConfig exist and are valid, then continue its run (MUT-30, MUT-3, MUT-48).

In: an added or updated MutexRunConfig, `run.found`. Out: `run.validated`, `run.ended`, or the event that an active run
waits for: `pools.claimed`, `pools.paused`, `nodes.labelled`, `job.due`, `node.cleared`, `node.released`,
`run.completed`.
Touches: mutexrunconfigs get; mutexrunconfigs/status patch; mutexrules get; mutextargets get; machineconfigpools list;
nodes list.
"""

from __future__ import annotations

from cloudevents.core.base import BaseCloudEvent

from eventing import events
from eventing.events import Reference
from eventing.http_binding import BadEvent
from functions.event_data import data_of
from functions.mutex.active_run import OF_STAGE, Ongoing, ongoing
from functions.mutex.event_objects import Replies, is_for, now, read, telling, write_status
from kube.client.sync_client import Cluster
from kube.mutex import lookup, due_events, run_changes, run_record
from kube.mutex.objects import RUN, has_finalizer, is_deleting, references
from kube.mutex.validation import CONFIG_VALIDATED, config_verdict, is_valid, rules_needed
from kube.mutex.run_snapshot import World
from kube.paths import Object

CONSUMES = (events.RESOURCE_ADDED, events.RESOURCE_UPDATED, events.RUN_FOUND)
EMITS = (events.RUN_VALIDATED, events.RUN_ENDED, *sorted(set(OF_STAGE.values())))


@telling(CONFIG_VALIDATED, "FetchFailed")
def check_run(event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Validate the run config after a user's change or on the tick, and return the event that continues its run.

    The step ignores update events that come from its own status writes.
    """
    if not is_for(event, RUN) or (event.get_type() == events.RESOURCE_UPDATED and not _concerns(event)):
        return []
    run = read(event, cluster, RUN)
    if run is None:
        return []
    if is_deleting(run):
        ended = events.event(events.RUN_ENDED, "check-run", Reference.of(run), cause=event)
        return [ended] if has_finalizer(run) else []
    verdict = config_verdict(run, _world(run, cluster))
    changes = {"observedGeneration": run["metadata"]["generation"]}
    if not run_record.is_active(run):
        changes["step"] = "Waiting" if verdict.holds else "Invalid"
    elif verdict.holds and not is_valid(run):
        changes |= run_changes.more_time(run, now())
    run = write_status(run, cluster, changes, [verdict]) or run
    return _goes_on(run, event, cluster) if verdict.holds else []


def _concerns(event: BaseCloudEvent) -> bool:
    """Return whether a user made the update: a change of the spec or of the retry annotation, or a deletion."""
    hint = data_of(event)
    try:
        return is_deleting(hint) or due_events.is_unseen(hint)
    except (KeyError, TypeError, AttributeError):
        raise BadEvent("the MutexRunConfig in data is malformed") from None


def _world(run: Object, cluster: Cluster) -> World:
    api = cluster.api
    rules, targets, pools, nodes = cluster.together(
        lookup.named_rules(api, rules_needed(run)),
        lookup.named_targets(api, references(run, "mutexTargets")),
        lookup.pools(api),
        lookup.nodes(api),
    )
    return World(rules, targets, pools, nodes)


def _goes_on(run: Object, event: BaseCloudEvent, cluster: Cluster) -> Replies:
    """Return the next event: `run.validated` without an active run, else the event that the active run waits for.

    If a user has resumed a failed run, the function first clears the failure in its record.
    """
    if not run_record.is_active(run):
        return [events.event(events.RUN_VALIDATED, "check-run", Reference.of(run), cause=event)]
    if run_record.is_resumed(run):
        run = _resumed(run, cluster)
    found = ongoing(run, cluster)
    return found.answer_of_stage("check-run", event) if found else []


def _resumed(run: Object, cluster: Cluster) -> Object:
    record = run_record.record_of(run)
    known = Ongoing(run, cluster.run(lookup.named_rules(cluster.api, run_record.rules_of(record))))
    return known.written(cluster, run_changes.resumption(run, known.has_cleanup, now())).run
