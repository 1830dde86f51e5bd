"""The bench itself, on a cluster of its own, with as few rounds as there can be."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


def test_the_bench_measures_all_ways_and_what_ours_costs(tmp_path: Path) -> None:
    """A row for each way, in seconds that can be; events, requests and CPU of ours alone."""
    words = ["--cases", "10 pods", "--rounds", "1", "--results", str(tmp_path / "results.json")]
    done = subprocess.run(
        [sys.executable, "-m", "bench", *words], cwd=ROOT, capture_output=True, text=True, check=False, timeout=200
    )
    assert done.returncode == 0, done.stderr
    rounds = {each["way"]: each for each in json.loads((tmp_path / "results.json").read_text())["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor"}
    assert all(0 < each["seconds"] < 60 for each in rounds.values())
    assert all(f"| {way} |" in done.stdout for way in rounds)
    assert rounds["ours"]["costs"]["requests"]["POST pods/eviction"] == 10
    assert rounds["ours"]["costs"]["events"]["dev.nodemaintenance.node.drained"] in (1, 2)  # a hint may come late
    assert rounds["ours"]["costs"]["cpu"]["functions"] > 0
    assert rounds["floor"]["costs"] == {}
