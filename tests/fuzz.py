"""`make fuzz`: sends thousands of invalid requests to the endpoints of a running product, and compares drain times.

Usage: `python -m tests.fuzz TRIES SEED`; the same seed gives the same requests. Half of the events name an existing
maintenance. The exit status is 1 if there is a finding: an exited process, a 5xx status, a traceback, or a drain that
takes twice as long.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from urllib.parse import quote

import requests

from eventing.event_types import KNOWN
from eventing.events import ATTEMPTS_MADE, Reference
from functions.app import FUNCTIONS
from kube.maintenance.groups import GROUPS
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.web_console import Console
from tests.chain.environment import Scene
from tests.invalid_events import TEXTS, Hostile

DRAINS = 3
PAGES = (
    *("/nodes", "/nodes/{}", "/live/nodes/{}", "/start", "/stop", "/events", "/events/{}", "/events/{}/replay"),
    *("/timeline/{}", "/dead-letters", "/dead-letters/redrive", "/dead-letters/redrive/{}", "/health/readiness", "/{}"),
)
FIELDS = ("node", "name", "maintenance", "type", "since", "until", "failed", "group", "reason", "letter", "confirm")
SLOWER = 2.0
"""Maximum ratio of the drain times; a factor of two allows for a busy machine."""
Door = Callable[[requests.Session], requests.Response]


class Doors:
    """An endless iterator over the endpoints of the product, each with a random request."""

    def __init__(self, product: Product, console: Console, chance: Random, maintenance: Reference, node: str) -> None:
        self._product, self._console, self._chance = product, console, chance
        self._hostile = Hostile(chance, maintenance, node)

    def __iter__(self) -> Iterator[tuple[str, Door]]:
        """Yield an endpoint's name and a function that sends a request to it, without end."""
        while True:
            yield "broker", self._event(self._product.broker_url, KNOWN)
            for name, function in FUNCTIONS.items():
                kinds = function.consumes or (*KNOWN, ATTEMPTS_MADE)
                yield name, self._event(self._product.function_url(name), kinds)
            yield "console", self._page()

    def _event(self, url: str, kinds: tuple[str, ...]) -> Door:
        request = self._hostile.request(kinds)
        return lambda session: session.post(url, request.body, headers=dict(request.headers), timeout=30)

    def _page(self) -> Door:
        chance = self._chance
        page = chance.choice(PAGES).replace("{}", quote(_text(chance)) or "1")
        fields = {chance.choice(FIELDS): _text(chance) for _ in range(chance.randrange(4))}
        url, post = f"{self._console.url}{page}", chance.random() < 0.3
        if post:
            return lambda session: session.post(url, data=fields, timeout=30)
        return lambda session: session.get(url, params=fields, timeout=30, allow_redirects=False)


def _text(chance: Random) -> str:
    return chance.choice((*TEXTS, "1", "2", "30")).encode(errors="replace").decode()


def main(tries: int, seed: int) -> list[str]:
    """Send the requests, and return the findings."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        localproduct.install(cluster, v1alpha1=True)
        with Product(cluster, folder / "product") as product:
            scene = Scene(cluster, product)
            where = {"functions": product.functions_url, "broker": product.broker_url}
            with Console(cluster, folder / "product", "--journal", product.journal, **where) as console:
                found = _fuzzed(scene, console, tries, Random(seed))
            scene.admin.close()
    return [*found, *_tracebacks(folder)]


def _fuzzed(scene: Scene, console: Console, tries: int, chance: Random) -> list[str]:
    node = scene.node()
    scene.pods(node, 1, finalizers=["example.com/hold"])
    path = scene.maintain(node, name="fuzzed")
    reference = Reference.of(scene.reaches(path, lambda item: bool((item.get("status") or {}).get("phase"))))
    before = [_drain(scene) for _ in range(DRAINS)]
    servers = [*scene.product.servers, console.server]
    pids = [server.pid for server in servers]
    answers, found = _asked(Doors(scene.product, console, chance, reference, node), tries)
    scene.await_delivered()
    after = [_drain(scene) for _ in range(DRAINS)]
    for (door, status), count in sorted(answers.items()):
        print(f"{door:10} {status}  {count:6}")
    print(f"a drain took {_listed(before)} s before and {_listed(after)} s after {sum(answers.values())} requests")
    if [server.pid for server in servers] != pids or not all(server.alive for server in servers):
        found.append("a process ended")
    if min(after) > SLOWER * max(before):
        found.append(f"a drain takes {min(after):.2f} s, it took {max(before):.2f} s")
    return found


def _asked(doors: Doors, tries: int) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Send the requests; return the number of responses per endpoint and status, and the findings."""
    answers: Counter[tuple[str, int]] = Counter()
    found: list[str] = []
    with requests.Session() as session:
        for number, (door, ask) in zip(range(tries), doors, strict=False):
            try:
                answer = ask(session)
            except requests.RequestException as error:
                found.append(f"request {number}, {door}: {error}")
                continue
            answers[door, answer.status_code] += 1
            if answer.status_code >= 500 or "Traceback" in answer.text:
                found.append(f"request {number}, {door}: {answer.status_code} {answer.text[:200]!r}")
    return answers, found


def _drain(scene: Scene) -> float:
    """Drain a node with ten pods; return the seconds from the creation of the maintenance to Succeeded."""
    node = scene.node()
    scene.pods(node, 10)
    started = time.monotonic()
    path = scene.maintain(node, group=next(iter(GROUPS)))
    scene.reaches(path)
    took = time.monotonic() - started
    scene.delete(path)
    scene.gone(path)
    return took


def _tracebacks(folder: Path) -> list[str]:
    """Return the tracebacks in the product's logs, except those that aiohttp logs about malformed HTTP."""
    logs = sorted((folder / "product").glob("*.log"))
    lines = ((log, line) for log in logs for line in log.read_text(errors="replace").splitlines())
    return [f"{log}: {line[:300]}" for log, line in lines if "Traceback" in line and '"aiohttp.server"' not in line]


def _listed(seconds: list[float]) -> str:
    return ", ".join(f"{one:.2f}" for one in seconds)


if __name__ == "__main__":
    wrong = main(int(sys.argv[1]), int(sys.argv[2]))
    for line in wrong:
        print(line, file=sys.stderr)
    raise SystemExit(1 if wrong else 0)
