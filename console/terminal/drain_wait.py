"""Waits until the nodes of created NodeMaintenances are drained, and shows the progress meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import datetime, timezone

from console.operations.descriptions import get_phase_label, summarize_blockers
from console.operations.install_check import warn_if_stalled
from console.operations.maintenance_actions import watch_maintenances
from console.terminal.connection import format_api_error
from console.terminal.output import TEXT_OUTPUTS, escape_all, set_interrupt_note, show_live, warn
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.maintenance.objects import FAILED, format_full_name, get_condition, get_node_name, get_status, is_deleting
from kube.paths import Object
from kube.text_limits import format_count


class AwaitedDrains:
    """The NodeMaintenances that a command has created, and what is known of their drains.

    Attributes:
        latest: uid → the newest version of the object.
        errors: uid → why the node will not be drained, or was not drained in time.
    """

    def __init__(self, created: Iterable[Object]) -> None:
        self.latest = {maintenance["metadata"]["uid"]: maintenance for maintenance in created}
        self.errors: dict[str, str] = {}

    @property
    def pending_uids(self) -> list[str]:
        """Return the uids of the maintenances whose nodes are not drained yet, but may be."""
        return [
            uid
            for uid, maintenance in self.latest.items()
            if uid not in self.errors and get_condition(maintenance, "Drained").get("status") != "True"
        ]

    @property
    def objects(self) -> list[Object]:
        """Return the newest version of all maintenances."""
        return list(self.latest.values())

    def update(self, maintenances: Iterable[Object]) -> None:
        """Take the newest versions, and find the maintenances that failed or were deleted."""
        found = {maintenance["metadata"]["uid"]: maintenance for maintenance in maintenances}
        for uid in self.pending_uids:
            maintenance, name = found.get(uid), format_full_name(self.latest[uid])
            if maintenance is None or is_deleting(maintenance):
                self.errors[uid] = f"{name} was deleted before its node was drained"
                continue
            self.latest[uid] = maintenance
            if get_phase_label(maintenance) == FAILED and uid in self.pending_uids:
                self.errors[uid] = f"{name} failed: {maintenance['status'].get('lastError')}"

    def fail_pending(self, build_message: Callable[[Object], str]) -> None:
        """Record an error for each maintenance whose node is not drained."""
        for uid in self.pending_uids:
            self.errors[uid] = build_message(self.latest[uid])


async def wait_until_drained(
    api: Api, created: Iterable[Object], namespace: str, timeout: float, output: str
) -> AwaitedDrains:
    """Return the NodeMaintenances once each node is drained, or is known to have failed; 0 means no timeout.

    If a maintenance has no status after some seconds, warnings name the problems of the install. If the maintenances
    cannot be watched, each has an error.
    """
    drains = AwaitedDrains(created)
    set_interrupt_note(lambda: describe_continuation(drains.objects))

    def list_unprocessed() -> list[Object]:
        return [maintenance for maintenance in drains.objects if not get_status(maintenance)]

    async with warn_if_stalled(api, namespace, list_unprocessed, warn):
        try:
            await asyncio.wait_for(_follow_drains(api, drains, output), timeout or None)
        except asyncio.TimeoutError:
            pass  # Each pending maintenance gets an error below.
        except ApiError as error:
            problem = format_api_error(error)
            drains.fail_pending(lambda item: f"{format_full_name(item)} continues, but cannot be watched: {problem}")
    drains.fail_pending(lambda maintenance: _format_timeout(maintenance, timeout))
    return drains


async def _follow_drains(api: Api, drains: AwaitedDrains, output: str) -> None:
    """Show the progress, and return once no drain is pending."""
    from console.terminal.maintenance_display import format_line, render_awaited_maintenances  # slow: draws tables

    display: AbstractContextManager[Callable[[list[Object]], None]] = (
        show_live(
            lambda state: render_awaited_maintenances(state, datetime.now(timezone.utc)),
            lambda state: "\n".join(map(format_line, state)),
            with_times=False,
        )
        if output in TEXT_OUTPUTS
        else nullcontext(lambda _state: None)  # The objects are printed at the end.
    )
    nodes = {get_node_name(maintenance) for maintenance in drains.objects}
    with display as show_state:
        async with aclosing(watch_maintenances(api, nodes.pop() if len(nodes) == 1 else None)) as updates:
            async for maintenances in updates:
                drains.update(maintenances)
                show_state(escape_all(drains.objects))
                if not drains.pending_uids:
                    return
    drains.fail_pending(
        lambda maintenance: f"the watch on {format_full_name(maintenance)} ended: see kubectl maintenance status"
    )


def describe_continuation(maintenances: list[Object]) -> str:
    """Return what continues after Ctrl-C, and the commands to see and to end it."""
    nodes = " ".join(map(get_node_name, maintenances))
    if len(maintenances) == 1:
        remedy = f"to see it, run kubectl maintenance status {nodes}; to end it, run kubectl maintenance stop {nodes}"
        return f'the maintenance of node "{nodes}" continues: {remedy}'
    remedy = f"to see them, run kubectl maintenance status; to end them, run kubectl maintenance stop {nodes}"
    return f"{format_count(len(maintenances), 'maintenance')} continue: {remedy}"


def _format_timeout(maintenance: Object, timeout: float) -> str:
    """Build the message for a drain that exceeds the timeout, with the reason that blocks it."""
    node, reason = get_node_name(maintenance), summarize_blockers(get_status(maintenance))
    state = f'node "{node}" not drained within {timeout:g}s{f" ({reason})" if reason else ""}'
    return f"{state}, its maintenance continues: see kubectl maintenance status {node}"
