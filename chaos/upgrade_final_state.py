"""Checks a finished upgrade run: nodes one at a time, each Job once, pools and nodes restored. Pure functions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from chaos.plan import Upgrade
from kube.mutex.jobs import CLEANUP, MAIN, NODE_ANNOTATION, RULE_ANNOTATION
from kube.mutex.nodes import get_run_id
from kube.mutex.objects import RULE_LABEL_PREFIX
from kube.mutex.versions import get_version
from kube.paths import Object

FINISHED = "Finished"


class JobKey(NamedTuple):
    """The identity of a Job; a run that is never resumed creates at most one Job with each identity."""

    node: str
    rule: str
    kind: str


@dataclass(frozen=True)
class UpgradeSnapshot:
    """The observations of an upgrade run, and its objects at the end.

    Attributes:
        upgrade: The planned upgrade.
        workers: The names of the workers.
        version: The new version.
        concurrent_nodes: Each set of two or more nodes that were released and unfinished at the same time.
        released_nodes, upgraded_nodes: The names of the nodes, in the order of their release or upgrade.
        created_jobs: The Jobs that were created, from the audit log.
        run, jobs, nodes: The objects at the end.
        pools_before, pools: Each pool's selector and `paused`, before the upgrade and at the end.
        pool_claims: The uid of the run that claims each pool at the end, or "".
    """

    upgrade: Upgrade
    workers: list[str]
    version: str
    concurrent_nodes: list[frozenset[str]]
    released_nodes: list[str]
    upgraded_nodes: list[str]
    created_jobs: list[JobKey]
    run: Object
    jobs: list[Object]
    nodes: list[Object]
    pools_before: Mapping[str, Object]
    pools: Mapping[str, Object]
    pool_claims: list[str]


def build_job_key(job: Object) -> JobKey:
    """Return a Job's identity from its annotations and its name's prefix."""
    annotations, name = job["metadata"]["annotations"], job["metadata"]["name"]
    kind = CLEANUP if name.startswith(f"{CLEANUP}-") else MAIN
    return JobKey(annotations[NODE_ANNOTATION], annotations[RULE_ANNOTATION].partition("/")[2], kind)


def list_expected_jobs(upgrade: Upgrade, workers: Iterable[str]) -> set[JobKey]:
    """Return the identities of all Jobs that a complete run creates."""
    kinds = [(rule.name, kind) for rule in upgrade.rules for kind in (MAIN, *((CLEANUP,) * rule.has_cleanup))]
    return {JobKey(node, rule, kind) for node in workers for rule, kind in kinds}


def list_violations(snapshot: UpgradeSnapshot) -> Iterator[str]:
    """Yield one line for each violated invariant."""
    yield from (
        f"nodes {', '.join(sorted(nodes))} were released and unfinished at the same time"
        for nodes in snapshot.concurrent_nodes
    )
    for job, count in Counter(snapshot.created_jobs).items():
        if count > 1:
            yield f"the {job.kind} Job of rule {job.rule} for node {job.node} was created {count} times"
    for node, count in Counter(snapshot.released_nodes).items():
        if count > 1:
            yield f"node {node} was released {count} times"
    for node in sorted(set(snapshot.upgraded_nodes) - set(snapshot.released_nodes)):
        yield f"node {node} was upgraded without being released"
    yield from _list_early_releases(snapshot)


def _list_early_releases(snapshot: UpgradeSnapshot) -> Iterator[str]:
    """Yield a violation for each node that was released before one of its Jobs completed; timestamps are in seconds."""
    recorded_nodes = snapshot.run.get("status", {}).get("record", {}).get("nodes", {})
    for job_object in snapshot.jobs:
        job, completed_at = build_job_key(job_object), job_object.get("status", {}).get("completionTime", "never")
        released_at = recorded_nodes.get(job.node, {}).get("releasedAt", "")
        if job.kind == MAIN and released_at and released_at < completed_at:
            release = f"node {job.node} was released at {released_at}"
            yield f"{release}, before its Job of rule {job.rule} completed ({completed_at})"


def list_problems(snapshot: UpgradeSnapshot) -> Iterator[str]:
    """Yield one line for each problem in the final state."""
    status = snapshot.run.get("status", {})
    if status.get("step") != FINISHED:
        failure = (status.get("record") or {}).get("failure", {}).get("message", "")
        yield f"the run is in step {status.get('step') or 'new'}: {status.get('progress', '')} {failure}".rstrip()
    for job in sorted(list_expected_jobs(snapshot.upgrade, snapshot.workers) ^ set(snapshot.created_jobs)):
        problem = "was never created" if job not in snapshot.created_jobs else "belongs to another rule or node"
        yield f"the {job.kind} Job of rule {job.rule} for node {job.node} {problem}"
    for name in sorted(set(snapshot.pools_before) | set(snapshot.pools)):
        before, after = snapshot.pools_before.get(name), snapshot.pools.get(name)
        if before != after:
            yield f"pool {name} was not restored: {after} instead of {before}"
    yield from (f"a pool is still claimed by run {claim}" for claim in snapshot.pool_claims if claim)
    for node in snapshot.nodes:
        yield from _list_node_problems(node, snapshot.version)


def _list_node_problems(node: Object, version: str) -> Iterator[str]:
    name, labels = node["metadata"]["name"], node["metadata"].get("labels") or {}
    if get_version(node) != version:
        yield f"node {name} has version {get_version(node)} instead of {version}"
    if get_run_id(node) or any(label.startswith(RULE_LABEL_PREFIX) for label in labels):
        yield f"node {name} still has labels of a run"
