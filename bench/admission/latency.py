"""Measures the latency that the admission webhook adds to creating a NodeMaintenance, in small and large clusters."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import costs
from bench.admission.review_load import ALLOWED, REFUSED, WARNED, Latencies, send_reviews
from bench.cases import DrainCase
from bench.findings import Figure
from bench.observer_process import ROOT
from bench.rig import Rig
from bench.workload import Workload
from kube.certificates.ca_injection import TARGET_PATHS
from localcluster.servers import LOOPBACK

REQUESTS_PER_SECOND, DURATION_SECONDS = 50, 10
CACHED_LIMIT_MS, LISTED_LIMIT_MS = 20.0, 150.0
"""Maximum 99th percentiles in milliseconds: for reviews from the watch cache, and for reviews that list pods."""
POD_COUNT = 100
MAX_NODES = 100
"""Maximum number of nodes for which the reviews create NodeMaintenances."""


def measure_latency(rig: Rig, name: str, free_nodes: Sequence[str], maintained_nodes: Sequence[str]) -> list[Figure]:
    """Return the webhook's latency and CPU time for each kind of response, and the no-op webhook's latency.

    Raises `RuntimeError` if a response is not of the expected kind.

    Args:
        name: The name of the case.
        free_nodes: Names of nodes without a maintenance.
        maintained_nodes: Names of nodes with a maintenance.
    """
    [full_node, *empty_nodes] = free_nodes
    workload = Workload(rig.client, DrainCase(name, pods=POD_COUNT), [full_node], full_node)
    workload.deploy()
    expected_responses: list[tuple[str, str, Sequence[str], float]] = [
        (REFUSED, "an unknown node", ["no-such-node"], CACHED_LIMIT_MS),
        *(
            [(REFUSED, "a second maintenance", maintained_nodes[:MAX_NODES], CACHED_LIMIT_MS)]
            if maintained_nodes
            else []
        ),
        (ALLOWED, "a node without pods", empty_nodes[:MAX_NODES], CACHED_LIMIT_MS),
        (WARNED, f"a node with {POD_COUNT} pods", [full_node], LISTED_LIMIT_MS),
    ]
    load_average = os.getloadavg()[0]
    figures: list[Figure] = [("load average of the machine at the start", round(load_average, 1), None)]
    with start_noop_webhook(rig) as url:
        figures += _build_figures("floor", _send_reviews(rig, url, empty_nodes[:MAX_NODES], ALLOWED), None)
        for expected_response, description, nodes, limit in expected_responses:
            label, cpu_before = f"{expected_response}, {description}", costs.measure_cpu(rig)["validate"]
            latencies = _send_reviews(rig, get_webhook_url(rig), nodes, expected_response)
            figures += _build_figures(label, latencies, limit)
            cpu_milliseconds = (costs.measure_cpu(rig)["validate"] - cpu_before) / len(latencies.milliseconds) * 1000
            figures.append((f"{label}: CPU milliseconds per request", round(cpu_milliseconds, 1), None))
        figures += _build_figures("floor, at the end", _send_reviews(rig, url, empty_nodes[:MAX_NODES], ALLOWED), None)
    workload.delete()
    return figures


def get_webhook_url(rig: Rig) -> str:
    """Return the webhook's URL from the ValidatingWebhookConfiguration."""
    [hook] = rig.client.get(f"{TARGET_PATHS['ValidatingWebhookConfiguration']}/nodemaintenance-validate")["webhooks"]
    return str(hook["clientConfig"]["url"])


@contextmanager
def start_noop_webhook(rig: Rig) -> Iterator[str]:
    """Start the no-op webhook with the admission webhook's certificate, and yield its URL."""
    command = [sys.executable, "-m", "bench.admission.noop_webhook", str(_get_certificates_dir(rig)), LOOPBACK]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout  # noqa: S101 - set because of stdout=PIPE
        try:
            yield f"https://{LOOPBACK}:{int(process.stdout.readline())}/validate"
        finally:
            process.terminate()


def _get_certificates_dir(rig: Rig) -> Path:
    return rig.directory / "product" / "admission"


def _send_reviews(rig: Rig, url: str, nodes: Sequence[str], expected_response: str) -> Latencies:
    latencies = asyncio.run(
        send_reviews(url, _get_certificates_dir(rig) / "ca.crt", nodes, REQUESTS_PER_SECOND, DURATION_SECONDS)
    )
    latencies.check_responses(expected_response)
    return latencies


def _build_figures(label: str, latencies: Latencies, limit: float | None) -> list[Figure]:
    return [
        (f"{label}: milliseconds, median", round(latencies.median, 1), None),
        (f"{label}: milliseconds, 99th percentile", round(latencies.p99, 1), limit),
    ]
