"""The lower bound of a drain: a bare asynchronous client that gets the pods as input and evicts them.

The client cordons the nodes and then evicts. It evicts all pods without a budget concurrently. Under a budget, it
evicts as many pods as the budget allows at that moment, with a short delay between evictions. Without the delay,
evictions under one budget conflict in the API server, which then waits for half a second.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Sequence
from contextlib import aclosing

from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.client.list_watch import follow
from kube.evictions.requests import build_eviction, build_eviction_path
from kube.paths import Object

EVICTION_INTERVAL_SECONDS = 0.045
"""Delay between evictions under the same budget."""


async def drain(api: Api, nodes: Sequence[str], pods: Sequence[Object], namespace: str, *, has_budgets: bool) -> None:
    """Cordon the nodes and evict the pods; return when the API server has accepted every eviction."""
    await asyncio.gather(*(api.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": True}}) for node in nodes))
    if not has_budgets:
        await asyncio.gather(*(api.create(build_eviction_path(pod), build_eviction(pod)) for pod in pods))
        return
    pods_by_budget: dict[str, deque[Object]] = defaultdict(deque)
    for pod in pods:
        pods_by_budget[pod["metadata"]["labels"]["app"]].append(pod)
    await asyncio.gather(*(_drain_budget(api, namespace, budget, queue) for budget, queue in pods_by_budget.items()))


async def _drain_budget(api: Api, namespace: str, budget: str, pending: deque[Object]) -> None:
    """Evict the pending pods of one budget, as many at a time as the budget allows."""
    path = f"/apis/policy/v1/namespaces/{namespace}/poddisruptionbudgets"
    async with aclosing(follow(api, path, field_selector=f"metadata.name={budget}")) as changes:
        async for change in changes:
            allowed = (change.object.get("status") or {}).get("disruptionsAllowed", 0)
            evictions = []
            for _ in range(min(allowed, len(pending))):
                evictions.append(asyncio.create_task(_evict(api, pending.popleft())))
                await asyncio.sleep(EVICTION_INTERVAL_SECONDS)
            pending.extend(pod for pod in await asyncio.gather(*evictions) if pod is not None)
            if not pending:
                return


async def _evict(api: Api, pod: Object) -> Object | None:
    """Evict a pod; return the pod if its eviction must be retried, otherwise None."""
    try:
        await api.create(build_eviction_path(pod), build_eviction(pod))
    except ApiError as error:
        return None if error.status == 404 else pod
    return None
