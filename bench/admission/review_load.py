"""Sends AdmissionReviews as the API server does, at a constant rate regardless of latency, and measures the latency."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientSession, TCPConnector

from bench.drainers import build_maintenances
from kube.admission.reviews import API_VERSION
from kube.paths import Object

WARMUP_REQUESTS = 20
"""Concurrent requests before the measurement, which open the connections; the API server also keeps its own open."""
MAX_CONNECTIONS = 20
ALLOWED, WARNED, REFUSED = "allowed", "warned", "refused"
"""The kinds of responses: allowed without a warning, allowed with warnings, or refused."""


@dataclass(frozen=True)
class Latencies:
    """The latency of each request in milliseconds, and the numbers of refused and of warned requests."""

    milliseconds: Sequence[float]
    refused: int = 0
    warned: int = 0

    @property
    def median(self) -> float:
        """Return the median latency."""
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        """Return the 99th percentile of the latency."""
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def check_answers(self, expected_response: str) -> None:
        """Raise `RuntimeError` unless every request got this response; otherwise the latencies are meaningless."""
        count = len(self.milliseconds)
        expected_counts = {ALLOWED: (0, 0), WARNED: (0, count), REFUSED: (count, 0)}[expected_response]
        if (self.refused, self.warned) != expected_counts:
            counts = f"{self.refused} were {REFUSED} and {self.warned} {WARNED}"
            raise RuntimeError(f"expected all {count} reviews to be {expected_response}: {counts}")


def build_review(node: str, number: int) -> Object:
    """Return the AdmissionReview for the creation of a NodeMaintenance for this node."""
    (maintenance,) = build_maintenances([f"review-{number}"], [node], "benchmark")
    resource = {"group": "nodemaintenance.medik8s.io", "version": "v1beta1", "resource": "nodemaintenances"}
    request = {"uid": f"review-{number}", "operation": "CREATE", "resource": resource, "object": maintenance}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request}


async def send_reviews(
    url: str, ca: Path, nodes: Sequence[str], requests_per_second: int, duration_seconds: int
) -> Latencies:
    """Send reviews for these nodes in turn. Raises `RuntimeError` if a response status is not 200."""
    context = ssl.create_default_context(cafile=str(ca))
    async with ClientSession(connector=TCPConnector(ssl=context, limit=MAX_CONNECTIONS)) as session:

        async def send_review(number: int) -> Object:
            body = build_review(nodes[number % len(nodes)], number)
            async with session.post(url, json=body) as response:
                if response.status != 200:
                    raise RuntimeError(f"webhook {url} returned status {response.status}: {await response.text()}")
                review_response: Object = (await response.json())["response"]
                return review_response

        await asyncio.gather(*map(send_review, range(WARMUP_REQUESTS)))
        return await run_at_rate(send_review, requests_per_second, requests_per_second * duration_seconds)


async def run_at_rate(call: Callable[[int], Awaitable[Object]], calls_per_second: int, count: int) -> Latencies:
    """Call `call` at a constant rate, even while earlier calls still run; measure latency from the scheduled time."""
    loop, milliseconds = asyncio.get_running_loop(), list[float]()
    started_at = loop.time()

    async def call_timed(number: int) -> Object:
        response = await call(number)
        milliseconds.append((loop.time() - started_at - number / calls_per_second) * 1000)
        return response

    tasks = []
    for number in itertools.islice(itertools.count(), count):
        await asyncio.sleep(max(0.0, started_at + number / calls_per_second - loop.time()))
        tasks.append(asyncio.create_task(call_timed(number)))
    responses = await asyncio.gather(*tasks)
    refused = sum(not response["allowed"] for response in responses)
    return Latencies(milliseconds, refused, sum(bool(response.get("warnings")) for response in responses))
