"""Watches a cluster from a process of its own, as a user would, and says what it sees when it sees it.

`python -m bench.observer KUBECONFIG` prints a line of JSON when something is another than before: `at` (seconds of the
clock that all processes of the machine share), `what` (`synced`, `pod gone`, `phase`, `maintenance gone`, `node`),
`name`, and `value`: a pod's node, a maintenance's phase, whether a node is in service.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Iterator

from kube.door.api import Api
from kube.door.list_watch import Change, follow, merged
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.objects import phase
from kube.nodes import NODES, is_cordoned
from kube.paths import Object

WATCHED = ("/api/v1/pods", MEDIK8S.path, NODES)


async def observe(kubeconfig: str) -> None:
    """Print what happens, without end."""
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
                known.pop(("phase", name), None)  # the next one of that name begins anew
            elif known.get((what, name)) == value:
                continue
            else:
                known[what, name] = value
            _say(what, name, value)


def _kept(item: Object) -> Object:
    """What is looked at here: who watches ten thousand pods must not be busier than who drains them."""
    metadata, spec, status = item["metadata"], item.get("spec") or {}, item.get("status") or {}
    return {
        "metadata": {name: metadata[name] for name in ("name", "uid", "resourceVersion")},
        "spec": {name: spec[name] for name in ("nodeName", "unschedulable", "taints") if name in spec},
        "status": {"phase": status.get("phase")},
    }


def _seen(number: int, change: Change) -> Iterator[tuple[str, str]]:
    """What a change of the collection of that number means to the bench."""
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
