"""Sends AdmissionReviews as the API server does, at a constant rate whatever the latency, and measures the latency."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientSession, TCPConnector

from bench.drainers import maintenances
from kube.admission.reviews import VERSION
from kube.paths import Object

WARM = 20
"""Concurrent requests before the measurement, which open the connections, as the API server keeps them open."""
CONNECTIONS = 20
ALLOWED, WARNED, REFUSED = "allowed", "warned", "refused"
"""The kinds of answers: allowed without a warning, allowed with warnings, or refused."""


@dataclass(frozen=True)
class Waits:
    """The latency of each request in milliseconds, and the numbers of refusals and of answers with a warning."""

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

    def must_be(self, answer: str) -> None:
        """Raise `RuntimeError` unless every request got this answer; otherwise the latencies are meaningless."""
        count = len(self.milliseconds)
        wanted = {ALLOWED: (0, 0), WARNED: (0, count), REFUSED: (count, 0)}[answer]
        if (self.refused, self.warned) != wanted:
            found = f"{self.refused} were {REFUSED} and {self.warned} {WARNED}"
            raise RuntimeError(f"each of {count} questions was to be {answer}, and {found}")


def review(node: str, number: int) -> Object:
    """Return the AdmissionReview of a new NodeMaintenance for this node."""
    (wanted,) = maintenances([f"asked-{number}"], [node], "the bench asks")
    resource = {"group": "nodemaintenance.medik8s.io", "version": "v1beta1", "resource": "nodemaintenances"}
    request = {"uid": f"question-{number}", "operation": "CREATE", "resource": resource, "object": wanted}
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "request": request}


async def ask(url: str, ca: Path, nodes: Sequence[str], rate: int, seconds: int) -> Waits:
    """Send reviews for these nodes in turn. Raises `RuntimeError` for an answer that is not a review."""
    context = ssl.create_default_context(cafile=str(ca))
    async with ClientSession(connector=TCPConnector(ssl=context, limit=CONNECTIONS)) as session:

        async def one(number: int) -> Object:
            body = review(nodes[number % len(nodes)], number)
            async with session.post(url, json=body) as answered:
                if answered.status != 200:
                    raise RuntimeError(f"{url} answered {answered.status}: {await answered.text()}")
                response: Object = (await answered.json())["response"]
                return response

        await asyncio.gather(*map(one, range(WARM)))
        return await paced(one, rate, rate * seconds)


async def paced(one: Callable[[int], Awaitable[Object]], rate: int, count: int) -> Waits:
    """Call `one` at a constant rate, even while earlier calls still run; measure each latency from the due time."""
    loop, milliseconds = asyncio.get_running_loop(), list[float]()
    begun = loop.time()

    async def timed(number: int) -> Object:
        response = await one(number)
        milliseconds.append((loop.time() - begun - number / rate) * 1000)
        return response

    tasks = []
    for number in itertools.islice(itertools.count(), count):
        await asyncio.sleep(max(0.0, begun + number / rate - loop.time()))
        tasks.append(asyncio.create_task(timed(number)))
    responses = await asyncio.gather(*tasks)
    refused = sum(not response["allowed"] for response in responses)
    return Waits(milliseconds, refused, sum(bool(response.get("warnings")) for response in responses))
