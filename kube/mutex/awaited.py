"""Whether what a run under way waits for is on its way, so that nobody has to say it: a Job, an upgrade. Pure."""

from __future__ import annotations

from datetime import datetime

from kube.mutex import jobs, maintainers, node_labels, run_record, validation, versions
from kube.mutex.jobs import Outcome
from kube.mutex.objects import Item, Reference, condition
from kube.mutex.run_record import current, job_entry, next_job, record_of
from kube.mutex.world import World


def cleanups(world: World) -> run_record.HasCleanup:
    """Whether a rule has a Job behind the upgrade; one that is gone may."""
    return lambda rule: rule not in world.rules or jobs.has_cleanup(world.rules[rule])


def is_early(run: Item, _world: World, _now: datetime, _patience: float) -> bool:
    """Whether it waits for the control plane; that its condition says so was looked at before."""
    return validation.is_early(run)


def job_runs(run: Item, world: World, _now: datetime, _patience: float) -> bool:
    """Whether the Job of the node, which may be gone, is there and under way: then its end is told by its source."""
    job = _recorded_job(run, world)
    return job is not None and _outcome(job, world) is Outcome.RUNNING


def has_result(run: Item, world: World) -> bool:
    """Whether the Job of a node that is there has ended: its result is lost when the Job goes by its TTL."""
    record = record_of(run)
    name, job = current(record), _recorded_job(run, world)
    has_ended = job is not None and _outcome(job, world) is not Outcome.RUNNING
    return has_ended and run_record.is_there(world.nodes.get(name), record, name)


def _recorded_job(run: Item, world: World) -> Reference | None:
    """The Job that the node waits for; None where none is recorded."""
    record = record_of(run)
    name = current(record)
    due = next_job(record, name, cleanups(world))
    entry = job_entry(record, name, due) if due else {}
    return Reference(entry["namespace"], entry["name"]) if entry.get("name") else None


def _outcome(job: Reference, world: World) -> Outcome:
    return jobs.outcome((world.jobs or {}).get(job))


def is_maintained(run: Item, world: World, _now: datetime, _patience: float) -> bool:
    """Whether somebody else maintains the node that is to be released."""
    record = record_of(run)
    name = current(record)
    node = world.nodes.get(name)
    return node is not None and bool(maintainers.hindrance(node, world.maintainers.get(name), record["id"]))


def upgrades(run: Item, world: World, now: datetime, patience: float) -> bool:
    """Whether the released node is on its way: there, and no other of its name; released, older than what is wanted,
    and in time.

    While nothing is wanted, or the control plane is on its way, it is held, once record and condition say so.
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
