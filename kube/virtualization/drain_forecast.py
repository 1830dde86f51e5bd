"""Forecasts what a drain of a node does with each virtual machine, before and during the drain (OSV-2, OSV-3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kube.paths import Object
from kube.virtualization.kubevirt_evacuation import TAINT_FIELD, strategy_of, taint_key
from kube.virtualization.vmis import (
    EXTERNAL,
    INSTANCE,
    LIVE_MIGRATE,
    LIVE_MIGRATE_IF_POSSIBLE,
    MACHINE,
    Item,
    has_failed,
    is_finished,
    is_moved_by,
    key,
    unable,
    vmi_of,
)
from kube.text_limits import counted, shortened

MOVES, RESTARTS, STOPS, BLOCKS = "moves", "restarts", "stops", "blocks"
"""Effects of a drain on a virtual machine.

- `MOVES`: It migrates to another node without interruption.
- `RESTARTS`: It is shut down and started on another node.
- `STOPS`: It is shut down and not started again.
- `BLOCKS`: It blocks the drain.
"""
RESTARTED = ("Always", "Running", "RerunOnFailure")
"""Run strategies with which KubeVirt starts a virtual machine again; `Running` is the specification's word (C15)."""
LONGEST = 256
"""Maximum length of a condition's message, in characters."""
NAMED = 3
"""Maximum number of virtual machines that a warning names."""


class Outlook(NamedTuple):
    """The effect of a drain on a virtual machine, and a sentence that explains it to users."""

    drain: str
    why: str


class Hosted(NamedTuple):
    """The virtual machines of a node.

    Attributes:
        instances: The VMIs on the node.
        machines: The VirtualMachines that own them, by namespace and name.
        migrations: All migrations in the VMIs' namespaces.
        kubevirt: The KubeVirt object if KubeVirt itself migrates and protects VMIs, None if we do. KubeVirt supports
            more strategies than we do (DRN-10).
    """

    instances: Collection[Item] = ()
    machines: Mapping[tuple[str, str], Item] = {}
    migrations: Collection[Item] = ()
    kubevirt: Item | None = None


def run_strategy(machine: Item | None) -> str:
    """Return the run strategy, from the newer or the older field (C15); "" for a VMI without a VirtualMachine."""
    if machine is None:
        return ""
    spec = machine.get("spec") or {}
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def outlook(vmi: Item, machine: Item | None, kubevirt: Item | None = None) -> Outlook:
    """Forecast what a drain does with this VMI.

    `machine` is the VirtualMachine that owns the VMI, if any; `kubevirt` as in `Hosted`.
    """
    strategy, why = strategy_of(vmi, kubevirt), unable(vmi)
    if kubevirt and strategy == EXTERNAL:
        return Outlook(BLOCKS, f"until the controller has moved it that evictionStrategy {EXTERNAL} leaves it to")
    if not why and (strategy == LIVE_MIGRATE or (kubevirt and strategy == LIVE_MIGRATE_IF_POSSIBLE)):
        told = f", at the taint {taint_key(kubevirt)}" if kubevirt else ""
        return Outlook(MOVES, f"to another node, without a break{told}")
    if strategy == LIVE_MIGRATE:
        return Outlook(BLOCKS, "until it can be migrated, or is shut down")
    if machine is None:
        return Outlook(STOPS, "shut down, and no VirtualMachine starts it again")
    if run_strategy(machine) in RESTARTED:
        return Outlook(RESTARTS, "shut down, and started on another node")
    return Outlook(STOPS, "shut down, and not started again")


def launcher_of(pod: Item) -> tuple[str, str] | None:
    """Return the namespace and name of the VMI whose virt-launcher pod this is; None for any other pod."""
    owners: Iterable[Item] = pod["metadata"].get("ownerReferences") or []
    name = next((owner["name"] for owner in owners if owner.get("kind") == INSTANCE), None)
    return (pod["metadata"]["namespace"], name) if name else None


def owner_of(vmi: Item) -> tuple[str, str] | None:
    """Return the namespace and name of the VirtualMachine that owns the VMI, or None."""
    owners: Iterable[Item] = vmi["metadata"].get("ownerReferences") or []
    name = next((owner["name"] for owner in owners if owner.get("kind") == MACHINE), None)
    return (vmi["metadata"]["namespace"], name) if name else None


def reports(hosted: Hosted) -> list[Object]:
    """Build a report for each VMI of a node, sorted by namespace and name."""
    known = {key(vmi): vmi for vmi in hosted.instances}
    moved = ((known.get(vmi_of(item)), item) for item in sorted(hosted.migrations, key=_age))
    latest = {key(vmi): item for vmi, item in moved if vmi and is_moved_by(vmi, item)}
    told = {one: item for one, item in latest.items() if not is_finished(item) or has_failed(item)}
    return [_report(vmi, hosted, told.get(one)) for one, vmi in sorted(known.items())]


def _age(migration: Item) -> tuple[bool, str]:
    """Return a sort key that orders migrations by age, with the finished ones before all others."""
    return not is_finished(migration), str(migration["metadata"].get("creationTimestamp") or "")


def _report(vmi: Item, hosted: Hosted, migration: Item | None) -> Object:
    owner, why = owner_of(vmi), unable(vmi)
    machine = hosted.machines.get(owner) if owner else None
    found = outlook(vmi, machine, hosted.kubevirt)
    return {
        **dict(zip(("namespace", "name"), key(vmi), strict=True)),
        "phase": str((vmi.get("status") or {}).get("phase") or "Pending"),
        "evictionStrategy": strategy_of(vmi, hosted.kubevirt),
        "runStrategy": run_strategy(machine),
        "migratable": not why,
        "unable": shortened(why, LONGEST),
        "drain": found.drain,
        "why": found.why,
        "migration": _latest(migration, vmi) if migration else None,
    }


def _latest(migration: Item, vmi: Item) -> Object:
    """Describe the migration in flight, or the last one if it failed."""
    status, state = migration.get("status") or {}, (vmi.get("status") or {}).get("migrationState") or {}
    is_this = state.get("migrationUid") in (None, migration["metadata"]["uid"])
    target = state.get("targetNode") if is_this else None  # else the VMI's state is that of another migration
    target = target or (status.get("migrationState") or {}).get("targetNode")
    return {"name": migration["metadata"]["name"], "target": target or "", "phase": status.get("phase") or "Pending"}


def warnings(found: Iterable[Object]) -> list[str]:
    """Return the warnings about the virtual machines of a node before it is drained; those that migrate need none."""
    by_drain: dict[str, list[Object]] = {}
    for report in found:
        by_drain.setdefault(report["drain"], []).append(report)
    lost = [(BLOCKS, "{} will hold the drain up: {}"), (STOPS, "{} will be shut down and not started again: {}")]
    lines = [words.format(*_named(by_drain[drain], because=True)) for drain, words in lost if drain in by_drain]
    if RESTARTS in by_drain:
        lines.append("{} will be shut down and started on another node: {}".format(*_named(by_drain[RESTARTS])))
    return lines


def moves(found: Iterable[Object]) -> str:
    """Return the line about the virtual machines that migrate, "" for none."""
    moving = [report for report in found if report["drain"] == MOVES]
    return "{} will move to another node without a break: {}".format(*_named(moving)) if moving else ""


def unheard(kubevirt: Item | None, found: Iterable[Object], taint: str) -> str:
    """Return why virtual machines may not migrate at the taint that a maintenance sets, "" if they do."""
    if kubevirt is None or taint_key(kubevirt) == taint or not moves(found):
        return ""
    return (
        f"KubeVirt moves virtual machines at the taint {taint_key(kubevirt)}, and this maintenance sets {taint}: "
        f"set {TAINT_FIELD} of KubeVirt {'/'.join(key(kubevirt))} to {taint} before, "
        "unless its virt-api is asked about evictions, by which it hears as well"
    )


def _named(found: Collection[Object], *, because: bool = False) -> tuple[str, str]:
    """Return the number of virtual machines and the first names, each with its reason if `because` is set."""
    names = [f"{each['namespace']}/{each['name']}{_reason(each) if because else ''}" for each in found]
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return counted(len(names), "virtual machine"), ", ".join(names[:NAMED]) + more


def _reason(report: Object) -> str:
    if report["drain"] == BLOCKS:
        return f" ({report['why'] if report['evictionStrategy'] == EXTERNAL else report['unable']})"
    return f" (runStrategy {report['runStrategy']})" if report["runStrategy"] else " (of no VirtualMachine)"
