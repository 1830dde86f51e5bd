"""Reads what a run stands on, side by side. A kind that is not served has no objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kube.door.api import Api, absent_ok
from kube.door.concurrent_requests import together
from kube.door.paging import listed, pages
from kube.maintenance.lookup import of_holder
from kube.maintenance.objects import requester
from kube.mutex import jobs
from kube.mutex.maintainers import Maintainer
from kube.mutex.objects import RULE, RUN, RUN_LABEL, TARGET, Reference, collection, path_of, reference
from kube.mutex.pools import CLUSTER_VERSIONS, POOLS, VERSION_NAMES, labels_of, name_of
from kube.mutex.run_record import current, record_of
from kube.mutex.world import World
from kube.nodes import NODES, labelled_for
from kube.paths import Object
from kube.trimming import trimmed_node

CACHED = "0"
"""Version of a list that may be as old as the server's cache: what it misses comes as an event, or with the tick."""


async def rules(api: Api, version: str | None = CACHED) -> list[Object]:
    """All rules."""
    return await listed(api, collection(RULE), version=version)


async def targets(api: Api, version: str | None = CACHED) -> list[Object]:
    """All targets."""
    return await listed(api, collection(TARGET), version=version)


async def runs(api: Api, version: str | None = CACHED) -> list[Object]:
    """All run configs."""
    return await listed(api, collection(RUN), version=version)


async def nodes(api: Api, version: str | None = CACHED) -> dict[str, Object]:
    """All nodes by name, without their status."""
    found = (await pages(api, NODES, version=version, keep=trimmed_node)).items
    return {name_of(node): node for node in found}


async def labelled_nodes(api: Api, run_id: str = "", version: str | None = CACHED) -> list[Object]:
    """The nodes that carry the label of this run, or of any."""
    label = f"{RUN_LABEL}={run_id}" if run_id else RUN_LABEL
    return (await pages(api, NODES, labels=label, version=version, keep=trimmed_node)).items


async def pools(api: Api, version: str | None = CACHED) -> dict[str, Object]:
    """All pools by name."""
    return {name_of(pool): pool for pool in await listed(api, POOLS, version=version)}


async def cluster_version(api: Api) -> Object | None:
    """The one ClusterVersion, whichever name it has; None where there is none (C23)."""
    for name in VERSION_NAMES:
        found = await absent_ok(api.get(f"{CLUSTER_VERSIONS}/{name}"))
        if found is not None:
            return found
    return None


async def world(api: Api, under_way: Sequence[Object] = ()) -> World:
    """All that any run could stand on, as the server's cache has it.

    With runs that are under way also the Jobs, and who maintains the nodes whose turn it is.
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
    """Who maintains a node, as its label says; None when nobody does, or when that one is gone."""
    uid = labelled_for(node)
    if not uid:
        return None
    for item in await of_holder(api, name_of(node), uid, version):
        if item["metadata"]["uid"] == uid:
            return Maintainer(name_of(item), requester(item), labels_of(item).get(RUN_LABEL, ""))
    return None


async def named_rules(api: Api, wanted: Iterable[Reference]) -> dict[Reference, Object]:
    """These rules as they are now, those that are there."""
    return await _named(api, RULE, wanted)


async def named_targets(api: Api, wanted: Iterable[Reference]) -> dict[Reference, Object]:
    """These targets as they are now, those that are there."""
    return await _named(api, TARGET, wanted)


async def _named(api: Api, kind: str, wanted: Iterable[Reference]) -> dict[Reference, Object]:
    names = list(wanted)
    found = await together(*(absent_ok(api.get(path_of(kind, *name))) for name in names))
    return {name: item for name, item in zip(names, found, strict=True) if item is not None}


async def job(api: Api, namespace: str, name: str) -> Object | None:
    """A Job as it is now."""
    return await absent_ok(api.get(jobs.job_path(namespace, name)))
