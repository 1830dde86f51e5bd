"""What makes a rule, a target and a run config valid, and whether there is an upgrade to be had (MUT-10..32). Pure."""

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
from kube.mutex.world import World, pools_of
from kube.paths import Object
from kube.words import counted, shortened

VALID_CONFIG, NODES_GATHERED = "ValidConfig", "NodeListGathered"
CONFIG_VALIDATED, CHECKED = "ConfigValidated", "UpgradeChecked"
READY, AVAILABLE, OUTSIDE = "UpgradeReady", "UpgradeAvailable", "WorkersOutsideTargets"
UPGRADE, WAITING, HELD = "NodeUpgrade", "NodeUpgradeWaiting", "NodeUpgradeHeld"
"""Condition of the node whose turn it is, and its reasons: it waits, or nobody can upgrade it (MUT-45)."""
LONGEST_REASON = 300
"""Characters that the condition of a run has of each rule's or target's."""
LONGEST_LABEL = 63
"""Bytes of a label's name behind the slash."""
MOST_NAMED = 10
"""Nodes that a message names."""


def is_judged(item: Item) -> bool:
    """Whether a rule or a target was judged as it is now, valid or not."""
    return bool(condition(item, VALID_CONFIG).get("observedGeneration") == item["metadata"].get("generation"))


def rule_problem(rule: Item) -> str:
    """Why a rule is no good, as far as that can be told without the API server; "" when nothing is seen."""
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
    """The condition of a rule."""
    return Verdict(VALID_CONFIG, not problem, "InvalidConfig" if problem else "ValidConfig", problem)


class Gathered(NamedTuple):
    """What is known of a target: its nodes, and its conditions."""

    nodes: list[str]
    verdicts: list[Verdict]


def gathered(target: Item, pools: Mapping[str, Object], nodes: Iterable[Mapping[str, Any]]) -> Gathered:
    """The nodes of all pools of a target, none when a pool is missing (MUT-20, MUT-21)."""
    names = pools_of(target)
    missing = [name for name in names if name not in pools]
    found = [] if missing else members_of_all((pools[name] for name in names), nodes)
    problem = f"spec.machineConfigPools: there is no MachineConfigPool {', '.join(missing)}" if missing else ""
    said = problem or counted(len(found), "node")
    reason = "MachineConfigPoolFetchFailed" if missing else "MachineConfigPoolFetchSucceeded"
    return Gathered(found, [Verdict(kind, not missing, reason, said) for kind in (VALID_CONFIG, NODES_GATHERED)])


def run_problems(run: Item, world: World) -> list[str]:
    """Why a run config cannot run, a sentence for each fault (step 1 of the document, MUT-3)."""
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
    """The rules that must be there: those that it names, and those that its run under way began with."""
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
    """The condition ConfigValidated."""
    problems = run_problems(run, world)
    return Verdict(CONFIG_VALIDATED, not problems, "FetchFailed" if problems else "FetchSucceeded", "; ".join(problems))


class Detection(NamedTuple):
    """Whether there is an upgrade that a run shall gate: its version, "" for none, and the conditions that say so."""

    version: str
    verdicts: list[Verdict]


def detection(run: Item, world: World, done: str = "") -> Detection:
    """Step 2 of the document (MUT-2, MUT-31, MUT-32); `done` is the version of the last run, which is finished.

    A run that pauses its pools early (C26) begins before the control plane is upgraded, and then waits for it.
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
    """Why there is no upgrade for a run to gate, "" for nothing."""
    if not older:
        return f"no worker is older than {version}"
    if not members:
        return "the targets have no node"
    return f"the run to {done} is finished" if done == version else ""


def _none(checked: Verdict, said: str) -> Detection:
    return Detection("", [checked, _not_ready(said), Verdict(AVAILABLE, False, "UpgradeUnavailable", said)])


def control_plane_verdict(wanted: versions.Wanted) -> Verdict:
    """Whether the control plane has the wanted version, so that nodes may follow it (MUT-32)."""
    if wanted.hindrance:
        return _not_ready(wanted.hindrance)
    return Verdict(READY, True, "UpgradeReady", f"the control plane is at {wanted.version}")


def _not_ready(said: str) -> Verdict:
    return Verdict(READY, False, "UpgradeNotReady", said)


def outside_verdict(members: Container[str], nodes: Mapping[str, Object]) -> Verdict:
    """Whether workers are in no target, which a run does not label, and which its canary takes (MUT-38).

    `members` are the uids of the run's nodes: one that registers again under a name of theirs is none of them.
    """
    workers = {name: node["metadata"]["uid"] for name, node in nodes.items() if versions.is_worker(node)}
    outside = sorted(name for name, uid in workers.items() if uid not in members)
    said = f"in no target, so not kept from the upgrade: {named(outside)}" if outside else ""
    return Verdict(OUTSIDE, bool(outside), "WorkersNotGated" if outside else "AllWorkersGated", said)


def is_halted(run: Item) -> bool:
    """Whether the run under way goes no further before a person acts: it has stopped, or its config is not valid."""
    return bool(record_of(run).get("failure")) or not is_valid(run)


def is_valid(run: Item) -> bool:
    """Whether its config was valid when it was last judged."""
    return condition(run, CONFIG_VALIDATED).get("status") == "True"


def is_early(run: Item) -> bool:
    """Whether its pools are paused, and the control plane was last seen on its way: before it (C26), or once more."""
    record = status(run).get("record") or {}
    is_paused = bool(record.get("pausedAt")) and not record.get("labelledAt")
    return is_paused and condition(run, READY).get("status") != "True"


def _version(world: World, name: str) -> str:
    return versions.version_of(world.nodes[name])


def _is_older(node: Mapping[str, Any], version: str) -> bool:
    known = versions.version_of(node)
    return versions.is_worker(node) and versions.is_version(known) and versions.is_less(known, version)


def named(names: list[str]) -> str:
    """These names, or the first ones and how many more there are."""
    more = len(names) - MOST_NAMED
    return ", ".join(names[:MOST_NAMED]) + (f" and {more} more" if more > 0 else "")
