"""Prints warnings about the install while a command waits for a maintenance that is stalled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress

from console.operations.install import stalls
from console.operations.install.lookup import list_install_warnings
from console.terminal.output import warn
from kube.client.api import Api
from kube.maintenance.objects import Maintenance


@asynccontextmanager
async def warn_if_stalled(
    api: Api, namespace: str, select_stalled: Callable[[], Sequence[Maintenance]]
) -> AsyncIterator[None]:
    """Check the install once while the block runs, as soon as a maintenance is stalled, and print the warnings.

    In: the product's namespace, and a function that returns the stalled maintenances; it is called every
    `STALLED_SECONDS`, and sends no request.
    """

    async def warn_later() -> None:
        stalled: Sequence[Maintenance] = []
        while not stalled:
            await asyncio.sleep(stalls.STALLED_SECONDS)
            stalled = select_stalled()
        for warning in await list_install_warnings(api, namespace, stalled):
            warn(warning)

    task = asyncio.create_task(warn_later())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
