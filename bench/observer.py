"""Watches a cluster from a separate process, as a user would, and prints each change with a timestamp.

`python -m bench.observer KUBECONFIG` prints one JSON object per change. `at` is the time in seconds of the monotonic
clock, which all processes on a host share. `what` is `synced`, `pod gone`, `phase`, `maintenance gone` or `node`.
`name` is the object's name. `value` is a pod's node or a maintenance's phase. For a node, `value` is `in` if the node
is schedulable and has no taint except the taint of fake nodes, and `out` otherwise.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

from kube.client.api import Api
from kube.client.list_watch import Change, follow, merge_streams
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import get_phase
from kube.nodes import NODES_PATH, is_cordoned
from kube.paths import Object
from localcluster.cluster import FAKE_NODE_TAINT

WATCHED_PATHS = ("/api/v1/pods", MEDIK8S.path, NODES_PATH)


async def observe(kubeconfig: str) -> None:
    """Print changes until the process is terminated."""
    api = await Api.connect(kubeconfig)
    unsynced, values = len(WATCHED_PATHS), dict[tuple[str, str], str]()
    async for stream_index, change in merge_streams(
        *(follow(api, path, transform=_strip_object) for path in WATCHED_PATHS)
    ):
        if change.change_type == "SYNCED":
            unsynced -= 1
            if not unsynced:
                _print_event("synced", "", "")
        for kind, value in _describe_change(stream_index, change):
            name = change.object["metadata"]["name"]
            if change.change_type == "DELETED":
                values.pop(("phase", name), None)  # A recreated object starts without a phase.
            elif values.get((kind, name)) == value:
                continue
            else:
                values[kind, name] = value
            _print_event(kind, name, value)


def _strip_object(obj: Object) -> Object:
    """Return only the needed fields of an object; otherwise, watching 10,000 pods would use more CPU than draining."""
    metadata, spec, status = obj["metadata"], obj.get("spec") or {}, obj.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion")},
        "spec": {name: spec[name] for name in ("nodeName", "unschedulable", "taints") if name in spec},
        "status": {"phase": status.get("phase")},
    }


def _describe_change(stream_index: int, change: Change) -> Iterator[tuple[str, str]]:
    """Yield the kind and the value of each line to print for a change in the watch stream with this index."""
    is_deleted = change.change_type == "DELETED"
    if change.change_type == "SYNCED":
        return
    if stream_index == 0 and is_deleted:
        yield "pod gone", change.object["spec"].get("nodeName", "")
    if stream_index == 1:
        yield ("maintenance gone", "") if is_deleted else ("phase", get_phase(change.object))
    if stream_index == 2 and not is_deleted:
        taints = [taint for taint in change.object["spec"].get("taints", []) if taint != FAKE_NODE_TAINT]
        yield "node", "out" if is_cordoned(change.object) or taints else "in"


def _print_event(kind: str, name: str, value: str) -> None:
    print(json.dumps({"at": time.monotonic(), "what": kind, "name": name, "value": value}), flush=True)


if __name__ == "__main__":
    asyncio.run(observe(sys.argv[1]))
