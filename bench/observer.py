"""Watches a cluster from a separate process, as a user would, and prints each change with a timestamp.

`python -m bench.observer KUBECONFIG` prints one JSON object per change. `at` is in seconds of the monotonic clock,
which all processes of a host share. `what` is `synced`, `pod gone`, `phase`, `maintenance gone` or `node`. `name` is
the object's name. `value` is a pod's node, a maintenance's phase, or whether a node is schedulable and untainted.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

from kube.client.api import Api
from kube.client.list_watch import Change, follow, merged
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import phase
from kube.nodes import NODES, is_cordoned
from kube.paths import Object

WATCHED = ("/api/v1/pods", MEDIK8S.path, NODES)


async def observe(kubeconfig: str) -> None:
    """Print changes forever."""
    api = await Api.connect(kubeconfig)
    awaited, known = len(WATCHED), dict[tuple[str, str], str]()
    async for number, change in merged(*(follow(api, path, keep=_kept) for path in WATCHED)):
        if change.kind == "SYNCED":
            awaited -= 1
            if not awaited:
                _say("synced", "", "")
        for what, value in _seen(number, change):
            name = change.object["metadata"]["name"]
            if change.kind == "DELETED":
                known.pop(("phase", name), None)  # a new object with this name has no earlier phase
            elif known.get((what, name)) == value:
                continue
            else:
                known[what, name] = value
            _say(what, name, value)


def _kept(item: Object) -> Object:
    """Return only the fields that are needed, so that watching ten thousand pods uses less CPU than draining them."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion")},
        "spec": {name: spec[name] for name in ("nodeName", "unschedulable", "taints") if name in spec},
        "status": {"phase": status.get("phase")},
    }


def _seen(number: int, change: Change) -> Iterator[tuple[str, str]]:
    """Yield the kind and value of the output lines for a change of the collection with this number."""
    gone = change.kind == "DELETED"
    if change.kind == "SYNCED":
        return
    if number == 0 and gone:
        yield "pod gone", change.object["spec"].get("nodeName", "")
    if number == 1:
        yield ("maintenance gone", "") if gone else ("phase", phase(change.object))
    if number == 2 and not gone:
        spec = change.object["spec"]
        yield "node", "out" if is_cordoned(change.object) or spec.get("taints") else "in"


def _say(what: str, name: str, value: str) -> None:
    print(json.dumps({"at": time.monotonic(), "what": what, "name": name, "value": value}), flush=True)


if __name__ == "__main__":
    asyncio.run(observe(sys.argv[1]))
