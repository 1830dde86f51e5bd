"""Durations of the functions' requests in all tests on one engine, including those of killed processes."""

from __future__ import annotations

from collections.abc import Mapping

import requests
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from localcluster.engine_product import EngineProduct

BUCKET_SECONDS = ("0.1", "0.5", "1.0", "2.0", "5.0", "10.0", "+Inf")
"""Upper bounds in seconds of the buckets of `nodemaintenance_function_seconds`."""


class FunctionDurations:
    """The last metrics of every function process that was read."""

    def __init__(self, product: EngineProduct) -> None:
        self._product = product
        self._counts_by_process: dict[tuple[str, float], Mapping[str, int]] = {}

    def record(self, *function_names: str) -> None:
        """Read the metrics of these functions, by default of all; call this before a process is killed."""
        for name in function_names or self._product.functions:
            text = requests.get(f"{self._product.get_function_url(name)}metrics", timeout=10).text
            families = {family.name: family for family in text_string_to_metric_families(text)}
            started = families["process_start_time_seconds"].samples[0].value
            self._counts_by_process[name, started] = _read_buckets(families["nodemaintenance_function_seconds"])

    def count_requests(self, function_name: str = "") -> int:
        """Return the number of requests to a function, by default to all."""
        return sum(counts["+Inf"] for name, counts in self._sum_processes().items() if function_name in ("", name))

    def count_slow_requests(self, limit: str) -> dict[str, int]:
        """Return function → number of its requests that took longer than `limit` seconds, without zeros."""
        slow = {name: counts["+Inf"] - counts[limit] for name, counts in self._sum_processes().items()}
        return {name: count for name, count in slow.items() if count}

    def __str__(self) -> str:
        """Return one line for each function."""
        return "\n".join(
            f"{name:8} {counts['+Inf']:6d} requests; "
            + ", ".join(f"{counts[limit]:6d} within {limit} s" for limit in BUCKET_SECONDS[:-1])
            for name, counts in self._sum_processes().items()
        )

    def _sum_processes(self) -> dict[str, dict[str, int]]:
        totals: dict[str, dict[str, int]] = {}
        for (name, _), counts in self._counts_by_process.items():
            before = totals.setdefault(name, dict.fromkeys(BUCKET_SECONDS, 0))
            totals[name] = {limit: before[limit] + counts[limit] for limit in BUCKET_SECONDS}
        return totals


def _read_buckets(family: Metric) -> dict[str, int]:
    counts = dict.fromkeys(BUCKET_SECONDS, 0)
    for sample in family.samples:
        if sample.name.endswith("_bucket") and sample.labels["le"] in counts:
            counts[sample.labels["le"]] += int(sample.value)
    return counts
