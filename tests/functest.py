"""`make cluster-functest NODE=name`: runs one maintenance, from start to end, on a node of the current cluster.

The cluster is that of the current kubeconfig. The test drains the named node and no other, and restores it even if the
test fails. `python -m tests.functest NODE` exits with status 0 if all checks passed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing, closing

from console.operations.descriptions import held_up
from kube.backoff import pauses
from kube.client.api import absent_ok
from kube.client.api_errors import ApiError, NotFound, Unavailable
from kube.client.list_watch import follow
from kube.client.sync_client import Cluster
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.nodes import NODES, in_maintenance, is_cordoned, node_path
from kube.paths import Object

SECONDS = 600.0
"""Time limit of the drain; the pods of a real node need their grace periods."""
BEGUN_SECONDS = 60.0
"""Seconds after which the test prints what to check if the maintenance has not begun."""
GIVEN_BACK_SECONDS = 60.0
NOT_BEGUN = (
    "no function has begun it: `kubectl get pods -n node-maintenance` shows whether they run, their logs what fails;"
    " 403 there is a right that is missing"
)
LISTED = 10
"""Maximum number of nodes that an error message lists."""


class FunctestError(Exception):
    """Raised if the test cannot run, or if the product fails it."""


def main(name: str) -> None:
    """Run the test on the node with that name. Raises `FunctestError`."""
    try:
        with closing(Cluster()) as cluster:
            before = _fit(cluster, name)
            wanted = _maintenance(name)
            try:
                _drain(cluster, cluster.create(MEDIK8S.path, wanted))
            finally:  # also if the response to the creation was lost
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
    """Return the node if the test can run on it. Raises `FunctestError` otherwise."""
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
    """Return the NodeMaintenances at `path`; only the tested API group must be served."""
    try:
        items: list[Object] = cluster.list(path)["items"]
    except NotFound:
        if path == MEDIK8S.path:
            raise FunctestError("the product is not installed on this cluster: `make deploy` does it") from None
        return []
    return items


def _drain(cluster: Cluster, maintenance: Object) -> None:
    """Wait until the maintenance has ended; check that it succeeded and that the node is cordoned and tainted."""
    shown = ""

    def begun(item: Object | None) -> bool:
        nonlocal shown
        line = state(item or {})
        if line != shown:
            shown = line
            print(f"  {line}", flush=True)
        return item is None or bool(m.phase(item))

    def ended(item: Object | None) -> bool:
        return begun(item) and (item is None or m.phase(item) in (m.SUCCEEDED, m.FAILED))

    path, name = m.path(maintenance), m.node_name(maintenance)
    print(f"{maintenance['metadata']['name']}: node {name} goes out of service", flush=True)
    deadline = time.monotonic() + SECONDS
    if not _await(cluster, path, begun, BEGUN_SECONDS)[0]:
        print(f"  still new after {BEGUN_SECONDS:.0f} s: {NOT_BEGUN}", flush=True)
    in_time, latest = _await(cluster, path, ended, deadline - time.monotonic())
    item = latest or {}
    _claim(in_time, late(item))
    status = item.get("status") or {}
    _claim(status.get("phase") == m.SUCCEEDED, f"the phase is {status.get('phase')}: {status.get('lastError')}")
    _claim(status.get("drainProgress") == 100 and not status.get("pendingPods"), f"Succeeded with pods left: {status}")
    node = cluster.get(node_path(name))
    _claim(
        in_maintenance(node, MEDIK8S.drain_taint),
        f"Succeeded, and the node is not cordoned and tainted: {node['spec']}",
    )


def state(item: Object) -> str:
    """Return the phase, the progress and the last error of a maintenance in one line."""
    status = item.get("status") or {}
    line = f"{status.get('phase') or 'new'}, {status.get('drainProgress') or 0} %, {status.get('lastError') or ''}"
    return line.rstrip(", ")


def late(item: Object) -> str:
    """Return an error message for a maintenance that did not end in time, with the reason if it is known."""
    why = held_up(item.get("status") or {}) or ("" if m.phase(item) else NOT_BEGUN)
    return f"{m.phase(item) or 'new'} after {SECONDS:.0f} s{': ' if why else ''}{why}"


def _delete(cluster: Cluster, path: str) -> Object | None:
    """Delete the object, and retry until the API server accepts the request.

    Return the object as it was before, or None if that is unknown.
    """
    deadline = time.monotonic() + GIVEN_BACK_SECONDS
    for pause in pauses(0.5, 5.0):
        try:
            found = cluster.run(absent_ok(cluster.api.get(path)))
            if found:
                cluster.delete(path, uid=found["metadata"]["uid"])
            return found
        except NotFound:
            return None  # another client deleted it first
        except Unavailable:
            if time.monotonic() > deadline:
                return None
            time.sleep(pause)
    return None


def _give_back(cluster: Cluster, maintenance: Object, before: Object) -> None:
    """Delete the maintenance, and check that the node is restored to its state before the test."""
    name = m.node_name(maintenance)
    found = _delete(cluster, m.path(maintenance))
    gone, _ = _await(cluster, m.path(maintenance), lambda item: item is None, GIVEN_BACK_SECONDS)
    whose = maintenance["metadata"]["name"]
    _claim(
        gone, f"{whose} is there {GIVEN_BACK_SECONDS:.0f} s after its deletion, and node {name} may be out of service"
    )
    node = cluster.get(node_path(name))
    same = node["spec"].get("taints") == before["spec"].get("taints") and not is_cordoned(node)
    _claim(same, f"the node was not given back as it was: {node['spec']}")
    print(farewell(name, found), flush=True)


def farewell(node: str, found: Object | None) -> str:
    """Return the final line about the node; `found` is its maintenance at the deletion."""
    return (
        f"node {node} {'is back in service' if found is None or m.is_cordoned(found) else 'was never out of service'}"
    )


def _claim(holds: bool, otherwise: str) -> None:
    if not holds:
        raise FunctestError(otherwise)


def _await(
    cluster: Cluster, path: str, holds: Callable[[Object | None], bool], seconds: float
) -> tuple[bool, Object | None]:
    """Wait for the object at `path` to satisfy `holds`; return whether it did in time, and its last state.

    The last state is None if the object does not exist.
    """
    collection, _, name = path.rpartition("/")
    known: Object | None = None

    async def watch() -> None:
        nonlocal known
        async with aclosing(follow(cluster.api, collection, fields=f"metadata.name={name}")) as changes:
            async for change in changes:
                if change.kind != "SYNCED":
                    known = None if change.kind == "DELETED" else change.object
                if holds(known):
                    return

    try:
        cluster.run(asyncio.wait_for(watch(), seconds))
    except asyncio.TimeoutError:
        return False, known
    return True, known


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # a cancelled job restores the node, too
    try:
        main("".join(sys.argv[1:2]))
    except FunctestError as error:
        raise SystemExit(f"error: {error}") from None
