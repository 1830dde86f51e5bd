"""Durations of the requests to functions in all tests on one engine, including later killed functions."""

from __future__ import annotations

from collections.abc import Mapping

import requests
from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from localcluster.engine_product import EngineProduct

BUCKET_SECONDS = ("0.1", "0.5", "1.0", "2.0", "5.0", "10.0", "+Inf")
"""Upper bounds, in seconds, of the buckets of the metric `nodemaintenance_function_seconds`."""


class FunctionDurations:
    """The durations of requests to all function processes, as last read from each process's metrics."""

    def __init__(self, product: EngineProduct) -> None:
        self._product = product
        self._counts_by_process: dict[tuple[str, float], Mapping[str, int]] = {}

    def record(self, *function_names: str) -> None:
        """Read the metrics of these functions, or of all; tests must call this method before they kill a function."""
        for name in function_names or self._product.functions:
            text = requests.get(f"{self._product.get_function_url(name)}metrics", timeout=10).text
            families = {family.name: family for family in text_string_to_metric_families(text)}
            start_time = families["process_start_time_seconds"].samples[0].value
            self._counts_by_process[name, start_time] = _read_buckets(families["nodemaintenance_function_seconds"])

    def count_requests(self, function_name: str = "") -> int:
        """Return the number of requests to a function, by default to all functions."""
        return sum(
            counts["+Inf"] for name, counts in self._sum_counts_by_function().items() if function_name in ("", name)
        )

    def count_slow_requests(self, limit_seconds: str) -> dict[str, int]:
        """Return the number of requests longer than `limit_seconds` by function, without functions that have none."""
        slow_counts = {
            name: counts["+Inf"] - counts[limit_seconds] for name, counts in self._sum_counts_by_function().items()
        }
        return {name: count for name, count in slow_counts.items() if count}

    def __str__(self) -> str:
        """Return the histogram as text, with one line per function."""
        return "\n".join(
            f"{name:8} {counts['+Inf']:6d} requests; "
            + ", ".join(f"{counts[limit]:6d} within {limit} s" for limit in BUCKET_SECONDS[:-1])
            for name, counts in self._sum_counts_by_function().items()
        )

    def _sum_counts_by_function(self) -> dict[str, dict[str, int]]:
        totals: dict[str, dict[str, int]] = {}
        for (name, _), counts in self._counts_by_process.items():
            previous_counts = totals.setdefault(name, dict.fromkeys(BUCKET_SECONDS, 0))
            totals[name] = {limit: previous_counts[limit] + counts[limit] for limit in BUCKET_SECONDS}
        return totals


def _read_buckets(family: Metric) -> dict[str, int]:
    counts = dict.fromkeys(BUCKET_SECONDS, 0)
    for sample in family.samples:
        if sample.name.endswith("_bucket") and sample.labels["le"] in counts:
            counts[sample.labels["le"]] += int(sample.value)
    return counts
