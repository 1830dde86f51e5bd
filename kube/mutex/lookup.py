"""Reads the objects that a run depends on, concurrently; a kind that the cluster does not serve has no objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kube.client.api import Api, absent_ok
from kube.client.concurrent_requests import together
from kube.client.paging import listed, pages
from kube.maintenance.lookup import of_holder
from kube.maintenance.objects import requester
from kube.mutex import jobs
from kube.mutex.maintainers import Maintainer
from kube.mutex.objects import RULE, RUN, RUN_LABEL, TARGET, Reference, collection, path_of, reference
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS, VERSION_NAMES, labels_of, name_of
from kube.mutex.run_record import current, record_of
from kube.mutex.run_snapshot import World
from kube.nodes import NODES, labelled_for
from kube.paths import Object
from kube.trimming import trimmed_node

CACHED = "0"
"""List version that accepts the API server's cache; changes that it misses arrive as events or with the tick."""


async def rules(api: Api, version: str | None = CACHED) -> list[Object]:
    """List all rules."""
    return await listed(api, collection(RULE), version=version)


async def targets(api: Api, version: str | None = CACHED) -> list[Object]:
    """List all targets."""
    return await listed(api, collection(TARGET), version=version)


async def runs(api: Api, version: str | None = CACHED) -> list[Object]:
    """List all run configs."""
    return await listed(api, collection(RUN), version=version)


async def nodes(api: Api, version: str | None = CACHED) -> dict[str, Object]:
    """Return all nodes by name, without their status."""
    found = (await pages(api, NODES, version=version, keep=trimmed_node)).items
    return {name_of(node): node for node in found}


async def labelled_nodes(api: Api, run_id: str = "", version: str | None = CACHED) -> list[Object]:
    """List the nodes that carry the label of this run, or of any run if `run_id` is empty."""
    label = f"{RUN_LABEL}={run_id}" if run_id else RUN_LABEL
    return (await pages(api, NODES, labels=label, version=version, keep=trimmed_node)).items


async def pools(api: Api, version: str | None = CACHED) -> dict[str, Object]:
    """Return all pools by name."""
    return {name_of(pool): pool for pool in await listed(api, POOLS, version=version)}


async def cluster_version(api: Api) -> Object | None:
    """Return the only ClusterVersion, under either of its possible names, or None if there is none (C23)."""
    for name in VERSION_NAMES:
        found = await absent_ok(api.get(f"{CLUSTER_VERSIONS}/{name}"))
        if found is not None:
            return found
    return None


async def world(api: Api, under_way: Sequence[Object] = ()) -> World:
    """Read all objects that runs may depend on, from the API server's cache.

    If runs are active (`under_way`), this includes the Jobs and the maintainers of the runs' current nodes.
    """
    judged, aimed, found, known, version, running = await together(
        rules(api),
        targets(api),
        pools(api),
        nodes(api),
        cluster_version(api),
        listed(api, "/apis/batch/v1/jobs", labels=RUN_LABEL, version=CACHED) if under_way else _nothing(),
    )
    by_name = _by(running) if under_way else None
    maintained = await _maintainers(api, {current(record_of(run)) for run in under_way}, known)
    return World(_by(judged), _by(aimed), found, known, version, by_name, maintained)


async def _nothing() -> list[Object]:
    return []


def _by(items: Iterable[Object]) -> dict[Reference, Object]:
    return {reference(item): item for item in items}


async def _maintainers(api: Api, names: Iterable[str], nodes: Mapping[str, Object]) -> dict[str, Maintainer]:
    maintained = [nodes[name] for name in names if name in nodes and labelled_for(nodes[name])]
    found = await together(*(maintainer(api, node, CACHED) for node in maintained))
    return {name_of(node): one for node, one in zip(maintained, found, strict=True) if one is not None}


async def maintainer(api: Api, node: Object, version: str | None = None) -> Maintainer | None:
    """Return the maintainer of a node according to its label; None without a label, or if the object is gone."""
    uid = labelled_for(node)
    if not uid:
        return None
    for item in await of_holder(api, name_of(node), uid, version):
        if item["metadata"]["uid"] == uid:
            return Maintainer(name_of(item), requester(item), labels_of(item).get(RUN_LABEL, ""))
    return None


async def named_rules(api: Api, wanted: Iterable[Reference]) -> dict[Reference, Object]:
    """Return the current state of these rules, without those that do not exist."""
    return await _named(api, RULE, wanted)


async def named_targets(api: Api, wanted: Iterable[Reference]) -> dict[Reference, Object]:
    """Return the current state of these targets, without those that do not exist."""
    return await _named(api, TARGET, wanted)


async def _named(api: Api, kind: str, wanted: Iterable[Reference]) -> dict[Reference, Object]:
    names = list(wanted)
    found = await together(*(absent_ok(api.get(path_of(kind, *name))) for name in names))
    return {name: item for name, item in zip(names, found, strict=True) if item is not None}


async def job(api: Api, namespace: str, name: str) -> Object | None:
    """Return the current state of a Job, or None if it does not exist."""
    return await absent_ok(api.get(jobs.job_path(namespace, name)))
