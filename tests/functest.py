"""`make cluster-functest NODE=name`: one maintenance on a node of the current kubeconfig's cluster, from start to end.

It takes the node out of service, so it touches none but the one that it is told, and gives that one back whatever
happens. `python -m tests.functest NODE`; exit status 0 when all was as it should be.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing, closing

from kube.backoff import pauses
from kube.door.api import absent_ok
from kube.door.api_errors import ApiError, NotFound, Unavailable
from kube.door.list_watch import follow
from kube.door.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.nodes import NODES, in_maintenance, is_cordoned, node_path
from kube.paths import Object

SECONDS = 600.0
"""A real node's pods take their grace periods to end."""
GIVEN_BACK_SECONDS = 60.0
LISTED = 10
"""So many nodes are named to choose from."""


class FunctestError(Exception):
    """The test cannot be made, or the product did not do as it should."""


def main(name: str) -> None:
    """Run it on the node of that name. Raises `FunctestError`."""
    try:
        with closing(Cluster()) as cluster:
            before = _fit(cluster, name)
            wanted = _maintenance(name)
            try:
                _drain(cluster, cluster.create(MEDIK8S.path, wanted))
            finally:  # also when the answer to the creation was lost
                _give_back(cluster, wanted, before)
    except ApiError as error:
        raise FunctestError(error.message) from None


def _maintenance(node: str) -> Object:
    return {
        "apiVersion": MEDIK8S.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": f"functest-{uuid.uuid4().hex[:8]}"},
        "spec": {"nodeName": node, "reason": "make cluster-functest"},
    }


def _fit(cluster: Cluster, name: str) -> Object:
    """Give the node, if the test may be made on it."""
    nodes = {node["metadata"]["name"]: node for node in cluster.list(NODES)["items"]}
    if name not in nodes:
        why = f"there is no node {name}" if name else "no node was named, and none is touched unasked"
        raise FunctestError(f"{why}: make cluster-functest NODE=..., one of {', '.join(sorted(nodes)[:LISTED])}")
    maintained = {m.node_name(item) for group in GROUPS.values() for item in _items(cluster, group.path)}
    if is_cordoned(nodes[name]) or name in maintained:
        raise FunctestError(f"node {name} is out of service already: give it back first")
    node: Object = nodes[name]
    return node


def _items(cluster: Cluster, path: str) -> list[Object]:
    """What is there of a kind; only the group that is tested has to be served."""
    try:
        items: list[Object] = cluster.list(path)["items"]
    except NotFound:
        if path == MEDIK8S.path:
            raise FunctestError("the product is not installed on this cluster: `make deploy` does it") from None
        return []
    return items


def _drain(cluster: Cluster, maintenance: Object) -> None:
    """Follow the maintenance until it has Succeeded, and hold its claims against the node."""
    shown = ""

    def ended(item: Object | None) -> bool:
        nonlocal shown
        status = (item or {}).get("status") or {}
        line = f"{status.get('phase') or 'new'}, {status.get('drainProgress') or 0} %, {status.get('lastError') or ''}"
        if line != shown:
            shown = line
            print(f"  {line.rstrip(', ')}", flush=True)
        return item is None or m.phase(item) in (m.SUCCEEDED, m.FAILED)

    name = m.node_name(maintenance)
    print(f"{maintenance['metadata']['name']}: node {name} goes out of service", flush=True)
    item = _await(cluster, m.path(maintenance), ended, SECONDS) or {}
    status = item.get("status") or {}
    _claim(status.get("phase") == m.SUCCEEDED, f"the phase is {status.get('phase')}: {status.get('lastError')}")
    _claim(status.get("drainProgress") == 100 and not status.get("pendingPods"), f"Succeeded with pods left: {status}")
    node = cluster.get(node_path(name))
    _claim(
        in_maintenance(node, MEDIK8S.drain_taint),
        f"Succeeded, and the node is not cordoned and tainted: {node['spec']}",
    )


def _delete(cluster: Cluster, path: str) -> None:
    """Ask for its deletion until the API server has heard that."""
    deadline = time.monotonic() + GIVEN_BACK_SECONDS
    for pause in pauses(0.5, 5.0):
        try:
            found = cluster.run(absent_ok(cluster.api.get(path)))
            if found:
                cluster.delete(path, uid=found["metadata"]["uid"])
            return
        except NotFound:
            return  # somebody else was faster
        except Unavailable:
            if time.monotonic() > deadline:
                return
            time.sleep(pause)


def _give_back(cluster: Cluster, maintenance: Object, before: Object) -> None:
    """Delete the maintenance and see that the node is as it was."""
    name = m.node_name(maintenance)
    _delete(cluster, m.path(maintenance))
    _await(cluster, m.path(maintenance), lambda item: item is None, GIVEN_BACK_SECONDS)
    node = cluster.get(node_path(name))
    same = node["spec"].get("taints") == before["spec"].get("taints") and not is_cordoned(node)
    _claim(same, f"the node was not given back as it was: {node['spec']}")
    print(f"node {name} is back in service", flush=True)


def _claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FunctestError(otherwise)


def _await(cluster: Cluster, path: str, holds: Callable[[Object | None], bool], seconds: float) -> Object | None:
    """Give the first state of the object at `path` that holds; None is for an object that is gone."""
    collection, _, name = path.rpartition("/")

    async def watch() -> Object | None:
        known: Object | None = None
        async with aclosing(follow(cluster.api, collection, fields=f"metadata.name={name}")) as changes:
            async for change in changes:
                if change.kind != "SYNCED":
                    known = None if change.kind == "DELETED" else change.object
                if holds(known):
                    return known
        return known

    try:
        return cluster.run(asyncio.wait_for(watch(), seconds))
    except asyncio.TimeoutError:
        raise FunctestError(f"{name} is not as it should be after {seconds:.0f} s") from None


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # a cancelled job gives the node back, too
    try:
        main("".join(sys.argv[1:2]))
    except FunctestError as error:
        raise SystemExit(f"error: {error}") from None
