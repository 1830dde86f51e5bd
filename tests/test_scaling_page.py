"""Tests that docs/scaling.md shows the measured values, that its arithmetic is right, and that its overlay renders."""

from __future__ import annotations

import re
import statistics
from pathlib import Path

import pytest

from bench.page.__main__ import SHOWN_RESULTS_FILE
from bench.results import compute_median_cost, compute_medians, group_rounds, read_results
from tests.manifests.rendering import MANIFESTS, ROOT, render_yaml

PAGE = (ROOT / "docs/scaling.md").read_text()
ROUNDS = group_rounds(read_results(SHOWN_RESULTS_FILE).rounds)
NODES, TEN_PODS, HUNDRED_NODES = "20 nodes at once with 5 s termination", "10 pods", "100 nodes at once"
LARGEST, SERIAL = "100 nodes at once with 100 pods each", "30 pods behind a budget of 1"
PROCESSES_BY_ROW = {
    "CPU of `begin`, `cordon`, `taint`, `guard`, `restore`": ("begin", "cordon", "taint", "guard", "restore"),
    "CPU of `evict`, `status`, `record`": ("evict", "status", "record"),
    "CPU of PodSource, both ApiServerSources": ("podsource", r"(apiserversource-)?(maintenances|nodes)(-\w+)*"),
    "CPU of RabbitMQ's server; ingress, filter and dispatchers": ("rabbitmq", r".*(ingress|filter|dispatcher)"),
    "CPU of the API server, etcd": ("kube-apiserver", "etcd"),
    "CPU of the whole cluster": (".*",),
}
"""Map from row of the table of measured costs to pattern of the names of its processes."""


def compute_cost(case: str, kind: str, pattern: str = ".*", engine: str = "local") -> float:
    """Return a case's median cost: the total, or the sum of the parts that match `pattern`."""
    rounds = ROUNDS[engine, case, "ours"]
    if pattern == ".*":
        return compute_median_cost(rounds, kind)
    return sum(cost for part, cost in compute_medians(rounds, kind).items() if re.fullmatch(pattern, part))


def compute_median_seconds(engine: str, case: str) -> float:
    return statistics.median(measured_round.seconds for measured_round in ROUNDS[engine, case, "ours"])


def format_cell(values: list[float]) -> str:
    return ", ".join(f"{value:.4g}" for value in values)


def test_costs_on_scaling_page_match_benchmark_results() -> None:
    """Check each row of the table of measured costs; a failure shows the rows to write into the page."""
    engines = ("rabbitmq", "knative")
    rows = [
        f"| {name} | {' | '.join(format_cell([compute_cost(NODES, kind, engine=engine) / 20]) for engine in engines)} |"
        for name, kind in (("events", "events"), ("API requests", "requests"))
    ]
    for name, patterns in PROCESSES_BY_ROW.items():
        cells = [[compute_cost(NODES, "cpu", pattern, engine) * 50 for pattern in patterns] for engine in engines]
        rows.append(f"| {name} | {' | '.join(map(format_cell, cells))} |")

    assert [row for row in rows if row not in PAGE] == []


def test_other_values_on_scaling_page_match_benchmark_results() -> None:
    """Check each row of the table of other measured values."""
    kinds = ("events", "requests", "cpu")
    evicted, created = "dev.nodemaintenance.pods.evicted", "create pods/eviction"
    passes = compute_cost(SERIAL, "events", evicted) - compute_cost(TEN_PODS, "events", evicted)
    evictions = compute_cost(SERIAL, "requests", created) - compute_cost(TEN_PODS, "requests", created)
    serial = [compute_cost(SERIAL, kind) - compute_cost(TEN_PODS, kind) for kind in kinds]
    patches = ("patch nodemaintenances", "patch nodemaintenances/status")
    writes = [compute_cost(NODES, "requests", patch, "rabbitmq") / 20 for patch in patches]
    memory = [compute_cost(case, "memory", "podsource") for case in (TEN_PODS, HUNDRED_NODES)]
    values = {
        "events, requests, CPU": [compute_cost("20 nodes at once", kind) / 20 for kind in kinds],
        "CPU ms of an eviction:": [
            (compute_cost(LARGEST, "cpu", part) - compute_cost(HUNDRED_NODES, "cpu", part)) / 9
            for part in (".*", "kube-apiserver", "functions", "podsource")
        ],
        "CPU ms of an eviction on": [(compute_cost("100 pods", "cpu") - compute_cost(TEN_PODS, "cpu")) / 0.09],
        "events, requests of": [serial[0] / passes, (serial[1] - evictions) / passes],
        "MiB of PodSource:": [memory[0], (memory[1] - memory[0]) / 99],
        "seconds of a drain": [compute_median_seconds("rabbitmq", TEN_PODS)],
        "seconds until": [compute_cost(NODES, "waits", "median", "rabbitmq")],
        "status writes": [writes[1], 1 + sum(writes)],
    }
    for name, expected in values.items():
        (cell,) = re.findall(rf"^\| {name}[^|]* \| ([^|]+) \|", PAGE, re.MULTILINE)
        assert [float(value) for value in cell.split(", ")] == pytest.approx(expected, rel=0.015), name
    assert passes == 29


def test_calculations_on_scaling_page_are_correct() -> None:
    """Check that each calculation has the stated result, and that its decimal inputs are values on the page."""
    calculations = re.findall(r"((?:\(?[\d.,]+\)*[ \n]+[-+×/][ \n]+)+\(?[\d.,]+\)*) = ([\d.,]*\d)", PAGE)
    inputs = {number for cell in re.findall(r"\| ([\d., ]+) (?=\|)", PAGE) for number in cell.split(", ")}
    inputs |= {result for _, result in calculations}
    assert len(calculations) > 45
    for expression, result in calculations:
        formula = expression.replace(",", "").replace("×", "*").replace("\n", " ")
        computed = eval(formula)  # noqa: S307 - the pattern admits only numbers and operators
        rounding = 0.5 * 10 ** -len(result.partition(".")[2])
        assert computed == pytest.approx(float(result.replace(",", "")), rel=0.01, abs=rounding), expression
        assert set(re.findall(r"\d+\.\d+", formula)) <= inputs, expression


def test_model_errors_on_scaling_page_match_benchmark_results() -> None:
    """Check the measured values and the errors in the table that compares the cost model with the largest cases."""
    rows = re.findall(r"^\| (\w+): ([^|]+) \| (\w+) \| .* = ([\d.,]+) \| ([\d.]+) \| (-?\d+) % \|$", PAGE, re.MULTILINE)
    assert len(rows) == 7
    for engine, case, kind, model, measured, error in rows:
        value = compute_median_seconds(engine, case) if kind == "seconds" else compute_cost(case, kind, engine=engine)
        assert float(measured) == pytest.approx(value, rel=0.001), case
        assert round((float(model.replace(",", "")) / value - 1) * 100) == pytest.approx(int(error), abs=1)


def test_documented_overlay_applies_every_setting(tmp_path: Path) -> None:
    """Check that the documented overlay renders, and that each of its patches changes the intended objects."""
    (overlay,) = re.findall(r"```yaml\n(.*?)```", PAGE, re.DOTALL)
    relative = f"{'../' * len(tmp_path.parts[1:])}{MANIFESTS.relative_to('/')}"
    (tmp_path / "kustomization.yaml").write_text(overlay.replace("../manifests", relative))
    text = render_yaml(tmp_path)

    changes = {
        'max-scale: "1"': 4,
        'min-scale: "2"': 4,
        'parallelism: "32"': 7,
        'name: EVICTIONS_PER_SECOND\n          value: "150"': 1,
        'cpu: "1"\n            memory: 1Gi': 1,
        "name: DATABASE_URL": 1,
    }
    assert {change: text.count(change) for change in changes} == changes
