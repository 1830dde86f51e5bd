"""`make fuzz` sends thousands of invalid requests to a running product's endpoints, and compares drain times.

Usage: `python -m tests.fuzz TRIES SEED`; the same seed gives the same requests. Half of the events name an existing
maintenance. The exit status is 1 if there is a finding: an exited process, a 5xx status, a traceback, or a drain that
takes twice as long as before.
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

from eventing.events import ATTEMPTS_MADE, KNOWN_TYPES, ObjectReference
from functions.app import FUNCTIONS
from kube.maintenance.groups import GROUPS
from localcluster import product as localproduct
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment
from tests.invalid_events import TEXTS, InvalidEventGenerator

DRAIN_COUNT = 3
PAGES = (
    *("/", "/nodes", "/nodes/{}", "/live/nodes/{}", "/start", "/stop", "/events", "/events/{}", "/events/{}/replay"),
    *(
        "/timeline/{}",
        "/dead-letters",
        "/dead-letters/redrive",
        "/dead-letters/discard",
        "/dead-letters/redrive/{}",
        "/health/readiness",
        "/{}",
    ),
    *("/events/tail", "/events/{}?tab=json", "/certificates", "/cpu-labels"),
)
FORM_FIELDS = (
    "node",
    "name",
    "maintenance",
    "type",
    "since",
    "until",
    "failed",
    "group",
    "reason",
    "letter",
    "confirm",
)
MAX_SLOWDOWN = 2.0
"""Maximum ratio of drain times after and before the requests; a factor of two allows for other load on the machine."""
RequestSender = Callable[[requests.Session], requests.Response]


class RandomRequests:
    """An endless iterable of the product's endpoints, each with a function that sends a random request to it."""

    def __init__(
        self, product: Product, console: WebConsole, random: Random, maintenance: ObjectReference, node: str
    ) -> None:
        self._product, self._console, self._random = product, console, random
        self._generator = InvalidEventGenerator(random, maintenance, node)

    def __iter__(self) -> Iterator[tuple[str, RequestSender]]:
        """Yield endlessly an endpoint's name, and a function that sends a random request to this endpoint."""
        while True:
            yield "broker", self._build_event_request(self._product.broker_url, KNOWN_TYPES)
            for name, function in FUNCTIONS.items():
                event_types = function.consumes or (*KNOWN_TYPES, ATTEMPTS_MADE)
                yield name, self._build_event_request(self._product.get_function_url(name), event_types)
            yield "console", self._build_page_request()

    def _build_event_request(self, url: str, event_types: tuple[str, ...]) -> RequestSender:
        request = self._generator.build_request(event_types)
        return lambda session: session.post(url, request.body, headers=dict(request.headers), timeout=30)

    def _build_page_request(self) -> RequestSender:
        random = self._random
        page = random.choice(PAGES).replace("{}", quote(_choose_text(random)) or "1")
        fields = {random.choice(FORM_FIELDS): _choose_text(random) for _ in range(random.randrange(4))}
        url, post = f"{self._console.url}{page}", random.random() < 0.3
        if post:
            return lambda session: session.post(url, data=fields, timeout=30)
        return lambda session: session.get(url, params=fields, timeout=30, allow_redirects=False)


def _choose_text(random: Random) -> str:
    return random.choice((*TEXTS, "1", "2", "30")).encode(errors="replace").decode()


def run_fuzz(request_count: int, seed: int) -> list[str]:
    """Send the random requests, and return the findings."""
    folder = Path(tempfile.mkdtemp(prefix="fuzz-"))
    with LocalCluster(folder / "servers", nodes=1) as cluster:
        localproduct.install_manifests(cluster, with_v1alpha1=True)
        with Product(cluster, folder / "product") as product:
            environment = EventChainEnvironment(cluster, product)
            urls = {"functions_url": product.functions_url, "broker_url": product.broker_url}
            with WebConsole(cluster, folder / "product", "--journal", product.journal, **urls) as console:
                findings = _compare_drains(environment, console, request_count, Random(seed))
            environment.client.close()
    return [*findings, *_find_tracebacks(folder)]


def _compare_drains(
    environment: EventChainEnvironment, console: WebConsole, request_count: int, random: Random
) -> list[str]:
    node = environment.create_node()
    environment.create_pods(node, 1, finalizers=["example.com/hold"])
    path = environment.create_maintenance(node, name="fuzzed")
    reference = ObjectReference.from_object(
        environment.wait_for_state(path, lambda maintenance: bool((maintenance.get("status") or {}).get("phase")))
    )
    seconds_before = [_measure_drain_seconds(environment) for _ in range(DRAIN_COUNT)]
    servers = [*environment.product.servers, console.server]
    pids = [server.pid for server in servers]
    response_counts, findings = _send_requests(
        RandomRequests(environment.product, console, random, reference, node), request_count
    )
    environment.wait_until_delivered()
    seconds_after = [_measure_drain_seconds(environment) for _ in range(DRAIN_COUNT)]
    for (endpoint, status), count in sorted(response_counts.items()):
        print(f"{endpoint:10} {status}  {count:6}")
    print(
        f"a drain took {_format_seconds(seconds_before)} s before and {_format_seconds(seconds_after)} s after "
        f"{sum(response_counts.values())} requests"
    )
    if [server.pid for server in servers] != pids or not all(server.is_alive for server in servers):
        findings.append("a process exited")
    if min(seconds_after) > MAX_SLOWDOWN * max(seconds_before):
        findings.append(
            f"a drain takes {min(seconds_after):.2f} s, "
            f"but took at most {max(seconds_before):.2f} s before the requests"
        )
    return findings


def _send_requests(
    requests_by_endpoint: RandomRequests, request_count: int
) -> tuple[Counter[tuple[str, int]], list[str]]:
    """Send the requests; return the number of responses per endpoint and status, and the findings."""
    response_counts: Counter[tuple[str, int]] = Counter()
    findings: list[str] = []
    with requests.Session() as session:
        for number, (endpoint, send_request) in zip(range(request_count), requests_by_endpoint, strict=False):
            try:
                response = send_request(session)
            except requests.RequestException as error:
                findings.append(f"request {number}, {endpoint}: {error}")
                continue
            response_counts[endpoint, response.status_code] += 1
            if response.status_code >= 500 or "Traceback" in response.text:
                findings.append(f"request {number}, {endpoint}: {response.status_code} {response.text[:200]!r}")
    return response_counts, findings


def _measure_drain_seconds(environment: EventChainEnvironment) -> float:
    """Drain a node with ten pods; return the seconds from the maintenance's creation to its phase Succeeded."""
    node = environment.create_node()
    environment.create_pods(node, 10)
    start_time = time.monotonic()
    path = environment.create_maintenance(node, api_version=next(iter(GROUPS)))
    environment.wait_for_state(path)
    duration = time.monotonic() - start_time
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    return duration


def _find_tracebacks(log_directory: Path) -> list[str]:
    """Return the tracebacks in the product's logs, except aiohttp's tracebacks about malformed HTTP."""
    logs = sorted((log_directory / "product").glob("*.log"))
    lines = ((log, line) for log in logs for line in log.read_text(errors="replace").splitlines())
    return [f"{log}: {line[:300]}" for log, line in lines if "Traceback" in line and '"aiohttp.server"' not in line]


def _format_seconds(seconds: list[float]) -> str:
    return ", ".join(f"{value:.2f}" for value in seconds)


if __name__ == "__main__":
    findings = run_fuzz(int(sys.argv[1]), int(sys.argv[2]))
    for finding in findings:
        print(finding, file=sys.stderr)
    raise SystemExit(1 if findings else 0)
