"""Questions as the API server asks them, so many a second whatever the answers take, and how long each one waited."""

from __future__ import annotations

import asyncio
import itertools
import ssl
import statistics
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from aiohttp import ClientSession, TCPConnector

from bench.ways import maintenances
from kube.admission.reviews import VERSION
from kube.paths import Object

WARM = 20
"""Questions at once before the first that counts: the connections are open then, as the API server's are."""
CONNECTIONS = 20
ALLOWED, WARNED, REFUSED = "allowed", "warned", "refused"
"""What is answered: allowed without a warning, allowed with some, or refused."""


@dataclass(frozen=True)
class Waits:
    """Milliseconds that each question waited, and what came of them: refusals, and answers with a warning."""

    milliseconds: Sequence[float]
    refused: int = 0
    warned: int = 0

    @property
    def median(self) -> float:
        """Of all."""
        return statistics.median(self.milliseconds)

    @property
    def p99(self) -> float:
        """What one in a hundred exceeds."""
        ordered = sorted(self.milliseconds)
        return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]

    def must_be(self, answer: str) -> None:
        """Raise `RuntimeError` unless each question had this answer: else the waits are those of something else."""
        count = len(self.milliseconds)
        wanted = {ALLOWED: (0, 0), WARNED: (0, count), REFUSED: (count, 0)}[answer]
        if (self.refused, self.warned) != wanted:
            found = f"{self.refused} were {REFUSED} and {self.warned} {WARNED}"
            raise RuntimeError(f"each of {count} questions was to be {answer}, and {found}")


def review(node: str, number: int) -> Object:
    """The question about a NodeMaintenance for this node."""
    (wanted,) = maintenances([f"asked-{number}"], [node], "the bench asks")
    resource = {"group": "nodemaintenance.medik8s.io", "version": "v1beta1", "resource": "nodemaintenances"}
    request = {"uid": f"question-{number}", "operation": "CREATE", "resource": resource, "object": wanted}
    return {"apiVersion": VERSION, "kind": "AdmissionReview", "request": request}


async def ask(url: str, ca: Path, nodes: Sequence[str], rate: int, seconds: int) -> Waits:
    """Ask about these nodes in turn. Raises `RuntimeError` for an answer that is no review."""
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
    """Call it `rate` times a second, whether or not the ones before have ended; a wait begins when it is due."""
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
