"""What a rule, a target or a run waits for, told from what is there: so the tick says what was lost. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime
from enum import Enum

from kube.mutex import awaited, claims, node_labels, run_record, validation, versions
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
from kube.mutex.world import World

SLOT_SECONDS, SLOTS = 15, 40
"""A tick, and the ticks of ten minutes: once in that time all is looked at, whatever is known of it (MUT-30)."""


class Due(Enum):
    """What is to be said."""

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
"""Stage of a run → what brings it on."""
LOOKING = (Stage.JOBS, Stage.RELEASED, Stage.CLEANUP)
"""Stages that wait for the end of a Job or of an upgrade: that is told also while something is undone, which may be
refused to be done again for ever. Every other step waits until nothing is."""


AGAIN = {
    Due.PAUSE: (("paused", claims.are_paused), ("claimed", claims.are_claimed)),
    Due.EDIT: (("edited", claims.are_edited),),
}
"""What is to be done again of pools → the words by which the record has it, and whether they are so."""


def is_turn(uid: str, moment: datetime) -> bool:
    """Whether this tick is the one in ten minutes at which this object is looked at anyway."""
    return int(moment.timestamp() // SLOT_SECONDS) % SLOTS == int(uid.replace("-", "")[:8] or "0", 16) % SLOTS


def rule_due(rule: Item, now: datetime) -> list[Due]:
    """A rule that was never judged as it is now; one that is not valid in its turn, for its namespace may come."""
    found = condition(rule, validation.VALID_CONFIG)
    if is_deleting(rule):
        return []
    in_turn = found.get("status") != "True" and is_turn(rule["metadata"]["uid"], now)
    return [] if validation.is_judged(rule) and not in_turn else [Due.RULE]


def target_due(target: Item, world: World) -> list[Due]:
    """A target whose nodes, or whose conditions, are others than its status says (MUT-22)."""
    if is_deleting(target):
        return []
    now = validation.gathered(target, world.pools, world.nodes.values())
    is_told = status(target).get("nodes") == now.nodes and not _differs(target, now.verdicts)
    return [] if is_told else [Due.TARGET]


def _differs(item: Item, verdicts: list[Verdict]) -> bool:
    """Whether a condition says something else, or of another spec."""
    known = [condition(item, verdict.kind) for verdict in verdicts]
    return any(
        (found.get("status"), found.get("message")) != (str(verdict.holds), verdict.message[:LONGEST_MESSAGE])
        or found.get("observedGeneration") != item["metadata"].get("generation")
        for found, verdict in zip(known, verdicts, strict=True)
    )


def run_due(run: Item, world: World, runs: Sequence[Item], now: datetime, patience: float) -> list[Due]:
    """What a run config waits for and nobody will say by himself: one event, or some of a run under way.

    What somebody undid does not wait for the run config to be judged, which may be refused for ever. `patience` are the
    seconds that a released node has for its upgrade.
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
    """Whether a person has changed something that nobody has looked at yet.

    A run that stopped is not resumed while it is not valid: until it is, what he wrote has been looked at.
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
    """What a run under way waits for: what somebody undid, and what brings it on, or of a halted one a Job's result."""
    at = run_record.stage(run, awaited.cleanups(world))
    drifted = drift(run, world)
    if validation.is_halted(run):
        return [*drifted, Due.JOB] if at in (Stage.JOBS, Stage.CLEANUP) and awaited.has_result(run, world) else drifted
    if drifted and at not in LOOKING:
        return drifted
    waits = {
        Stage.PAUSED: awaited.is_early,
        Stage.JOBS: awaited.job_runs,
        Stage.CLEANUP: awaited.job_runs,
        Stage.CLEARED: awaited.is_maintained,
        Stage.RELEASED: awaited.upgrades,
    }.get(at)
    return drifted if waits and waits(run, world, now, patience) else [*drifted, OF_STAGE[at]]


def drift(run: Item, world: World) -> list[Due]:
    """What has changed behind the run's back: what somebody undid, or how far the control plane is."""
    if undone := list(_undone(run, world)):
        return undone
    has_moved = validation.is_early(run) and _differs(run, [_control_plane(world)])
    return [Due.LABEL] if has_moved and not validation.is_halted(run) else []


def is_quarrel(run: Item, world: World, due: Due, now: datetime) -> bool:
    """Whether only that is to be done again of pools which was so seconds ago: the tick alone says that."""
    record = record_of(run)
    return due in AGAIN and all(
        are_so(record, claims.at_rest(record, word, world.pools, now)) for word, are_so in AGAIN[due]
    )


def _undone(run: Item, world: World) -> Iterator[Due]:
    """What somebody undid: a finalizer that is off, a pool that goes on, a label, a selector.

    All of it, since redoing one may be refused for ever. But selectors come behind labels: the canary's would have a
    node whose label is off upgraded at once.
    """
    record = record_of(run)
    if not current(record):
        return  # it is being given back
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
    """Whether each unreleased node is labelled; one that is gone, or another by now, is none of the run's."""
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
    """Whether it has to be known how its Jobs stand, and who maintains its node, to tell what it waits for."""
    return is_active(run) and not is_deleting(run)
