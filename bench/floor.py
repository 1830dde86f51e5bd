"""The floor: a bare asynchronous client that evicts the same pods and knows beforehand what there is.

It cordons, and then evicts. Without a budget all go at once; behind one, as many as it allows at that moment, each a
little after the one before, since evictions under one budget that meet in the API server cost half a second.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import aclosing

from kube.door.api import Api
from kube.door.api_errors import ApiError
from kube.door.list_watch import follow
from kube.evictions import eviction_of, eviction_path
from kube.paths import Object

APART_SECONDS = 0.045
"""Between two evictions under one budget."""


async def drain(api: Api, nodes: Sequence[str], pods: Sequence[Object], namespace: str, *, budgets: bool) -> None:
    """Cordon the nodes and ask for the eviction of all these pods; returns when each was granted."""
    await asyncio.gather(*(api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}) for node in nodes))
    if not budgets:
        await asyncio.gather(*(api.create(eviction_path(pod), eviction_of(pod)) for pod in pods))
        return
    waiting: dict[str, deque[Object]] = defaultdict(deque)
    for pod in pods:
        waiting[pod["metadata"]["labels"]["app"]].append(pod)
    await asyncio.gather(*(_behind(api, namespace, name, queue) for name, queue in waiting.items()))


async def _behind(api: Api, namespace: str, budget: str, waiting: deque[Object]) -> None:
    """Evict the pods of one budget as it opens."""
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    async with aclosing(follow(api, path, fields=f"metadata.name={budget}")) as changes:
        async for change in changes:
            allowed = (change.object.get("status") or {}).get("disruptionsAllowed", 0)
            started = []
            for _ in range(min(allowed, len(waiting))):
                started.append(asyncio.create_task(_evict(api, waiting.popleft())))
                await asyncio.sleep(APART_SECONDS)
            waiting.extend(pod for pod in await asyncio.gather(*started) if pod is not None)
            if not waiting:
                return


async def _evict(api: Api, pod: Object) -> Object | None:
    """Evict a pod; returns it if it has to be asked for again."""
    try:
        await api.create(eviction_path(pod), eviction_of(pod))
    except ApiError as error:
        return None if error.status == 404 else pod
    return None
