"""Reads the objects that a run depends on, concurrently; a kind that the cluster does not serve has no objects."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from kube.client.api import Api, gather_all, get_or_none
from kube.client.paging import list_all, list_or_empty
from kube.maintenance.lookup import list_maintenances_of_holder_group
from kube.maintenance.objects import get_requester
from kube.mutex import jobs
from kube.mutex.nodes import Maintainer
from kube.mutex.objects import (
    RULE_KIND,
    RUN_KIND,
    RUN_LABEL,
    TARGET_KIND,
    Reference,
    build_collection_path,
    build_path,
    get_reference,
)
from kube.mutex.pools import CLUSTER_VERSION_NAMES, CLUSTER_VERSIONS_PATH, POOLS_PATH, get_labels, get_name
from kube.mutex.run_record import get_current_node, get_record
from kube.mutex.validation import RunSnapshot
from kube.nodes import NODES_PATH, get_maintenance_uid
from kube.paths import Object
from kube.trimming import trim_node

CACHED_VERSION = "0"
"""`resourceVersion` that lists objects from the API server's cache; `resync-runs` handles newer changes."""


async def list_rules(api: Api, resource_version: str | None = CACHED_VERSION) -> list[Object]:
    """Return all MutexRules."""
    return await list_or_empty(api, build_collection_path(RULE_KIND), resource_version=resource_version)


async def list_targets(api: Api, resource_version: str | None = CACHED_VERSION) -> list[Object]:
    """Return all MutexTargets."""
    return await list_or_empty(api, build_collection_path(TARGET_KIND), resource_version=resource_version)


async def list_runs(api: Api, resource_version: str | None = CACHED_VERSION) -> list[Object]:
    """Return all MutexRunConfigs."""
    return await list_or_empty(api, build_collection_path(RUN_KIND), resource_version=resource_version)


async def list_nodes_by_name(api: Api, resource_version: str | None = CACHED_VERSION) -> dict[str, Object]:
    """Return all nodes by name, without their status."""
    nodes = (await list_all(api, NODES_PATH, resource_version=resource_version, transform=trim_node)).items
    return {get_name(node): node for node in nodes}


async def list_labelled_nodes(
    api: Api, run_id: str = "", resource_version: str | None = CACHED_VERSION
) -> list[Object]:
    """Return the nodes with the label of this run, or of any run if `run_id` is empty."""
    label = f"{RUN_LABEL}={run_id}" if run_id else RUN_LABEL
    return (
        await list_all(api, NODES_PATH, label_selector=label, resource_version=resource_version, transform=trim_node)
    ).items


async def list_pools_by_name(api: Api, resource_version: str | None = CACHED_VERSION) -> dict[str, Object]:
    """Return all MachineConfigPools by name."""
    return {get_name(pool): pool for pool in await list_or_empty(api, POOLS_PATH, resource_version=resource_version)}


async def find_cluster_version(api: Api) -> Object | None:
    """Return the ClusterVersion, which has one of two possible names; None if there is none (C23)."""
    for name in CLUSTER_VERSION_NAMES:
        cluster_version = await get_or_none(api.get(f"{CLUSTER_VERSIONS_PATH}/{name}"))
        if cluster_version is not None:
            return cluster_version
    return None


async def read_snapshot(
    api: Api, rules: Iterable[Object], targets: Iterable[Object], active_runs: Sequence[Object] = ()
) -> RunSnapshot:
    """Read the objects that runs depend on from the API server's cache; `rules` and `targets` were already read.

    If there are `active_runs`, the snapshot includes the Jobs, and the NodeMaintenances of the runs' current nodes.
    """
    pools_by_name, nodes_by_name, version = await gather_all(
        list_pools_by_name(api), list_nodes_by_name(api), find_cluster_version(api)
    )
    snapshot = RunSnapshot(
        _index_by_reference(rules), _index_by_reference(targets), pools_by_name, nodes_by_name, version
    )
    if not active_runs:
        return snapshot
    current_nodes = {get_current_node(get_record(run)) for run in active_runs}
    job_items, maintainers = await gather_all(
        list_or_empty(api, "/apis/batch/v1/jobs", label_selector=RUN_LABEL, resource_version=CACHED_VERSION),
        _find_maintainers_by_node(api, current_nodes, nodes_by_name),
    )
    return replace(snapshot, jobs=_index_by_reference(job_items), maintainers=maintainers)


def _index_by_reference(objects: Iterable[Object]) -> dict[Reference, Object]:
    return {get_reference(obj): obj for obj in objects}


async def _find_maintainers_by_node(
    api: Api, node_names: Iterable[str], nodes: Mapping[str, Object]
) -> dict[str, Maintainer]:
    maintained = [nodes[name] for name in node_names if name in nodes and get_maintenance_uid(nodes[name])]
    maintainers = await gather_all(*(find_maintainer(api, node, CACHED_VERSION) for node in maintained))
    return {
        get_name(node): maintainer
        for node, maintainer in zip(maintained, maintainers, strict=True)
        if maintainer is not None
    }


async def find_maintainer(api: Api, node: Object, resource_version: str | None = None) -> Maintainer | None:
    """Return the NodeMaintenance whose uid is in the node's label; None if there is no label or no such object."""
    uid = get_maintenance_uid(node)
    if not uid:
        return None
    for maintenance in await list_maintenances_of_holder_group(api, get_name(node), uid, resource_version):
        if maintenance["metadata"]["uid"] == uid:
            run_id = get_labels(maintenance).get(RUN_LABEL, "")
            return Maintainer(get_name(maintenance), get_requester(maintenance), run_id)
    return None


async def read_rules(api: Api, references: Iterable[Reference]) -> dict[Reference, Object]:
    """Read the MutexRules with these references; return those that exist, by reference."""
    return await _read_by_reference(api, RULE_KIND, references)


async def read_targets(api: Api, references: Iterable[Reference]) -> dict[Reference, Object]:
    """Read the MutexTargets with these references; return those that exist, by reference."""
    return await _read_by_reference(api, TARGET_KIND, references)


async def _read_by_reference(api: Api, kind: str, references: Iterable[Reference]) -> dict[Reference, Object]:
    reference_list = list(references)
    items = await gather_all(*(get_or_none(api.get(build_path(kind, *reference))) for reference in reference_list))
    return {reference: item for reference, item in zip(reference_list, items, strict=True) if item is not None}


async def get_job_or_none(api: Api, namespace: str, name: str) -> Object | None:
    """Return the Job, None if it does not exist."""
    return await get_or_none(api.get(jobs.build_job_path(namespace, name)))
