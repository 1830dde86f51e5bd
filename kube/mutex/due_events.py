"""Determines from the current objects which events rules, targets and runs wait for; the tick emits lost ones again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum

from kube.mutex import wait_checks, claims, node_labels, run_record, validation, versions
from kube.mutex.objects import (
    LONGEST_MESSAGE,
    Item,
    Verdict,
    condition,
    has_finalizer,
    is_deleting,
    is_true,
    status,
)
from kube.mutex.run_record import Stage, current, is_active, record_of
from kube.mutex.run_snapshot import World

SLOT_SECONDS, SLOTS = 15, 40
"""Seconds between two ticks, and ticks in ten minutes.

Once in that time each object is checked, whatever its status reports (MUT-30).
"""


class Due(Enum):
    """The event that an object waits for."""

    RULE = "rule.found"
    TARGET = "target.found"
    CHECK = "run.found"
    DETECT = "run.validated"
    CLAIM = "upgrade.found"
    PAUSE = "pools.claimed"
    LABEL = "pools.paused"
    EDIT = "nodes.labelled"
    JOB = "job.due"
    RELEASE = "node.cleared"
    UPGRADE = "node.released"
    RESTORE = "run.completed"
    END = "run.ended"


OF_STAGE = {
    Stage.CLAIMED: Due.PAUSE,
    Stage.PAUSED: Due.LABEL,
    Stage.LABELLED: Due.EDIT,
    Stage.JOBS: Due.JOB,
    Stage.CLEARED: Due.RELEASE,
    Stage.RELEASED: Due.UPGRADE,
    Stage.CLEANUP: Due.JOB,
    Stage.DONE: Due.RESTORE,
}
"""Stage of a run → the event that continues the run."""
LOOKING = (Stage.JOBS, Stage.RELEASED, Stage.CLEANUP)
"""Stages that wait for the end of a Job or of an upgrade.

Their event is emitted even if other clients' changes are not undone yet, because undoing them may be refused forever.
In all other stages, the run waits until these changes are undone.
"""


AGAIN = {
    Due.PAUSE: (("paused", claims.are_paused), ("claimed", claims.are_claimed)),
    Due.EDIT: (("edited", claims.are_edited),),
}
"""Event that corrects pools → the name of each change in the record, and the check for it."""


def is_turn(uid: str, moment: datetime) -> bool:
    """Return whether this tick is the one in ten minutes that checks the object in any case."""
    return int(moment.timestamp() // SLOT_SECONDS) % SLOTS == int(uid.replace("-", "")[:8] or "0", 16) % SLOTS


def rule_due(rule: Item, now: datetime) -> list[Due]:
    """Return the event for a rule whose current generation was not validated yet.

    A rule that is not valid is also checked once in ten minutes, because its namespace may have been created.
    """
    found = condition(rule, validation.VALID_CONFIG)
    if is_deleting(rule):
        return []
    in_turn = found.get("status") != "True" and is_turn(rule["metadata"]["uid"], now)
    return [] if validation.is_judged(rule) and not in_turn else [Due.RULE]


def target_due(target: Item, world: World) -> list[Due]:
    """Return the event for a target whose nodes or conditions differ from its status (MUT-22)."""
    if is_deleting(target):
        return []
    now = validation.gathered(target, world.pools, world.nodes.values())
    is_told = status(target).get("nodes") == now.nodes and not _differs(target, now.verdicts)
    return [] if is_told else [Due.TARGET]


def _differs(item: Item, verdicts: list[Verdict]) -> bool:
    """Return whether a condition has another status or message, or was computed for another generation."""
    known = [condition(item, verdict.kind) for verdict in verdicts]
    return any(
        (found.get("status"), found.get("message")) != (str(verdict.holds), verdict.message[:LONGEST_MESSAGE])
        or found.get("observedGeneration") != item["metadata"].get("generation")
        for found, verdict in zip(known, verdicts, strict=True)
    )


def run_due(run: Item, world: World, runs: Sequence[Item], now: datetime, patience: float) -> list[Due]:
    """Return the events that a run config waits for and that no step will emit; only active runs have several.

    Changes by other clients are undone even if the run config still has to be validated, because validation may fail
    forever. `patience` is the time in seconds that a released node has for its upgrade.
    """
    if is_deleting(run):
        return [Due.END] if has_finalizer(run) else []
    if is_unseen(run) or _differs(run, [validation.config_verdict(run, world)]):
        return [Due.CHECK, *(drift(run, world) if is_active(run) else [])]
    if is_active(run):
        return active_due(run, world, now, patience)
    if not is_true(run, validation.CONFIG_VALIDATED):
        return [Due.END] if claims.claimed(run["metadata"]["uid"], world.pools.values()) else []
    return _idle_due(run, world, runs, now)


def is_unseen(run: Item) -> bool:
    """Return whether a user has changed something that was not processed yet.

    A stopped run is not resumed while its config is invalid. The user's change counts as processed until the config is
    valid.
    """
    known = status(run)
    is_new = known.get("observedGeneration") != run["metadata"].get("generation")
    return is_new or (run_record.is_resumed(run) and is_true(run, validation.CONFIG_VALIDATED))


def _idle_due(run: Item, world: World, runs: Sequence[Item], now: datetime) -> list[Due]:
    found = validation.detection(run, world, run_record.done_version(run))
    if _differs(run, found.verdicts):
        return [Due.DETECT]
    names = claims.wanted_names(run, world.pool_names(run))
    if claims.leftovers(run, names, world.pools.values()):
        return [Due.END]
    if found.version:
        waits = claims.rivals(run, names, world.pools, runs) or claims.under_way(run, runs)
        return [] if waits else [Due.CLAIM]
    if has_finalizer(run) or claims.claimed(run["metadata"]["uid"], world.pools.values()):
        return [Due.END]
    return [Due.CHECK] if is_turn(run["metadata"]["uid"], now) else []


def active_due(run: Item, world: World, now: datetime, patience: float) -> list[Due]:
    """Return the events that an active run waits for: they undo other clients' changes and continue the run.

    A halted run is not continued; only the result of a Job that has ended is still recorded.
    """
    at = run_record.stage(run, wait_checks.cleanups(world))
    drifted = drift(run, world)
    if validation.is_halted(run):
        return [*drifted, Due.JOB] if at in (Stage.JOBS, Stage.CLEANUP) and wait_checks.has_result(run, world) else drifted
    if drifted and at not in LOOKING:
        return drifted
    waits = {
        Stage.PAUSED: wait_checks.is_early,
        Stage.JOBS: wait_checks.job_runs,
        Stage.CLEANUP: wait_checks.job_runs,
        Stage.CLEARED: wait_checks.is_maintained,
        Stage.RELEASED: wait_checks.upgrades,
    }.get(at)
    return drifted if waits and waits(run, world, now, patience) else [*drifted, OF_STAGE[at]]


def drift(run: Item, world: World) -> list[Due]:
    """Return the events for changes from outside the run: by other clients, or of the control plane's version."""
    if undone := list(_undone(run, world)):
        return undone
    has_moved = validation.is_early(run) and _differs(run, [_control_plane(world)])
    return [Due.LABEL] if has_moved and not validation.is_halted(run) else []


def is_quarrel(run: Item, world: World, due: Due, now: datetime) -> bool:
    """Return whether the event would only correct pools that were already corrected seconds ago.

    Such repeated corrections are left to the tick.
    """
    record = record_of(run)
    return due in AGAIN and all(
        are_so(record, claims.at_rest(record, word, world.pools, now)) for word, are_so in AGAIN[due]
    )


def _undone(run: Item, world: World) -> Iterator[Due]:
    """Yield the events that undo other clients' changes to finalizer, pools, labels and selectors.

    All of them are emitted, because each one may be refused forever. But selectors wait for labels: otherwise the
    canary would select an unlabelled node, which would be upgraded at once.
    """
    record = record_of(run)
    if not current(record):
        return  # no node is left: the pools are being restored
    if not has_finalizer(run):
        yield Due.CLAIM
    is_whole = claims.are_paused(record, world.pools) and claims.are_claimed(record, world.pools)
    if record.get("pausedAt") and not is_whole:
        yield Due.PAUSE
    if record.get("labelledAt") and not _are_gated(record, world):
        yield Due.LABEL
    elif record.get("editedAt") and not claims.are_edited(record, world.pools):
        yield Due.EDIT


def _are_gated(record: run_record.Record, world: World) -> bool:
    """Return whether all unreleased nodes of the run carry its labels.

    A node that no longer exists, or was replaced under its name, does not belong to the run.
    """
    rules = run_record.rules_of(record)
    known = ((name, world.nodes.get(name)) for name in run_record.unreleased(record))
    return all(
        node_labels.is_gated(node, record["id"], rules)
        for name, node in known
        if run_record.is_there(node, record, name)
    )


def _control_plane(world: World) -> Verdict:
    return validation.control_plane_verdict(versions.wanted(world.cluster_version))


def is_under_way(run: Item) -> bool:
    """Return whether the run is active and not being deleted.

    What such a run waits for depends on its Jobs and on the maintainer of its current node.
    """
    return is_active(run) and not is_deleting(run)
