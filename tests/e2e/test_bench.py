"""The bench itself, on clusters of its own, with as few rounds as there can be."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from localcluster.up import folder

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.e2e


@contextmanager
def bench(tmp_path: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """The bench at work, its progress on a pipe; whatever happens, it is asked to end."""
    command = [sys.executable, "-m", "bench", "--rounds", "1", "--results", str(tmp_path / "results.json"), *words]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, cwd=ROOT, stdout=pipe, stderr=pipe, text=True) as process:
        try:
            yield process
        finally:
            process.terminate()


def results(tmp_path: Path) -> dict[str, Any]:
    """What it wrote."""
    found: dict[str, Any] = json.loads((tmp_path / "results.json").read_text())
    return found


def said(process: subprocess.Popen[str], pattern: str) -> str:
    """What the first group of the pattern is, in the first line of progress that has it."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found.group(1)
    raise AssertionError(f"the bench ended: {''.join(lines)}")


def test_the_bench_measures_all_ways_and_what_ours_costs(tmp_path: Path) -> None:
    """A row for each way, in seconds that can be; events, requests and CPU of ours alone."""
    with bench(tmp_path, "--cases", "10 pods") as process:
        shown, progress = process.communicate(timeout=200)
    assert process.returncode == 0, progress
    rounds = {each["way"]: each for each in results(tmp_path)["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor"}
    assert all(0 < each["seconds"] < 60 for each in rounds.values())
    assert all(f"| {way} |" in shown for way in rounds)
    assert "| local | 10 pods | hints |" in shown
    costs = rounds["ours"]["costs"]
    assert costs["requests"]["create pods/eviction"] == 10
    assert costs["events"]["dev.nodemaintenance.node.drained"] in (1, 2)  # a hint may come late
    assert costs["cpu"]["functions"] > 0
    assert costs["memory"]["podsource"] > 0
    assert 0 < costs["waits"]["median"] <= costs["waits"]["longest"]
    assert rounds["floor"]["costs"] == {}


def test_rest_is_looked_at_for_a_minute(tmp_path: Path) -> None:
    """Ticks come, and beside them nothing happens that makes an event."""
    with bench(tmp_path, "--cases", "nothing to do") as process:
        shown, progress = process.communicate(timeout=200)
    assert process.returncode == 0, progress
    figures = {each["what"]: each["value"] for each in results(tmp_path)["findings"]}

    assert figures["ticks, meanwhile"] in (3, 4, 5)
    assert figures["events between ticks"] == figures["journal rows between ticks"] == 0
    assert figures["requests of a tick, median"] > 0
    assert 0 < figures["cores of the API server"] < 2
    assert "| local | nothing to do | events between ticks | 0 | 0 |" in shown


def test_a_case_that_fails_is_a_line_and_the_others_are_measured(tmp_path: Path) -> None:
    """Here its observer is killed. The next case has a cluster of its own, and the exit status tells of the failure."""
    with bench(tmp_path, "--cases", "10 pods,5 nodes at once") as process:
        said(process, "^(local: 10 pods)$")
        os.kill(observer(process.pid), signal.SIGKILL)
        shown, progress = process.communicate(timeout=200)

    assert process.returncode == 1, progress
    line = "local: 10 pods: not measured: RuntimeError: the observer has ended"
    assert line in shown
    assert line in progress
    assert "Traceback" not in progress
    assert {each["case"] for each in results(tmp_path)["rounds"]} == {"5 nodes at once"}
    assert [each["case"] for each in results(tmp_path)["failures"]] == ["10 pods"]


def observer(bench: int) -> int:
    """The process that watches for the bench of that process id."""
    children = Path(f"/proc/{bench}/task/{bench}/children").read_text().split()
    (found,) = [child for child in children if b"bench.observer" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(found)


def test_a_bench_that_is_terminated_takes_its_cluster_down(tmp_path: Path) -> None:
    with bench(tmp_path, "--cases", "100 pods") as process:
        directory = Path(said(process, r"^export KUBECONFIG=(.*)/kubeconfig$"))
        said(process, "^(local: 100 pods)$")
        process.terminate()
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM
    assert folder.supervisors(directory) == []
    assert not directory.parent.exists()
