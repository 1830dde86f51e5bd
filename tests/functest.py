"""`make cluster-functest` runs one complete maintenance of a node in the current cluster.

The current kubeconfig context selects the cluster. The test waits until the install is ready. It then drains the node
in the variable NODE, or else the ready worker with the fewest pods. It restores the node even if the test fails.
`python -m tests.functest [NODE]` exits with status 0 if all checks passed.
"""

from __future__ import annotations

import asyncio
import signal
import sys
import time
import uuid
from collections import Counter
from collections.abc import Callable
from contextlib import aclosing, closing

from console.operations.descriptions import summarize_blockers
from console.operations.install_check import check_install, list_install_warnings
from console.operations.install_problems import format_problems
from kube.backoff import generate_delays
from kube.client.api import get_or_none
from kube.client.api_errors import ApiError, NotFound, Unavailable
from kube.client.list_watch import follow
from kube.client.sync_client import SyncClient
from kube.maintenance import objects as m
from kube.maintenance.groups import GROUPS, MEDIK8S
from kube.maintenance.quorum import is_control_plane, is_node_ready
from kube.nodes import NODES_PATH, build_node_path, is_cordoned, is_in_maintenance
from kube.paths import DEFAULT_NAMESPACE, PODS_PATH, Object
from kube.text_limits import format_count

INSTALL_TIMEOUT_SECONDS = 300.0
"""Maximum seconds until the install is ready; the admission webhook needs up to three minutes after a first install."""
INSTALL_CHECK_SECONDS = 2.0
"""Seconds between two checks of the install."""
DRAIN_TIMEOUT_SECONDS = 600.0
"""Maximum seconds of the drain; the pods on a real node use their grace periods."""
BEGIN_TIMEOUT_SECONDS = 60.0
"""Seconds after which the test prints what to check if the maintenance has not begun."""
RESTORE_TIMEOUT_SECONDS = 60.0
NOT_BEGUN_HINT = (
    "no function has begun the maintenance: check with `kubectl get pods -n node-maintenance` whether the functions "
    "run, and read their logs; a 403 there is a missing permission"
)
MAX_LISTED_NODES = 10
"""Maximum number of nodes that an error message lists."""


class FunctestError(Exception):
    """Raised if the test cannot run, or if a check of the product fails."""


def run_functest(name: str) -> None:
    """Run the test on the node with this name, or on a suitable node if `name` is "". Raises `FunctestError`."""
    try:
        with closing(SyncClient()) as cluster:
            original_node = _find_suitable_node(cluster, name)
            _wait_until_install_is_ready(cluster)
            maintenance = _build_maintenance(original_node["metadata"]["name"])
            try:
                _run_maintenance(cluster, cluster.create(MEDIK8S.path, maintenance))
            finally:  # The object may exist even if the response to its creation was lost.
                _restore_node(cluster, maintenance, original_node)
    except ApiError as error:
        raise FunctestError(error.message) from None


def _build_maintenance(node: str) -> Object:
    return {
        "apiVersion": MEDIK8S.api_version,
        "kind": "NodeMaintenance",
        "metadata": {"name": f"functest-{uuid.uuid4().hex[:8]}"},
        "spec": {"nodeName": node, "reason": "make cluster-functest"},
    }


def _find_suitable_node(cluster: SyncClient, name: str) -> Object:
    """Return the node with this name, or a suitable one if `name` is "". Raises `FunctestError` if none is suitable."""
    nodes = {node["metadata"]["name"]: node for node in cluster.list(NODES_PATH)["items"]}
    names = ", ".join(sorted(nodes)[:MAX_LISTED_NODES])
    if name and name not in nodes:
        raise FunctestError(f'node "{name}" not found: run make cluster-functest NODE=name with one of {names}')
    maintained = {
        m.get_node_name(maintenance)
        for group in GROUPS.values()
        for maintenance in _list_maintenances(cluster, group.path)
    }
    free = {key: node for key, node in nodes.items() if not is_cordoned(node) and key not in maintained}
    if not name:
        pods = Counter(pod["spec"].get("nodeName") for pod in cluster.list(PODS_PATH)["items"])
        workers = [key for key, node in free.items() if is_node_ready(node) and not is_control_plane(node)]
        if not workers:
            raise FunctestError(
                "no ready worker without a NodeMaintenance is schedulable: run make cluster-functest NODE=name with "
                f"one of {names}"
            )
        name = min(workers, key=lambda worker: (pods[worker], worker))
    if name not in free:
        raise FunctestError(
            f'node "{name}" is cordoned or has a NodeMaintenance: uncordon the node or delete the NodeMaintenance first'
        )
    node: Object = free[name]
    return node


def _list_maintenances(cluster: SyncClient, path: str) -> list[Object]:
    """Return the NodeMaintenances at `path`, or an empty list if the cluster does not serve this optional API group."""
    try:
        maintenances: list[Object] = cluster.list(path)["items"]
    except NotFound:
        if path == MEDIK8S.path:
            raise FunctestError("the product is not installed on this cluster: run `make deploy`") from None
        return []
    return maintenances


def _wait_until_install_is_ready(cluster: SyncClient) -> None:
    """Wait until the functions, the Broker, the Triggers and the sources are ready. Raises `FunctestError`.

    If the objects cannot be checked, for example because the functions are local processes, the test does not wait.
    """
    deadline = time.monotonic() + INSTALL_TIMEOUT_SECONDS
    printed_line = ""
    while problems := cluster.run(check_install(cluster.api, DEFAULT_NAMESPACE)).problems:
        _raise_unless(
            time.monotonic() < deadline,
            f"the install is not ready after {INSTALL_TIMEOUT_SECONDS:.0f} s: {'; '.join(format_problems(problems))}",
        )
        line = (
            f"waiting until the install is ready: {format_count(len(problems), 'object')} not ready, such as "
            f"{problems[0].kind} {problems[0].name}"
        )
        if line != printed_line:
            printed_line = line
            print(line, flush=True)
        time.sleep(INSTALL_CHECK_SECONDS)


def _run_maintenance(cluster: SyncClient, maintenance: Object) -> None:
    """Wait until the drain has ended; check that it succeeded, and that the node is cordoned and tainted."""
    printed_line = ""

    def has_begun(current: Object | None) -> bool:
        nonlocal printed_line
        line = format_state(current or {})
        if line != printed_line:
            printed_line = line
            print(f"  {line}", flush=True)
        return current is None or bool(m.get_phase(current))

    def has_ended(current: Object | None) -> bool:
        return has_begun(current) and (current is None or m.get_phase(current) in (m.SUCCEEDED, m.FAILED))

    path, name = m.build_path(maintenance), m.get_node_name(maintenance)
    print(f"{maintenance['metadata']['name']}: draining node {name}", flush=True)
    deadline = time.monotonic() + DRAIN_TIMEOUT_SECONDS
    if not _wait_for_object(cluster, path, has_begun, BEGIN_TIMEOUT_SECONDS)[0]:
        warnings = cluster.run(list_install_warnings(cluster.api, DEFAULT_NAMESPACE, [maintenance]))
        lines = (f"still new after {BEGIN_TIMEOUT_SECONDS:.0f} s: {NOT_BEGUN_HINT}", *warnings)
        print(*(f"  {line}" for line in lines), sep="\n", flush=True)
    in_time, latest = _wait_for_object(cluster, path, has_ended, deadline - time.monotonic())
    latest = latest or {}
    _raise_unless(in_time, format_timeout(latest))
    status = latest.get("status") or {}
    _raise_unless(status.get("phase") == m.SUCCEEDED, f"the phase is {status.get('phase')}: {status.get('lastError')}")
    is_complete = status.get("drainProgress") == 100 and not status.get("pendingPods")
    _raise_unless(is_complete, f"the phase is Succeeded, but pods remain: {status}")
    node = cluster.get(build_node_path(name))
    _raise_unless(
        is_in_maintenance(node, MEDIK8S.drain_taint),
        f"the phase is Succeeded, but the node is not cordoned and tainted: {node['spec']}",
    )


def format_state(maintenance: Object) -> str:
    """Return the maintenance's phase, progress and last error as one line."""
    status = maintenance.get("status") or {}
    line = f"{status.get('phase') or 'new'}, {status.get('drainProgress') or 0} %, {status.get('lastError') or ''}"
    return line.rstrip(", ")


def format_timeout(maintenance: Object) -> str:
    """Return an error message about a drain that did not end in time, with the reason if the status contains it."""
    reason = summarize_blockers(maintenance.get("status") or {}) or ("" if m.get_phase(maintenance) else NOT_BEGUN_HINT)
    return f"{m.get_phase(maintenance) or 'new'} after {DRAIN_TIMEOUT_SECONDS:.0f} s{': ' if reason else ''}{reason}"


def _delete_maintenance(cluster: SyncClient, path: str) -> Object | None:
    """Delete the maintenance, and retry until the API server accepts the request.

    Return the maintenance's last state before its deletion, or None if this state is unknown.
    """
    deadline = time.monotonic() + RESTORE_TIMEOUT_SECONDS
    for delay in generate_delays(0.5, 5.0):
        try:
            deleted_maintenance = cluster.run(get_or_none(cluster.api.get(path)))
            if deleted_maintenance:
                cluster.delete(path, uid=deleted_maintenance["metadata"]["uid"])
            return deleted_maintenance
        except NotFound:
            return None  # Another client has deleted the maintenance.
        except Unavailable:
            if time.monotonic() > deadline:
                return None
            time.sleep(delay)
    return None


def _restore_node(cluster: SyncClient, maintenance: Object, original_node: Object) -> None:
    """Delete the maintenance, and check that the node has the same state as before the test."""
    name = m.get_node_name(maintenance)
    deleted_maintenance = _delete_maintenance(cluster, m.build_path(maintenance))
    is_deleted, _ = _wait_for_object(
        cluster, m.build_path(maintenance), lambda current: current is None, RESTORE_TIMEOUT_SECONDS
    )
    maintenance_name = maintenance["metadata"]["name"]
    _raise_unless(
        is_deleted,
        f'NodeMaintenance "{maintenance_name}" still exists {RESTORE_TIMEOUT_SECONDS:.0f} s after its deletion, '
        f'and node "{name}" may still be cordoned',
    )
    node = cluster.get(build_node_path(name))
    is_restored = node["spec"].get("taints") == original_node["spec"].get("taints") and not is_cordoned(node)
    _raise_unless(is_restored, f"the node's state differs from its state before the test: {node['spec']}")
    print(format_result(name, deleted_maintenance), flush=True)


def format_result(node: str, maintenance: Object | None) -> str:
    """Return the last output line; `maintenance` is the last state before the deletion."""
    was_cordoned = maintenance is None or m.is_reported_cordoned(maintenance)
    return f"node {node} {'is schedulable again' if was_cordoned else 'was never cordoned'}"


def _raise_unless(condition: bool, message: str) -> None:
    if not condition:
        raise FunctestError(message)


def _wait_for_object(
    cluster: SyncClient, path: str, predicate: Callable[[Object | None], bool], seconds: float
) -> tuple[bool, Object | None]:
    """Wait until the object at `path` satisfies `predicate`; return whether it did so in time, and its last state.

    The object's last state is None if the object does not exist.
    """
    collection, _, name = path.rpartition("/")
    current: Object | None = None

    async def watch() -> None:
        nonlocal current
        async with aclosing(follow(cluster.api, collection, field_selector=f"metadata.name={name}")) as changes:
            async for change in changes:
                if change.change_type != "SYNCED":
                    current = None if change.change_type == "DELETED" else change.object
                if predicate(current):
                    return

    try:
        cluster.run(asyncio.wait_for(watch(), seconds))
    except asyncio.TimeoutError:
        return False, current
    return True, current


if __name__ == "__main__":
    # A canceled CI job must also restore the node.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        run_functest("".join(sys.argv[1:2]))
    except FunctestError as error:
        raise SystemExit(f"error: {error}") from None
