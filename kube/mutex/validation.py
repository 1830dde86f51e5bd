"""Validates MutexRules, MutexTargets and MutexRunConfigs, and detects available upgrades (MUT-10 to MUT-32)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from kube.mutex import jobs, versions
from kube.mutex.nodes import Maintainer
from kube.mutex.objects import (
    RULE_LABEL_PREFIX,
    Condition,
    Reference,
    Resource,
    build_rule_label,
    get_canary_name,
    get_condition,
    get_reference,
    get_status,
    is_condition_true,
    is_deleting,
    list_references,
    pauses_early,
)
from kube.mutex.pools import find_canary_problem, list_members_of_pools
from kube.mutex.run_record import get_record, is_active, list_recorded_rules
from kube.paths import Object
from kube.text_limits import format_count, format_first_names, truncate

VALID_CONFIG_CONDITION, NODES_GATHERED_CONDITION = "ValidConfig", "NodeListGathered"
CONFIG_VALIDATED_CONDITION, CHECKED_CONDITION = "ConfigValidated", "UpgradeChecked"
READY_CONDITION, AVAILABLE_CONDITION, OUTSIDE_CONDITION = "UpgradeReady", "UpgradeAvailable", "WorkersOutsideTargets"
NODE_UPGRADE_CONDITION, WAITING_REASON, HELD_REASON = "NodeUpgrade", "NodeUpgradeWaiting", "NodeUpgradeHeld"
"""Condition for the current node's upgrade, and its reasons: the node waits, or must not be upgraded now (MUT-45)."""
MAX_PROBLEM_CHARACTERS = 300
"""Maximum length, in characters, of one rule's or target's message within a MutexRunConfig's condition."""
MAX_LABEL_NAME_BYTES = 63
"""Maximum length, in bytes, of the part of a label key after the slash."""
MAX_NAMED_NODES = 10
"""Maximum number of nodes that a message names."""


@dataclass(frozen=True)
class RunSnapshot:
    """The objects that runs depend on, as they were last read.

    `jobs` contains only Jobs with the run label; it is empty if Jobs were not read. `maintainers` maps a node's name to
    the NodeMaintenance that owns the node, and contains only the nodes that were queried.
    """

    rules: Mapping[Reference, Object] = field(default_factory=dict)
    targets: Mapping[Reference, Object] = field(default_factory=dict)
    pools: Mapping[str, Object] = field(default_factory=dict)
    nodes: Mapping[str, Object] = field(default_factory=dict)
    cluster_version: Object | None = None
    jobs: Mapping[Reference, Object] = field(default_factory=dict)
    maintainers: Mapping[str, Maintainer] = field(default_factory=dict)

    def list_pool_names(self, run: Resource) -> list[str]:
        """Return the names of the pools in the run's targets, existing or not, in order and without duplicates."""
        references = list_references(run, "mutexTargets")
        targets = [self.targets[reference] for reference in references if reference in self.targets]
        return list(dict.fromkeys(name for target in targets for name in get_pool_names(target)))

    def list_members(self, run: Resource) -> list[str]:
        """Return the names of the nodes in the run's targets, pool after pool, and sorted within each pool."""
        pools = [self.pools[name] for name in self.list_pool_names(run) if name in self.pools]
        return list_members_of_pools(pools, self.nodes.values())


def get_pool_names(target: Resource) -> list[str]:
    """Return the names of the MachineConfigPools that a target lists."""
    return [str(name) for name in target["spec"].get("machineConfigPools") or []]


def is_current_generation_validated(obj: Resource) -> bool:
    """Return whether the current generation of a rule or target was validated, with any result."""
    return bool(
        get_condition(obj, VALID_CONFIG_CONDITION).get("observedGeneration") == obj["metadata"].get("generation")
    )


def find_rule_problem(rule: Resource) -> str:
    """Return why a MutexRule is invalid; "" if it passes all checks that need no API request."""
    name = build_rule_label(get_reference(rule)).removeprefix(RULE_LABEL_PREFIX)
    if len(name) > MAX_LABEL_NAME_BYTES:
        return (
            f"metadata: name and namespace become the label name {name!r} of {len(name)} bytes, "
            f"and a label's name must be no more than {MAX_LABEL_NAME_BYTES} bytes: choose a shorter name"
        )
    prefix = str(rule["spec"].get("jobName") or "")
    if not jobs.NAME_PATTERN.fullmatch(prefix):
        return (
            f"spec.jobName: {truncate(prefix, 100)!r} must consist of lower case alphanumeric characters or '-', "
            "and must start and end with an alphanumeric character, such as check-disks"
        )
    return ""


def build_rule_condition(problem: str) -> Condition:
    """Build a rule's condition ValidConfig, which is True if `problem` is empty."""
    return Condition(VALID_CONFIG_CONDITION, not problem, "InvalidConfig" if problem else "ValidConfig", problem)


class TargetState(NamedTuple):
    """The nodes and the conditions of a MutexTarget."""

    node_names: list[str]
    conditions: list[Condition]


def compute_target_state(
    target: Resource, pools: Mapping[str, Object], nodes: Iterable[Mapping[str, Any]]
) -> TargetState:
    """Return a target's conditions and the nodes in its pools; no nodes if a pool is missing (MUT-20, MUT-21)."""
    names = get_pool_names(target)
    missing = [name for name in names if name not in pools]
    member_names = [] if missing else list_members_of_pools((pools[name] for name in names), nodes)
    problem = f"spec.machineConfigPools: MachineConfigPool {', '.join(missing)} not found" if missing else ""
    message = problem or format_count(len(member_names), "node")
    reason = "MachineConfigPoolFetchFailed" if missing else "MachineConfigPoolFetchSucceeded"
    return TargetState(
        member_names,
        [Condition(kind, not missing, reason, message) for kind in (VALID_CONFIG_CONDITION, NODES_GATHERED_CONDITION)],
    )


def find_run_problems(run: Resource, snapshot: RunSnapshot) -> list[str]:
    """Return the problems of a MutexRunConfig, one sentence each (step 1 of the specification, MUT-3)."""
    problems = []
    if not list_references(run, "mutexRules"):
        problems.append("spec.mutexRules: the list is empty, so no Job would run before a node's upgrade: add a rule")
    if not list_references(run, "mutexTargets"):
        problems.append("spec.mutexTargets: the list is empty, so the run has no nodes to upgrade: add a target")
    for spec_field, items in (("mutexRules", snapshot.rules), ("mutexTargets", snapshot.targets)):
        problems += [
            _find_reference_problem(f"spec.{spec_field}", reference, items.get(reference))
            for reference in list_references(run, spec_field)
        ]
    recorded_rules = [rule for rule in list_needed_rules(run) if rule not in list_references(run, "mutexRules")]
    problems += [
        _find_reference_problem("rules of the active run", rule, snapshot.rules.get(rule)) for rule in recorded_rules
    ]
    name = get_canary_name(run)
    canary = snapshot.pools.get(name)
    problems.append(find_canary_problem(name, canary, snapshot.list_pool_names(run), snapshot.nodes.values()))
    return [problem for problem in problems if problem]


def list_needed_rules(run: Resource) -> list[Reference]:
    """Return the rules that must exist: those in the MutexRunConfig's spec, and those of its active run."""
    recorded_rules = list_recorded_rules(get_record(run)) if is_active(run) else []
    return list(dict.fromkeys([*list_references(run, "mutexRules"), *recorded_rules]))


def _find_reference_problem(field: str, reference: Reference, referenced_object: Object | None) -> str:
    if referenced_object is None or is_deleting(referenced_object):
        return f"{field}: {reference} not found"
    if not is_condition_true(referenced_object, VALID_CONFIG_CONDITION):
        cause = get_condition(referenced_object, VALID_CONFIG_CONDITION).get("message")
        problem = f"is invalid: {truncate(str(cause), MAX_PROBLEM_CHARACTERS)}" if cause else "is not validated yet"
        return f"{field}: {reference} {problem}"
    return ""


def build_config_condition(run: Resource, snapshot: RunSnapshot) -> Condition:
    """Build a MutexRunConfig's condition ConfigValidated."""
    problems = find_run_problems(run, snapshot)
    return Condition(
        CONFIG_VALIDATED_CONDITION, not problems, "FetchFailed" if problems else "FetchSucceeded", "; ".join(problems)
    )


class UpgradeDetection(NamedTuple):
    """The version of an upgrade that requires a run, "" if there is none, and the conditions that report it."""

    version: str
    conditions: list[Condition]


def find_upgrade(run: Resource, snapshot: RunSnapshot, finished_version: str = "") -> UpgradeDetection:
    """Detect whether an upgrade is available (step 2 of the specification; MUT-2, MUT-31, MUT-32).

    `finished_version` is the version to which the last run upgraded its nodes. A run with `pauseEarly` (C26) begins
    before the control plane is upgraded, and then waits for that upgrade.
    """
    desired = versions.parse_desired_version(snapshot.cluster_version)
    if not desired.version:
        return _build_unavailable_detection(
            Condition(CHECKED_CONDITION, False, "CheckFailed", desired.blocker), desired.blocker
        )
    members = snapshot.list_members(run)
    unversioned = [
        name for name in members if not versions.is_valid_version(versions.get_version(snapshot.nodes[name]))
    ]
    if unversioned:
        label = versions.VERSION_LABEL
        message = f"the label {label} has no version such as 4.16.4 on: {format_names(unversioned)}"
        return _build_unavailable_detection(Condition(CHECKED_CONDITION, False, "CheckFailed", message), message)
    checked = Condition(CHECKED_CONDITION, True, "CheckSucceeded", f"the desired version is {desired.version}")
    if desired.blocker and not pauses_early(run):
        return _build_unavailable_detection(checked, desired.blocker)
    older = sorted(name for name, node in snapshot.nodes.items() if _is_older_worker(node, desired.version))
    ready = build_control_plane_condition(desired)
    if message := _find_unavailable_reason(desired.version, finished_version, older, members):
        return UpgradeDetection(
            "", [checked, ready, Condition(AVAILABLE_CONDITION, False, "UpgradeUnavailable", message)]
        )
    message = f"workers older than {desired.version}: {format_names(older)}"
    return UpgradeDetection(
        desired.version, [checked, ready, Condition(AVAILABLE_CONDITION, True, "UpgradeAvailable", message)]
    )


def _find_unavailable_reason(version: str, finished_version: str, older_workers: list[str], members: list[str]) -> str:
    """Return why no upgrade requires a run; "" if one does."""
    if finished_version == version:
        return format_finished_run(version)
    if not older_workers:
        return f"all workers have version {version} or newer"
    return "" if members else "the targets contain no nodes"


def format_finished_run(version: str) -> str:
    """Return the message that a run to this version is finished, and what starts the next run."""
    return (
        f"the run to {version} is finished; the next version starts another run, unless you delete the MutexRunConfig"
    )


def _build_unavailable_detection(checked_condition: Condition, message: str) -> UpgradeDetection:
    return UpgradeDetection(
        "",
        [
            checked_condition,
            _build_not_ready_condition(message),
            Condition(AVAILABLE_CONDITION, False, "UpgradeUnavailable", message),
        ],
    )


def build_control_plane_condition(desired: versions.DesiredVersion) -> Condition:
    """Build the condition UpgradeReady, which is True if the control plane has the desired version (MUT-32).

    Nodes may be upgraded only after the control plane.
    """
    if desired.blocker:
        return _build_not_ready_condition(desired.blocker)
    return Condition(READY_CONDITION, True, "UpgradeReady", f"the control plane is at {desired.version}")


def _build_not_ready_condition(message: str) -> Condition:
    return Condition(READY_CONDITION, False, "UpgradeNotReady", message)


def build_outside_workers_condition(member_uids: Container[str], nodes: Mapping[str, Object]) -> Condition:
    """Build the condition that reports worker nodes outside all targets (MUT-38).

    A run does not label such workers, so its canary selects them. `member_uids` are the uids of the run's nodes. A
    replacement that registers under a member's name is not a member.
    """
    workers = {name: node["metadata"]["uid"] for name, node in nodes.items() if versions.is_worker(node)}
    outside = sorted(name for name, uid in workers.items() if uid not in member_uids)
    message = (
        f"workers in no target, whose upgrade the run does not control: {format_names(outside)}" if outside else ""
    )
    return Condition(OUTSIDE_CONDITION, bool(outside), "WorkersNotGated" if outside else "AllWorkersGated", message)


def is_halted(run: Resource) -> bool:
    """Return whether the active run waits for a user, because a failure halted it or its config is invalid."""
    return bool(get_record(run).get("failure")) or not is_config_valid(run)


def is_config_valid(run: Resource) -> bool:
    """Return whether the latest validation of the MutexRunConfig succeeded."""
    return get_condition(run, CONFIG_VALIDATED_CONDITION).get("status") == "True"


def awaits_control_plane(run: Resource) -> bool:
    """Return whether the run waits for the control plane: its pools are paused, and no node is labelled yet.

    This happens if the run paused its pools early (C26), or if a different version was requested after the pause.
    """
    record = get_status(run).get("record") or {}
    is_paused = bool(record.get("pausedAt")) and not record.get("labelledAt")
    return is_paused and get_condition(run, READY_CONDITION).get("status") != "True"


def _is_older_worker(node: Mapping[str, Any], version: str) -> bool:
    node_version = versions.get_version(node)
    return (
        versions.is_worker(node)
        and versions.is_valid_version(node_version)
        and versions.is_older_version(node_version, version)
    )


def format_names(names: list[str]) -> str:
    """Join at most `MAX_NAMED_NODES` names with commas, followed by the number of further names, if any."""
    return format_first_names(names, MAX_NAMED_NODES)
