"""Waits until the nodes of newly created NodeMaintenances are drained, and shows the progress."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, aclosing, nullcontext
from datetime import datetime, timezone

from console.operations.descriptions import get_phase_label, summarize_blockers
from console.operations.install_check import check_install_if_maintenance_stalls
from console.operations.maintenance_actions import watch_maintenances
from console.terminal.connection import format_api_error
from console.terminal.output import TEXT_OUTPUTS, escape_all, set_interrupt_note, show_live, warn
from kube.client.api import Api
from kube.client.api_errors import ApiError
from kube.maintenance.objects import FAILED, format_full_name, get_condition, get_node_name, get_status, is_deleting
from kube.paths import Object
from kube.text_limits import format_count


class AwaitedDrains:
    """The NodeMaintenances that a command has created, and the state of their drains.

    Attributes:
        latest: The latest version of each NodeMaintenance, by uid.
        errors: The reason why a node was not drained in time or will not be drained, by the NodeMaintenance's uid.
    """

    def __init__(self, created: Iterable[Object]) -> None:
        self.latest = {maintenance["metadata"]["uid"]: maintenance for maintenance in created}
        self.errors: dict[str, str] = {}

    @property
    def undrained_maintenance_uids(self) -> list[str]:
        """Return the uids of the maintenances without an error whose nodes are not drained yet."""
        return [
            uid
            for uid, maintenance in self.latest.items()
            if uid not in self.errors and get_condition(maintenance, "Drained").get("status") != "True"
        ]

    @property
    def objects(self) -> list[Object]:
        """Return the latest version of each maintenance."""
        return list(self.latest.values())

    def update(self, maintenances: Iterable[Object]) -> None:
        """Store the latest versions, and record an error for each maintenance that has failed or was deleted."""
        found = {maintenance["metadata"]["uid"]: maintenance for maintenance in maintenances}
        for uid in self.undrained_maintenance_uids:
            maintenance, name = found.get(uid), format_full_name(self.latest[uid])
            if maintenance is None or is_deleting(maintenance):
                self.errors[uid] = f"{name} was deleted before its node was drained"
                continue
            self.latest[uid] = maintenance
            if get_phase_label(maintenance) == FAILED and uid in self.undrained_maintenance_uids:
                self.errors[uid] = f"{name} failed: {maintenance['status'].get('lastError')}"

    def record_error_for_undrained_nodes(self, build_message: Callable[[Object], str]) -> None:
        """Record an error for each maintenance whose node is not drained yet."""
        for uid in self.undrained_maintenance_uids:
            self.errors[uid] = build_message(self.latest[uid])


async def wait_until_drained(
    api: Api, created: Iterable[Object], namespace: str, timeout: float, output: str
) -> AwaitedDrains:
    """Wait until the drain of each node has succeeded or failed, for at most `timeout` seconds (0 for no limit).

    If a maintenance has no status after some seconds, the function prints warnings about problems of the install. The
    result contains an error for each drain that failed, timed out or could not be watched.
    """
    drains = AwaitedDrains(created)
    set_interrupt_note(lambda: describe_continuation(drains.objects))

    def list_maintenances_without_status() -> list[Object]:
        return [maintenance for maintenance in drains.objects if not get_status(maintenance)]

    async with check_install_if_maintenance_stalls(api, namespace, list_maintenances_without_status, warn):
        try:
            await asyncio.wait_for(_follow_drains(api, drains, output), timeout or None)
        except asyncio.TimeoutError:
            pass  # The last call of `record_error_for_undrained_nodes` records an error for each pending maintenance.
        except ApiError as error:
            problem = format_api_error(error)
            drains.record_error_for_undrained_nodes(
                lambda item: f"{format_full_name(item)} continues, but cannot be watched: {problem}"
            )
    drains.record_error_for_undrained_nodes(lambda maintenance: _format_timeout(maintenance, timeout))
    return drains


async def _follow_drains(api: Api, drains: AwaitedDrains, output: str) -> None:
    """Show the progress of the drains, and return as soon as no drain is pending."""
    from console.terminal.maintenance_display import format_line, render_awaited_maintenances  # This import is slow.

    display: AbstractContextManager[Callable[[list[Object]], None]] = (
        show_live(
            lambda state: render_awaited_maintenances(state, datetime.now(timezone.utc)),
            lambda state: "\n".join(map(format_line, state)),
            with_times=False,
        )
        if output in TEXT_OUTPUTS
        else nullcontext(lambda _state: None)  # For scripts, the command prints only the final objects.
    )
    nodes = {get_node_name(maintenance) for maintenance in drains.objects}
    with display as show_state:
        async with aclosing(watch_maintenances(api, nodes.pop() if len(nodes) == 1 else None)) as updates:
            async for maintenances in updates:
                drains.update(maintenances)
                show_state(escape_all(drains.objects))
                if not drains.undrained_maintenance_uids:
                    return
    drains.record_error_for_undrained_nodes(
        lambda maintenance: f"the watch on {format_full_name(maintenance)} ended: see kubectl maintenance status"
    )


def describe_continuation(maintenances: list[Object]) -> str:
    """Return the message after Ctrl-C: the maintenances continue; the commands that show or end them."""
    nodes = " ".join(map(get_node_name, maintenances))
    if len(maintenances) == 1:
        remedy = f"to see it, run kubectl maintenance status {nodes}; to end it, run kubectl maintenance stop {nodes}"
        return f'the maintenance of node "{nodes}" continues: {remedy}'
    remedy = f"to see them, run kubectl maintenance status; to end them, run kubectl maintenance stop {nodes}"
    return f"{format_count(len(maintenances), 'maintenance')} continue: {remedy}"


def _format_timeout(maintenance: Object, timeout: float) -> str:
    """Return the error message for a drain that exceeds the timeout, with the reason why it is blocked."""
    node, reason = get_node_name(maintenance), summarize_blockers(get_status(maintenance))
    state = f'node "{node}" not drained within {timeout:g}s{f" ({reason})" if reason else ""}'
    return f"{state}, its maintenance continues: see kubectl maintenance status {node}"
