"""Measures the web console's costs with many open pages, while the nodes of a large cluster change."""

from __future__ import annotations

import asyncio
import re
import statistics
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from html import unescape

from aiohttp import ClientSession, ClientTimeout, DummyCookieJar, TCPConnector

from bench import costs
from bench.findings import Figure
from bench.rig import Rig
from kube.client.api import Api
from kube.nodes import build_node_path
from localcluster.up import state_directory

VIEWERS, CHANGES_PER_SECOND, DURATION_SECONDS = 50, 10, 30.0
LOADS = 5
"""Number of page loads whose median duration is reported."""
MAX_CORES, MAX_PAGE_SECONDS = 0.5, 1.0
CONSOLE = "console"
"""The name of the console's process in `make up`."""
UPDATE_START = b"event: rows"
"""The beginning of each server-sent event that updates the page."""


def measure_viewer_load(rig: Rig, nodes: Sequence[str]) -> list[Figure]:
    """Load the list of nodes, then keep it open on `VIEWERS` pages while nodes are cordoned and uncordoned.

    Raises `RuntimeError` if a page receives no update, and `ClientResponseError` if a request is rejected.
    """
    return asyncio.run(_measure_viewers(rig, nodes))


async def _measure_viewers(rig: Rig, nodes: Sequence[str]) -> list[Figure]:
    url = _find_console_url(rig)
    timeout = ClientTimeout(total=None, sock_connect=10)
    async with (
        ClientSession(connector=TCPConnector(limit=0), cookie_jar=DummyCookieJar(), timeout=timeout) as session,
        _connect_api(rig) as api,
    ):
        loads = [await _load_page(session, url) for _ in range(LOADS)]
        stream_url = _find_stream_url(url, loads[-1].html)
        streams = [asyncio.create_task(_count_updates(session, stream_url)) for _ in range(VIEWERS)]
        cpu_before, started_at = costs.measure_cpu(rig)[CONSOLE], time.monotonic()
        await _change_nodes(api, nodes)
        cores = (costs.measure_cpu(rig)[CONSOLE] - cpu_before) / (time.monotonic() - started_at)
        load_with_viewers = await _load_page(session, url)
        for stream in streams:
            stream.cancel()
        updates = await asyncio.gather(*streams)
    if not min(updates):
        raise RuntimeError(f"only {sum(map(bool, updates))} of {VIEWERS} open pages received updates")
    return [
        (f"seconds to load the list of {len(nodes)} nodes", _compute_median_seconds(loads), MAX_PAGE_SECONDS),
        (f"the same while {VIEWERS} pages are open", _compute_median_seconds([load_with_viewers]), MAX_PAGE_SECONDS),
        ("updates a second of an open page", round(statistics.median(updates) / DURATION_SECONDS, 1), None),
        ("cores of the console", round(cores, 2), MAX_CORES),
    ]


@asynccontextmanager
async def _connect_api(rig: Rig) -> AsyncIterator[Api]:
    api = await Api.connect(str(rig.kubeconfig))
    try:
        yield api
    finally:
        await api.close()


def _find_console_url(rig: Rig) -> str:
    """Return the console's URL from the output of `make up`. Raises `RuntimeError` if the output has none."""
    match = re.search(r"^console: (\S+)$", state_directory.read_ready_message(rig.directory), re.MULTILINE)
    if match is None:
        raise RuntimeError("the cluster has no console")
    return match[1]


@dataclass(frozen=True)
class PageLoad:
    """The HTML of a loaded list of nodes, and the seconds that loading it took."""

    html: str
    seconds: float


async def _load_page(session: ClientSession, url: str) -> PageLoad:
    started_at = time.monotonic()
    async with session.get(f"{url}/nodes") as response:
        response.raise_for_status()
        return PageLoad(await response.text(), time.monotonic() - started_at)


def _compute_median_seconds(loads: Sequence[PageLoad]) -> float:
    return round(statistics.median(load.seconds for load in loads), 2)


def _find_stream_url(url: str, html: str) -> str:
    """Return the URL of the event stream that the page opens. Raises `RuntimeError` if the page opens none."""
    match = re.search(r'sse-connect="([^"]+)"', html)
    if match is None:
        raise RuntimeError("the list of nodes opens no stream of updates")
    return url + unescape(match[1])


async def _count_updates(session: ClientSession, url: str) -> int:
    """Read an open page's event stream until the task is cancelled; return the number of updates."""
    updates = 0
    try:
        async with session.get(url) as response:
            response.raise_for_status()
            async for line in response.content:
                updates += line.startswith(UPDATE_START)
    except asyncio.CancelledError:
        return updates
    return updates


async def _change_nodes(api: Api, nodes: Sequence[str]) -> None:
    """Cordon and uncordon nodes in turn, with `CHANGES_PER_SECOND` requests per second, for `DURATION_SECONDS`."""
    started_at = time.monotonic()
    for number in range(int(CHANGES_PER_SECOND * DURATION_SECONDS)):
        name = nodes[number // 2 % len(nodes)]
        await api.patch(build_node_path(name), {"spec": {"unschedulable": number % 2 == 0 or None}})
        await asyncio.sleep(max(0.0, started_at + (number + 1) / CHANGES_PER_SECOND - time.monotonic()))
