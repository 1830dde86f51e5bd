"""Sends AdmissionReviews as the API server would, at a constant rate that does not depend on the measured latency."""

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
"""Number of requests that open connections before the measurement; the API server also keeps its connections open."""
MAX_CONNECTIONS = 20
ALLOWED, WARNED, REFUSED = "allowed", "warned", "refused"
"""The kinds of responses: allowed without a warning, allowed with a warning, or denied."""


@dataclass(frozen=True)
class Latencies:
    """The latency of each request in milliseconds, and the numbers of denied requests and requests with a warning."""

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

    def check_responses(self, expected_response: str) -> None:
        """Raise `RuntimeError` unless all responses are of the expected kind, because the kinds differ in latency."""
        count = len(self.milliseconds)
        expected_counts = {ALLOWED: (0, 0), WARNED: (0, count), REFUSED: (count, 0)}[expected_response]
        if (self.refused, self.warned) != expected_counts:
            counts = f"{self.refused} were {REFUSED} and {self.warned} {WARNED}"
            raise RuntimeError(f"expected all {count} reviews to be {expected_response}: {counts}")


def build_review_request(node: str, request_number: int) -> Object:
    """Build the AdmissionReview for the creation of a NodeMaintenance for this node."""
    (maintenance,) = build_maintenances([f"review-{request_number}"], [node], "benchmark")
    resource = {"group": "nodemaintenance.medik8s.io", "version": "v1beta1", "resource": "nodemaintenances"}
    request = {"uid": f"review-{request_number}", "operation": "CREATE", "resource": resource, "object": maintenance}
    return {"apiVersion": API_VERSION, "kind": "AdmissionReview", "request": request}


async def send_reviews(
    url: str, ca: Path, nodes: Sequence[str], requests_per_second: int, duration_seconds: int
) -> Latencies:
    """Send reviews for the nodes in turn; return the latencies. Raises `RuntimeError` if a status is not 200."""
    context = ssl.create_default_context(cafile=str(ca))
    async with ClientSession(connector=TCPConnector(ssl=context, limit=MAX_CONNECTIONS)) as session:

        async def send_review(request_number: int) -> Object:
            body = build_review_request(nodes[request_number % len(nodes)], request_number)
            async with session.post(url, json=body) as response:
                if response.status != 200:
                    raise RuntimeError(f"webhook {url} returned status {response.status}: {await response.text()}")
                review_response: Object = (await response.json())["response"]
                return review_response

        await asyncio.gather(*map(send_review, range(WARMUP_REQUESTS)))
        return await call_at_constant_rate(send_review, requests_per_second, requests_per_second * duration_seconds)


async def call_at_constant_rate(
    call: Callable[[int], Awaitable[Object]], calls_per_second: int, count: int
) -> Latencies:
    """Call `call` at a constant rate, even while earlier calls run; measure each latency from the scheduled time."""
    loop, milliseconds = asyncio.get_running_loop(), list[float]()
    started_at = loop.time()

    async def call_and_measure(call_number: int) -> Object:
        response = await call(call_number)
        milliseconds.append((loop.time() - started_at - call_number / calls_per_second) * 1000)
        return response

    tasks = []
    for number in itertools.islice(itertools.count(), count):
        await asyncio.sleep(max(0.0, started_at + number / calls_per_second - loop.time()))
        tasks.append(asyncio.create_task(call_and_measure(number)))
    responses = await asyncio.gather(*tasks)
    refused = sum(not response["allowed"] for response in responses)
    return Latencies(milliseconds, refused, sum(bool(response.get("warnings")) for response in responses))
