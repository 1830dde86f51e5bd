"""Drains a node without a NodeMaintenance: evicts pods, and watches the pods and the disruption budgets."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import aclosing

from console.operations.errors import InvalidSelector, OperationError
from console.operations.maintenance_actions import known_node
from kube.budgets import BUDGETS, Blocked, Budget, budget_key, plan
from kube.client.api import JSON_PATCH, Api
from kube.client.api_errors import Rejected
from kube.client.eviction_batch import evict_batch, orphans
from kube.client.eviction_tracker import Sending
from kube.client.list_watch import Change, follow, merged
from kube.maintenance.blocked_pods import summary
from kube.nodes import cordon_patch, node_path
from kube.paths import pods_on
from kube.pods import DrainOptions, Pod, Sorted, key, sort, uid
from kube.text_limits import counted

HOPELESS = ("Forbidden", "MultipleBudgets")
"""Reasons for refused evictions that waiting does not resolve; kubectl drain also ends with an error on them."""
RETRY_SECONDS = 5.0
"""Delay before a retry if no watched budget explains a refusal, so that no event may follow; kubectl uses the same."""
UNANSWERED_SECONDS = 1.0
"""Delay before the next pass while an eviction is unanswered: a refusal would change no pod and cause no event."""


async def cordon(api: Api, name: str) -> bool:
    """Make the node unschedulable; return False if it already was."""
    patch = cordon_patch(await known_node(api, name))
    if patch:
        await api.patch(node_path(name), patch, JSON_PATCH)
    return bool(patch)


async def look(api: Api, node: str, options: DrainOptions) -> Sorted:
    """Classify the node's pods by the drain flags. Raises `InvalidSelector` if the API server rejects the selector."""
    path, fields = pods_on(node)
    try:
        pods = (await api.list(path, fields=fields, labels=options.pod_selector))["items"]
    except Rejected as error:
        raise InvalidSelector(error.message) from None
    return sort(pods, options, await orphans(api, pods))


class Drain:
    """A drain that evicts exactly the given pods, as their budgets allow; `run` returns when all are gone.

    In: the pods that leave (from `look`), and `show`, which prints a line for the user.
    """

    def __init__(self, api: Api, node: str, selector: str, leaving: Iterable[Pod], show: Callable[[str], None]) -> None:
        self._api = api
        self._show = show
        path, fields = pods_on(node)
        self._streams = (follow(api, path, fields=fields, labels=selector), follow(api, BUDGETS))
        self._left: dict[str, Pod] = {uid(pod): pod for pod in leaving}
        self._seen: set[str] = set()
        self._budgets: dict[str, Budget] = {}
        self._unread = {0, 1}
        self._sent: set[str] = set()
        self._blocked: dict[str, Blocked] = {}
        self._changed = asyncio.Event()

    async def run(self) -> None:
        """Evict pods until none is left. Raises `OperationError` if the remaining pods cannot be evicted."""
        watching = asyncio.create_task(self._watch())
        try:
            await self._next(watching, None)
            while self._left:
                again = await self._pass()
                self._end_if_hopeless()
                await self._next(watching, again)
        finally:
            watching.cancel()
            await asyncio.gather(watching, return_exceptions=True)

    def rest(self) -> str:
        """Return which pods are left, and why, in one line."""
        names = sorted(key(pod) for pod in self._left.values())
        blocked = summary(self._blocked[mark] for mark in self._left if mark in self._blocked)
        return f"{counted(len(names), 'pod')} left: {blocked or ', '.join(names[:5])}"

    async def _next(self, watching: asyncio.Task[None], seconds: float | None) -> None:
        """Wait for the next change, at most `seconds`. Raises the error that ended the watch."""
        change = asyncio.ensure_future(self._changed.wait())
        await asyncio.wait({change, watching}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        change.cancel()
        if watching.done():
            watching.result()
        self._changed.clear()

    async def _pass(self) -> float | None:
        """Evict the pods that the budgets allow now, and return the delay before the next pass.

        The delay is None if only a change can allow more evictions.
        """
        unsent = [pod for mark, pod in self._left.items() if mark not in self._sent]
        intended = plan(unsent, self._budgets.values())
        for pod in [*intended.free, *(pod for queue in intended.queues.values() for pod in queue)]:
            if not Sending.of(self._api).has_sent(pod):
                self._show(f"evicting pod {key(pod)}")
        batch = await evict_batch(self._api, intended)
        self._sent.update(pod["uid"] for pod in (*batch.evicted, *batch.gone))
        self._show_blocked(batch.blocked)
        if batch.unsent:
            return 0.0
        if batch.under_way:
            return UNANSWERED_SECONDS
        return RETRY_SECONDS if len(batch.blocked) > len(intended.blocked) else None

    def _show_blocked(self, blocked: Iterable[Blocked]) -> None:
        before, self._blocked = self._blocked, {item.pod["uid"]: item for item in blocked}
        for mark, item in self._blocked.items():
            if mark not in before or before[mark].message != item.message:
                self._show(f"waiting with pod {item.key}: {item.message}")

    def _end_if_hopeless(self) -> None:
        reasons = {self._blocked[mark].reason if mark in self._blocked else "" for mark in self._left}
        if reasons and reasons <= set(HOPELESS):
            raise OperationError(f"these pods cannot be evicted: {summary(self._blocked.values())}")

    async def _watch(self) -> None:
        async with aclosing(merged(*self._streams)) as changes:
            async for number, change in changes:
                if change.kind == "SYNCED":
                    self._synced(number)
                elif number == 0:
                    self._pod(change)
                else:
                    self._budget(change)
                if not self._unread:
                    self._changed.set()

    def _synced(self, number: int) -> None:
        """Handle the end of an initial list: pods that it does not contain were gone before the watch began."""
        self._unread.discard(number)
        if number == 0:
            for mark in self._left.keys() - self._seen:
                self._gone(mark)

    def _pod(self, change: Change) -> None:
        mark = uid(change.object)
        self._seen.add(mark)
        if mark not in self._left:
            return
        if change.kind == "DELETED":
            self._gone(mark)
        else:
            self._left[mark] = change.object

    def _gone(self, mark: str) -> None:
        self._show(f"pod {key(self._left.pop(mark))} is gone")

    def _budget(self, change: Change) -> None:
        if change.kind == "DELETED":
            self._budgets.pop(budget_key(change.object), None)
        else:
            self._budgets[budget_key(change.object)] = change.object
