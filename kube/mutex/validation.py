"""Validates rules, targets and run configs, and detects available upgrades (MUT-10..32)."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any, NamedTuple

from kube.mutex import jobs, versions
from kube.mutex.objects import (
    RULE_LABEL,
    Item,
    Reference,
    Verdict,
    canary_name,
    condition,
    is_deleting,
    is_true,
    pauses_early,
    reference,
    references,
    rule_label,
    status,
)
from kube.mutex.pools import canary_problem, members_of_all
from kube.mutex.run_record import is_active, record_of, rules_of
from kube.mutex.run_snapshot import World, pools_of
from kube.paths import Object
from kube.text_limits import counted, shortened

VALID_CONFIG, NODES_GATHERED = "ValidConfig", "NodeListGathered"
CONFIG_VALIDATED, CHECKED = "ConfigValidated", "UpgradeChecked"
READY, AVAILABLE, OUTSIDE = "UpgradeReady", "UpgradeAvailable", "WorkersOutsideTargets"
UPGRADE, WAITING, HELD = "NodeUpgrade", "NodeUpgradeWaiting", "NodeUpgradeHeld"
"""Condition for the current node's upgrade, and its reasons: the node waits, or it cannot be upgraded now (MUT-45)."""
LONGEST_REASON = 300
"""Maximum length of each rule's or target's message in the condition of a run, in characters."""
LONGEST_LABEL = 63
"""Maximum length of a label's name after the slash, in bytes."""
MOST_NAMED = 10
"""Maximum number of nodes that a message names."""


def is_judged(item: Item) -> bool:
    """Return whether the current generation of a rule or target was validated, with any result."""
    return bool(condition(item, VALID_CONFIG).get("observedGeneration") == item["metadata"].get("generation"))


def rule_problem(rule: Item) -> str:
    """Return why a rule is invalid, "" if no problem is found; it checks only what does not need the API server."""
    name = rule_label(reference(rule)).removeprefix(RULE_LABEL)
    if len(name) > LONGEST_LABEL:
        return (
            f"metadata: name and namespace become the label name {name!r} of {len(name)} bytes, "
            f"and a label's name must be no more than {LONGEST_LABEL} bytes: choose a shorter name"
        )
    prefix = str(rule["spec"].get("jobName") or "")
    if not jobs.NAME.fullmatch(prefix):
        return (
            f"spec.jobName: {shortened(prefix, 100)!r} must be lower-case letters, digits and '-', such as check-disks"
        )
    return ""


def rule_verdict(problem: str) -> Verdict:
    """Return the condition of a rule."""
    return Verdict(VALID_CONFIG, not problem, "InvalidConfig" if problem else "ValidConfig", problem)


class Gathered(NamedTuple):
    """The nodes and conditions of a target."""

    nodes: list[str]
    verdicts: list[Verdict]


def gathered(target: Item, pools: Mapping[str, Object], nodes: Iterable[Mapping[str, Any]]) -> Gathered:
    """Return the nodes of all pools of a target, none if a pool is missing, and its conditions (MUT-20, MUT-21)."""
    names = pools_of(target)
    missing = [name for name in names if name not in pools]
    found = [] if missing else members_of_all((pools[name] for name in names), nodes)
    problem = f"spec.machineConfigPools: there is no MachineConfigPool {', '.join(missing)}" if missing else ""
    said = problem or counted(len(found), "node")
    reason = "MachineConfigPoolFetchFailed" if missing else "MachineConfigPoolFetchSucceeded"
    return Gathered(found, [Verdict(kind, not missing, reason, said) for kind in (VALID_CONFIG, NODES_GATHERED)])


def run_problems(run: Item, world: World) -> list[str]:
    """Return the problems of a run config, one sentence for each (step 1 of the specification, MUT-3)."""
    wanted = references(run, "mutexRules")
    problems = [] if wanted else ["mutexRules: none is named, so nothing would gate the nodes: name one"]
    if not references(run, "mutexTargets"):
        problems.append("mutexTargets: none is named, so there is no node to upgrade: name one")
    for field, known in (("mutexRules", world.rules), ("mutexTargets", world.targets)):
        problems += [_named_problem(field, each, known.get(each)) for each in references(run, field)]
    kept = [each for each in rules_needed(run) if each not in references(run, "mutexRules")]
    problems += [_named_problem("the rules of the run under way", each, world.rules.get(each)) for each in kept]
    name = canary_name(run)
    canary = world.pools.get(name)
    problems.append(canary_problem(name, canary, world.pool_names(run), world.nodes.values()))
    return [problem for problem in problems if problem]


def rules_needed(run: Item) -> list[Reference]:
    """Return the rules that must exist: those that the run config names, and those that its active run began with."""
    begun = rules_of(record_of(run)) if is_active(run) else []
    return list(dict.fromkeys([*references(run, "mutexRules"), *begun]))


def _named_problem(field: str, name: object, item: Object | None) -> str:
    if item is None or is_deleting(item):
        return f"{field}: there is no {name}"
    if not is_true(item, VALID_CONFIG):
        why = condition(item, VALID_CONFIG).get("message")
        judged = f"is not valid: {shortened(str(why), LONGEST_REASON)}" if why else "is not judged yet"
        return f"{field}: {name} {judged}"
    return ""


def config_verdict(run: Item, world: World) -> Verdict:
    """Return the condition ConfigValidated."""
    problems = run_problems(run, world)
    return Verdict(CONFIG_VALIDATED, not problems, "FetchFailed" if problems else "FetchSucceeded", "; ".join(problems))


class Detection(NamedTuple):
    """The version of an upgrade that a run must gate, "" for none, and the conditions that report it."""

    version: str
    verdicts: list[Verdict]


def detection(run: Item, world: World, done: str = "") -> Detection:
    """Detect whether an upgrade is available (step 2 of the specification; MUT-2, MUT-31, MUT-32).

    `done` is the version that the last run completed. A run with `pauseEarly` (C26) begins before the control plane is
    upgraded, and then waits for it.
    """
    wanted = versions.wanted(world.cluster_version)
    if not wanted.version:
        return _none(Verdict(CHECKED, False, "CheckFailed", wanted.hindrance), wanted.hindrance)
    members = world.members_of(run)
    nameless = [name for name in members if not versions.is_version(_version(world, name))]
    if nameless:
        label = versions.VERSION_LABEL
        said = f"no version such as 4.16.4 is in the label {label} of {named(nameless)}"
        return _none(Verdict(CHECKED, False, "CheckFailed", said), said)
    checked = Verdict(CHECKED, True, "CheckSucceeded", f"the cluster is wanted at {wanted.version}")
    if wanted.hindrance and not pauses_early(run):
        return _none(checked, wanted.hindrance)
    older = sorted(name for name, node in world.nodes.items() if _is_older(node, wanted.version))
    ready = control_plane_verdict(wanted)
    if said := _not_available(wanted.version, done, older, members):
        return Detection("", [checked, ready, Verdict(AVAILABLE, False, "UpgradeUnavailable", said)])
    said = f"older than {wanted.version}: {named(older)}"
    return Detection(wanted.version, [checked, ready, Verdict(AVAILABLE, True, "UpgradeAvailable", said)])


def _not_available(version: str, done: str, older: list[str], members: list[str]) -> str:
    """Return why a run has no upgrade to gate, "" if it has one."""
    if not older:
        return f"no worker is older than {version}"
    if not members:
        return "the targets have no node"
    return f"the run to {done} is finished" if done == version else ""


def _none(checked: Verdict, said: str) -> Detection:
    return Detection("", [checked, _not_ready(said), Verdict(AVAILABLE, False, "UpgradeUnavailable", said)])


def control_plane_verdict(wanted: versions.Wanted) -> Verdict:
    """Return the condition UpgradeReady: whether the control plane has the desired version (MUT-32).

    Nodes may follow only then.
    """
    if wanted.hindrance:
        return _not_ready(wanted.hindrance)
    return Verdict(READY, True, "UpgradeReady", f"the control plane is at {wanted.version}")


def _not_ready(said: str) -> Verdict:
    return Verdict(READY, False, "UpgradeNotReady", said)


def outside_verdict(members: Container[str], nodes: Mapping[str, Object]) -> Verdict:
    """Return the condition that reports workers in no target (MUT-38).

    A run does not label such workers, so its canary selects them. `members` are the uids of the run's nodes. A node
    that registers again under the name of a member is not a member.
    """
    workers = {name: node["metadata"]["uid"] for name, node in nodes.items() if versions.is_worker(node)}
    outside = sorted(name for name, uid in workers.items() if uid not in members)
    said = f"in no target, so not kept from the upgrade: {named(outside)}" if outside else ""
    return Verdict(OUTSIDE, bool(outside), "WorkersNotGated" if outside else "AllWorkersGated", said)


def is_halted(run: Item) -> bool:
    """Return whether the active run needs a user's action to continue: it has stopped, or its config is not valid."""
    return bool(record_of(run).get("failure")) or not is_valid(run)


def is_valid(run: Item) -> bool:
    """Return whether the config was valid when it was last validated."""
    return condition(run, CONFIG_VALIDATED).get("status") == "True"


def is_early(run: Item) -> bool:
    """Return whether the pools are paused, no node is labelled yet, and the control plane was last seen upgrading.

    That happens if the run paused its pools early (C26), or if another version was requested since.
    """
    record = status(run).get("record") or {}
    is_paused = bool(record.get("pausedAt")) and not record.get("labelledAt")
    return is_paused and condition(run, READY).get("status") != "True"


def _version(world: World, name: str) -> str:
    return versions.version_of(world.nodes[name])


def _is_older(node: Mapping[str, Any], version: str) -> bool:
    known = versions.version_of(node)
    return versions.is_worker(node) and versions.is_version(known) and versions.is_less(known, version)


def named(names: list[str]) -> str:
    """Return the names as text: all of them, or the first ones and the number of the others."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
