"""Forecasts how a node's drain affects each of its virtual machines, before and during the drain (OSV-2, OSV-3)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import NamedTuple

from kube.paths import Object
from kube.pods import get_uid
from kube.text_limits import format_count, format_first_names, truncate
from kube.virtualization.kubevirt_evacuation import TAINT_FIELD, get_drain_taint_key, get_eviction_strategy
from kube.virtualization.vmis import (
    EXTERNAL,
    LIVE_MIGRATE,
    LIVE_MIGRATE_IF_POSSIBLE,
    VM_KIND,
    VMI_KIND,
    Resource,
    get_key,
    get_unmigratable_reason,
    get_vmi_key,
    has_failed,
    is_finished,
    is_migration_of_vmi,
)

MOVES, RESTARTS, STOPS, BLOCKS = "moves", "restarts", "stops", "blocks"
"""Effects of a drain on a virtual machine.

- `MOVES`: The virtual machine migrates to another node without interruption.
- `RESTARTS`: The virtual machine is shut down and started on another node.
- `STOPS`: The virtual machine is shut down and not started again.
- `BLOCKS`: The virtual machine blocks the drain.
"""
RESTARTING_STRATEGIES = ("Always", "Running", "RerunOnFailure")
"""Run strategies with which KubeVirt restarts a virtual machine; `Running` is the specification's term (C15)."""
KNOWN_STRATEGIES = (*RESTARTING_STRATEGIES, "Manual", "Halted", "Once", "WaitAsReceiver")
"""KubeVirt's run strategies; a virtual machine with any other value stays shut down (OSV-3)."""
MAX_REASON_CHARACTERS = 256
"""Maximum length, in characters, of a quoted run strategy, and of the reason why a VMI cannot be migrated."""
MAX_NAMED_VMS = 3
"""Maximum number of virtual machines that a warning names."""


class DrainForecast(NamedTuple):
    """The effect of a drain on a virtual machine, and a sentence that explains it to users."""

    effect: str
    reason: str


class VmiSnapshot(NamedTuple):
    """The virtual machines on a node, and the objects that determine how a drain affects them.

    Attributes:
        vmis: The VMIs on the node.
        vms: The VirtualMachines that own these VMIs, by namespace and name.
        migrations: All migrations in the VMIs' namespaces.
        kubevirt: The KubeVirt object if KubeVirt itself migrates and protects VMIs; None if this project does. KubeVirt
            supports more eviction strategies (DRN-10).
    """

    vmis: Collection[Resource] = ()
    vms: Mapping[tuple[str, str], Resource] = {}
    migrations: Collection[Resource] = ()
    kubevirt: Resource | None = None


def get_run_strategy(vm: Resource | None) -> str:
    """Return the VM's run strategy, from the newer or the older field (C15); "" for a VMI without a VirtualMachine."""
    if vm is None:
        return ""
    spec = vm.get("spec") or {}
    return str(spec.get("runStrategy") or ("Always" if spec.get("running") else "Halted"))


def explain_unknown_strategy(vm: Resource, node: str) -> str:
    """Return why the VirtualMachine stays shut down after the node's drain; "" if its run strategy is known."""
    strategy = get_run_strategy(vm)
    if strategy in KNOWN_STRATEGIES:
        return ""
    return (
        f'node "{node}" is being drained: spec.runStrategy is "{truncate(strategy, MAX_REASON_CHARACTERS)}", '
        "which is not a run strategy, so nothing starts the virtual machine again after its shutdown: "
        "set it to Always, RerunOnFailure or Manual"
    )


def forecast_drain(vmi: Resource, vm: Resource | None, kubevirt: Resource | None = None) -> DrainForecast:
    """Forecast how a drain affects this VMI.

    `vm` is the VirtualMachine that owns the VMI, if any. `kubevirt` has the same meaning as in `VmiSnapshot`.
    """
    strategy, unmigratable_reason = get_eviction_strategy(vmi, kubevirt), get_unmigratable_reason(vmi)
    if kubevirt and strategy == EXTERNAL:
        return DrainForecast(BLOCKS, f"until the controller for evictionStrategy {EXTERNAL} has moved it")
    if not unmigratable_reason and (strategy == LIVE_MIGRATE or (kubevirt and strategy == LIVE_MIGRATE_IF_POSSIBLE)):
        taint_note = f", once the node has the taint {get_drain_taint_key(kubevirt)}" if kubevirt else ""
        return DrainForecast(MOVES, f"to another node, without interruption{taint_note}")
    if strategy == LIVE_MIGRATE:
        return DrainForecast(BLOCKS, "until it can be migrated, or is shut down")
    if vm is None:
        return DrainForecast(STOPS, "shut down, and no VirtualMachine starts it again")
    if get_run_strategy(vm) in RESTARTING_STRATEGIES:
        return DrainForecast(RESTARTS, "shut down, and started on another node")
    return DrainForecast(STOPS, "shut down, and not started again")


def get_launched_vmi_key(pod: Resource) -> tuple[str, str] | None:
    """Return the namespace and name of the VMI that runs in this virt-launcher pod; None for any other pod."""
    return _get_owner_key(pod, VMI_KIND)


def map_launcher_pods(pods: Iterable[Resource], vmi_reports: Iterable[Object]) -> dict[str, tuple[str, str]]:
    """Return the namespace and name of the VMI by pod uid, for the virt-launcher pods of the reported VMIs."""
    reported_keys = {(report["namespace"], report["name"]) for report in vmi_reports}
    key_by_uid = {get_uid(pod): get_launched_vmi_key(pod) for pod in pods}
    return {uid: key for uid, key in key_by_uid.items() if key in reported_keys}


def get_owner_vm_key(vmi: Resource) -> tuple[str, str] | None:
    """Return the namespace and name of the VirtualMachine that owns the VMI, None if there is none."""
    return _get_owner_key(vmi, VM_KIND)


def _get_owner_key(obj: Resource, kind: str) -> tuple[str, str] | None:
    owners: Iterable[Resource] = obj["metadata"].get("ownerReferences") or []
    name = next((owner["name"] for owner in owners if owner.get("kind") == kind), None)
    return (obj["metadata"]["namespace"], name) if name else None


def build_vmi_reports(snapshot: VmiSnapshot) -> list[Object]:
    """Build a report about each VMI on a node, sorted by the VMIs' namespaces and names."""
    latest: dict[tuple[str, str], Resource] = {}
    vmis_by_key = {get_key(vmi): vmi for vmi in snapshot.vmis}
    for migration in sorted(snapshot.migrations, key=_build_age_key):
        vmi_key = get_vmi_key(migration)
        if vmi_key in vmis_by_key and is_migration_of_vmi(vmis_by_key[vmi_key], migration):
            latest[vmi_key] = migration
    reported = {vmi_key: item for vmi_key, item in latest.items() if not is_finished(item) or has_failed(item)}
    return [_build_vmi_report(vmi, snapshot, reported.get(vmi_key)) for vmi_key, vmi in sorted(vmis_by_key.items())]


def _build_age_key(migration: Resource) -> tuple[bool, str]:
    """Return a sort key that puts finished migrations first, and then sorts by creation time."""
    return not is_finished(migration), str(migration["metadata"].get("creationTimestamp") or "")


def _build_vmi_report(vmi: Resource, snapshot: VmiSnapshot, migration: Resource | None) -> Object:
    vm_key, unmigratable_reason = get_owner_vm_key(vmi), get_unmigratable_reason(vmi)
    vm = snapshot.vms.get(vm_key) if vm_key else None
    forecast = forecast_drain(vmi, vm, snapshot.kubevirt)
    return {
        **dict(zip(("namespace", "name"), get_key(vmi), strict=True)),
        "phase": str((vmi.get("status") or {}).get("phase") or "Pending"),
        "evictionStrategy": get_eviction_strategy(vmi, snapshot.kubevirt),
        "runStrategy": get_run_strategy(vm),
        "migratable": not unmigratable_reason,
        "unable": truncate(unmigratable_reason, MAX_REASON_CHARACTERS),
        "drain": forecast.effect,
        "why": forecast.reason,
        "migration": _build_migration_report(migration, vmi) if migration else None,
    }


def _build_migration_report(migration: Resource, vmi: Resource) -> Object:
    """Build the part of a VMI's report about its unfinished or failed migration."""
    status, state = migration.get("status") or {}, (vmi.get("status") or {}).get("migrationState") or {}
    is_this = state.get("migrationUid") in (None, migration["metadata"]["uid"])
    target = state.get("targetNode") if is_this else None  # the VMI's state may describe another migration
    target = target or (status.get("migrationState") or {}).get("targetNode")
    return {"name": migration["metadata"]["name"], "target": target or "", "phase": status.get("phase") or "Pending"}


def build_warnings(vmi_reports: Iterable[Object]) -> list[str]:
    """Return warnings about the virtual machines that the drain would restart or stop, or that would block it."""
    reports_by_effect: defaultdict[str, list[Object]] = defaultdict(list)
    for report in vmi_reports:
        reports_by_effect[report["drain"]].append(report)
    templates = {
        BLOCKS: "{} will block the drain: {}",
        STOPS: "{} will be shut down and not started again: {}",
        RESTARTS: "{} will be shut down and started on another node: {}",
    }
    return [
        template.format(*_format_names(reports_by_effect[effect], with_reasons=effect != RESTARTS))
        for effect, template in templates.items()
        if effect in reports_by_effect
    ]


def describe_migrating_vms(vmi_reports: Iterable[Object]) -> str:
    """Describe in one line the virtual machines that would migrate; return "" if there are none."""
    moving = [report for report in vmi_reports if report["drain"] == MOVES]
    return "{} will move to another node without interruption: {}".format(*_format_names(moving)) if moving else ""


def explain_taint_mismatch(kubevirt: Resource | None, vmi_reports: Iterable[Object], taint_key: str) -> str:
    """Return why the maintenance's taint may not make virtual machines migrate; "" if it does."""
    if kubevirt is None or get_drain_taint_key(kubevirt) == taint_key or not describe_migrating_vms(vmi_reports):
        return ""
    return (
        f"KubeVirt migrates virtual machines from nodes with the taint {get_drain_taint_key(kubevirt)}, "
        f"but this maintenance sets {taint_key}: "
        f"first set {TAINT_FIELD} of KubeVirt {'/'.join(get_key(kubevirt))} to {taint_key}, "
        "unless the API server calls virt-api for evictions, which also starts the migration"
    )


def _format_names(vmi_reports: Collection[Object], *, with_reasons: bool = False) -> tuple[str, str]:
    """Return the number of virtual machines and the first names, with their reasons if `with_reasons` is true."""
    names = [
        f"{report['namespace']}/{report['name']}{_format_reason(report) if with_reasons else ''}"
        for report in vmi_reports
    ]
    return format_count(len(names), "virtual machine"), format_first_names(names, MAX_NAMED_VMS)


def _format_reason(vmi_report: Object) -> str:
    if vmi_report["drain"] == BLOCKS:
        return f" ({vmi_report['why'] if vmi_report['evictionStrategy'] == EXTERNAL else vmi_report['unable']})"
    return f" (runStrategy {vmi_report['runStrategy']})" if vmi_report["runStrategy"] else " (no VirtualMachine)"
