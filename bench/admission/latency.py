"""Latency that the webhook adds to a creation: on a small cluster, and with 1000 nodes and 500 maintenances."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from bench import costs
from bench.admission.review_load import ALLOWED, REFUSED, WARNED, Waits, ask
from bench.cases import Case
from bench.workload import Load
from bench.rig import Rig
from bench.observer_process import ROOT
from kube.certificates.ca_injection import CARRIERS
from localcluster.servers import LOOPBACK

Figure = tuple[str, float, float | None]
"""A label, a value, and its limit if there is one."""
RATE, SECONDS = 50, 10
WATCHED, LISTED = 20.0, 150.0
"""Limits of the 99th percentile in milliseconds: for answers from the watch cache, and for answers that need a list."""
PODS = 100
FREE = 100
"""Maximum number of nodes that the requests iterate over."""


def measure(rig: Rig, name: str, free: Sequence[str], taken: Sequence[str]) -> list[Figure]:
    """Return the latencies of each kind of answer.

    Raises `RuntimeError` if an answer is not the expected one.

    Args:
        name: The name of the case.
        free: Nodes without a maintenance.
        taken: Nodes with a maintenance.
    """
    [full, *empty] = free
    load = Load(rig.cluster, Case(name, pods=PODS), [full], full)
    load.fill()
    answered: list[tuple[str, str, Sequence[str], float]] = [
        (REFUSED, "an unknown node", ["nobody-knows-it"], WATCHED),
        *([(REFUSED, "a second maintenance", taken[:FREE], WATCHED)] if taken else []),
        (ALLOWED, "a node without pods", empty[:FREE], WATCHED),
        (WARNED, f"a node with {PODS} pods", [full], LISTED),
    ]
    load_average = os.getloadavg()[0]
    figures: list[Figure] = [("load of the machine at the beginning", round(load_average, 1), None)]
    with floor(rig) as url:
        figures += _of("floor", _asked(rig, url, empty[:FREE], ALLOWED), None)
        for answer, about, nodes, limit in answered:
            what, before = f"{answer}, {about}", costs.cpu(rig)["validate"]
            waits = _asked(rig, webhook_url(rig), nodes, answer)
            figures += _of(what, waits, limit)
            spent = (costs.cpu(rig)["validate"] - before) / len(waits.milliseconds) * 1000
            figures.append((f"{what}: milliseconds of a core", round(spent, 1), None))
        figures += _of("floor, at last", _asked(rig, url, empty[:FREE], ALLOWED), None)
    load.clear()
    return figures


def webhook_url(rig: Rig) -> str:
    """Return the webhook's URL from its configuration."""
    [hook] = rig.cluster.get(f"{CARRIERS['ValidatingWebhookConfiguration']}/nodemaintenance-validate")["webhooks"]
    return str(hook["clientConfig"]["url"])


@contextmanager
def floor(rig: Rig) -> Iterator[str]:
    """Start the no-op webhook with the real webhook's certificate, and yield its URL."""
    command = [sys.executable, "-m", "bench.admission.noop_webhook", str(_certificates(rig)), LOOPBACK]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout  # noqa: S101 - it is a pipe
        try:
            yield f"https://{LOOPBACK}:{int(process.stdout.readline())}/validate"
        finally:
            process.terminate()


def _certificates(rig: Rig) -> Path:
    return rig.directory / "product" / "admission"


def _asked(rig: Rig, url: str, nodes: Sequence[str], answer: str) -> Waits:
    waits = asyncio.run(ask(url, _certificates(rig) / "ca.crt", nodes, RATE, SECONDS))
    waits.must_be(answer)
    return waits


def _of(what: str, waits: Waits, limit: float | None) -> list[Figure]:
    return [
        (f"{what}: milliseconds, median", round(waits.median, 1), None),
        (f"{what}: milliseconds, 99 of 100", round(waits.p99, 1), limit),
    ]
