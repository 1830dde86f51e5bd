"""Checks whether what an active run waits for is already in progress, so that no event has to be emitted again."""

from __future__ import annotations

from datetime import datetime

from kube.mutex import jobs, maintainers, node_labels, run_record, validation, versions
from kube.mutex.jobs import Outcome
from kube.mutex.objects import Item, Reference, condition
from kube.mutex.run_record import current, job_entry, next_job, record_of
from kube.mutex.run_snapshot import World


def cleanups(world: World) -> run_record.HasCleanup:
    """Return a predicate for whether a rule has a cleanup Job; it is True for a rule that no longer exists."""
    return lambda rule: rule not in world.rules or jobs.has_cleanup(world.rules[rule])


def is_early(run: Item, _world: World, _now: datetime, _patience: float) -> bool:
    """Return whether the run waits for the control plane.

    The caller has already checked that the run's condition shows the current state of the control plane.
    """
    return validation.is_early(run)


def job_runs(run: Item, world: World, _now: datetime, _patience: float) -> bool:
    """Return whether the Job of the run's current node is running, so that its end arrives as an event.

    The node itself may no longer exist.
    """
    job = _recorded_job(run, world)
    return job is not None and _outcome(job, world) is Outcome.RUNNING


def has_result(run: Item, world: World) -> bool:
    """Return whether the Job of the run's current node has ended or vanished, and the node still exists.

    The result must be recorded before the Job's TTL removes it.
    """
    record = record_of(run)
    name, job = current(record), _recorded_job(run, world)
    has_ended = job is not None and _outcome(job, world) is not Outcome.RUNNING
    return has_ended and run_record.is_there(world.nodes.get(name), record, name)


def _recorded_job(run: Item, world: World) -> Reference | None:
    """Return the Job that the current node waits for, or None if none is recorded."""
    record = record_of(run)
    name = current(record)
    due = next_job(record, name, cleanups(world))
    entry = job_entry(record, name, due) if due else {}
    return Reference(entry["namespace"], entry["name"]) if entry.get("name") else None


def _outcome(job: Reference, world: World) -> Outcome:
    return jobs.outcome((world.jobs or {}).get(job))


def is_maintained(run: Item, world: World, _now: datetime, _patience: float) -> bool:
    """Return whether a maintenance that this run did not request delays the release of the current node."""
    record = record_of(run)
    name = current(record)
    node = world.nodes.get(name)
    return node is not None and bool(maintainers.hindrance(node, world.maintainers.get(name), record["id"]))


def upgrades(run: Item, world: World, now: datetime, patience: float) -> bool:
    """Return whether the released node is upgrading, so that its next change arrives as an event.

    The node must still exist, carry no rule labels, have an older version than the desired one, and be within its time
    limit. While no version is desired, or the control plane is still upgrading, the node is held. Then both the record
    and the condition must already report that.
    """
    record = record_of(run)
    name = current(record)
    node = world.nodes.get(name)
    if not run_record.is_there(node, record, name) or not node_labels.is_released(node):
        return False
    wanted = versions.wanted(world.cluster_version)
    if wanted.version and versions.version_of(node) == wanted.version:
        return False
    known = record["nodes"][name]
    if wanted.hindrance:
        return bool(known.get("heldAt")) and condition(run, validation.UPGRADE).get("reason") == validation.HELD
    return not known.get("heldAt") and run_record.seconds_since(known.get("releasedAt"), now) < patience
