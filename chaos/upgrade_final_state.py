"""Checks a finished upgrade by the mutex: one node at a time, each Job once, everything restored. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chaos.plan import Upgrade
from kube.mutex.jobs import CLEANUP, MAIN, NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.node_labels import run_of
from kube.mutex.objects import RULE_LABEL
from kube.mutex.versions import version_of
from kube.paths import Object

FINISHED = "Finished"


class Job(NamedTuple):
    """The identity of a Job: a run that is never resumed has at most one Job with each identity."""

    node: str
    rule: str
    kind: str


@dataclass(frozen=True)
class Seen:
    """Everything that was observed of an upgrade of these workers.

    Attributes:
        upgrade: The planned upgrade.
        workers: The names of the workers.
        version: The new version.
        together: Each set of nodes that were released and unfinished at the same time, if more than one.
        released, upgraded: Names of nodes in the order in which they became so.
        created: The Jobs that the API server has created.
        run, jobs, nodes: The objects at the end.
        pools_before, pools: Selector and pause of each pool, before and at the end.
        claims: The claim on each pool at the end.
    """

    upgrade: Upgrade
    workers: list[str]
    version: str
    together: list[frozenset[str]]
    released: list[str]
    upgraded: list[str]
    created: list[Job]
    run: Object
    jobs: list[Object]
    nodes: list[Object]
    pools_before: Mapping[str, Object]
    pools: Mapping[str, Object]
    claims: list[str]


def told(job: Object) -> Job:
    """Return a Job's identity, from its annotations and the prefix of its name."""
    noted, name = job["metadata"]["annotations"], job["metadata"]["name"]
    kind = CLEANUP if name.startswith(f"{CLEANUP}-") else MAIN
    return Job(noted[NODE_ANNOTATION], noted[RULE_ANNOTATION].partition("/")[2], kind)


def expected(upgrade: Upgrade, workers: Iterable[str]) -> set[Job]:
    """Return the Jobs of a complete run."""
    kinds = [(rule.name, kind) for rule in upgrade.rules for kind in (MAIN, *((CLEANUP,) * rule.has_cleanup))]
    return {Job(node, rule, kind) for node in workers for rule, kind in kinds}


def violations(seen: Seen) -> Iterator[str]:
    """Yield one line for each violated invariant."""
    yield from (f"{', '.join(sorted(nodes))} were released and unfinished at once" for nodes in seen.together)
    for job, count in Counter(seen.created).items():
        if count > 1:
            yield f"the {job.kind} Job of {job.rule} for {job.node} was created {count} times"
    for node, count in Counter(seen.released).items():
        if count > 1:
            yield f"{node} was released {count} times"
    for node in sorted(set(seen.upgraded) - set(seen.released)):
        yield f"{node} was upgraded, and never released"
    yield from _early(seen)


def _early(seen: Seen) -> Iterator[str]:
    """Yield the nodes that were released before a Job was complete, to the second, as the objects record it."""
    known = seen.run.get("status", {}).get("record", {}).get("nodes", {})
    for item in seen.jobs:
        job, done = told(item), item.get("status", {}).get("completionTime", "never")
        released = known.get(job.node, {}).get("releasedAt", "")
        if job.kind == MAIN and released and released < done:
            yield f"{job.node} was released at {released}, and its Job of {job.rule} was complete {done}"


def left(seen: Seen) -> Iterator[str]:
    """Yield one line for each problem of the final state."""
    status = seen.run.get("status", {})
    if status.get("step") != FINISHED:
        said = (status.get("record") or {}).get("failure", {}).get("message", "")
        yield f"the run is {status.get('step') or 'new'}: {status.get('progress', '')} {said}".rstrip()
    for job in sorted(expected(seen.upgrade, seen.workers) ^ set(seen.created)):
        which = "was never created" if job not in seen.created else "is of no rule and node"
        yield f"the {job.kind} Job of {job.rule} for {job.node} {which}"
    for name in sorted(set(seen.pools_before) | set(seen.pools)):
        if seen.pools_before.get(name) != seen.pools.get(name):
            yield f"pool {name} was {seen.pools_before.get(name)} and is {seen.pools.get(name)}"
    yield from (f"a pool is claimed by {claim}" for claim in seen.claims if claim)
    for node in seen.nodes:
        yield from _node_left(node, seen.version)


def _node_left(node: Object, version: str) -> Iterator[str]:
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    if version_of(node) != version:
        yield f"{name} is at {version_of(node)}"
    if run_of(node) or any(label.startswith(RULE_LABEL) for label in labels):
        yield f"{name} has labels of a run left"
