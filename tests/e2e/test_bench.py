"""Tests of the bench itself, on separate clusters and with the minimum of rounds; also with another operator."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest

from localcluster.up import state_directory
from tests.localcluster.commands import soon

ROOT = Path(__file__).parents[2]
CRD = ROOT / "manifests" / "base" / "crds" / "nodemaintenance.medik8s.io.yaml"
OPERATOR = {"OPERATOR": f"{sys.executable} -m tests.bench.small_operator", "OPERATOR_CRD": str(CRD)}
"""Environment variables for a small operator of the tests, which runs on its own cluster."""
RESULTS = "results.json"

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("resting")]


class Bench(NamedTuple):
    """A running bench, whose progress goes to a pipe, and the directory for its results."""

    process: subprocess.Popen[str]
    folder: Path


def results(folder: Path) -> dict[str, Any]:
    """Return the results file's content."""
    found: dict[str, Any] = json.loads((folder / RESULTS).read_text())
    return found


@contextmanager
def bench(*words: str, **environment: str) -> Iterator[Bench]:
    """Yield a bench that runs with these arguments and environment variables; terminate it afterwards."""
    pipe = subprocess.PIPE
    with TemporaryDirectory() as made:
        command = [sys.executable, "-m", "bench", "--rounds", "1", "--results", f"{made}/{RESULTS}", *words]
        env = {**os.environ, **environment}
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield Bench(process, Path(made))
            finally:
                process.terminate()


def said(process: subprocess.Popen[str], pattern: str) -> str:
    """Return the pattern's first group in the first line of progress that matches."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if found := re.search(pattern, line):
            return found.group(1)
    raise AssertionError(f"the bench ended: {''.join(lines)}")


@pytest.fixture(scope="module")
def resting() -> Iterator[Bench]:
    """Yield the bench of the idle case, started before the other tests and awaited after them."""
    with bench("--cases", "nothing to do") as begun:
        yield begun


@pytest.mark.abreast
def test_the_bench_measures_all_ways_and_what_ours_costs() -> None:
    """Check that `python -m bench` prints one row per way of draining, and measures the costs of the product only."""
    with bench("--cases", "10 pods") as (process, where):
        shown, progress = process.communicate(timeout=200)
        assert process.returncode == 0, progress
        rounds = {each["way"]: each for each in results(where)["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor"}
    assert all(0 < each["seconds"] < 60 for each in rounds.values())
    assert all(f"| {way} |" in shown for way in rounds)
    assert "| local | 10 pods | hints |" in shown
    costs = rounds["ours"]["costs"]
    assert costs["requests"]["create pods/eviction"] == 10
    assert costs["events"]["dev.nodemaintenance.node.drained"] in (1, 2)  # a late hint may cause a second one
    assert costs["cpu"]["functions"] > 0
    assert costs["memory"]["podsource"] > 0
    assert 0 < costs["waits"]["median"] <= costs["waits"]["longest"]
    assert rounds["floor"]["costs"] == {}


@pytest.mark.abreast
def test_an_operator_is_one_more_way() -> None:
    """Another operator gets a row of its own, and the product is compared with it."""
    with bench("--cases", "10 pods", **OPERATOR) as (process, where):
        shown, progress = process.communicate(timeout=200)
        assert process.returncode == 0, progress
        rounds = {each["way"]: each for each in results(where)["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor", "operator"}
    assert 0 < rounds["operator"]["seconds"] < 60
    assert "| operator |" in shown
    assert " of operator" in shown
    assert rounds["operator"]["costs"] == {}


@pytest.mark.abreast
def test_a_case_that_fails_is_a_line_and_the_others_are_measured() -> None:
    """Cases that fail are reported in one line, the others are measured, and the exit status is 1.

    Here the observer is killed. The next case runs on its own cluster.
    """
    with bench("--cases", "10 pods,5 nodes at once") as (process, where):
        said(process, "^(local: 10 pods)$")
        os.kill(observer(process.pid), signal.SIGKILL)
        shown, progress = process.communicate(timeout=200)
        found = results(where)

    assert process.returncode == 1, progress
    line = "local: 10 pods: not measured: RuntimeError: the observer has ended"
    assert line in shown
    assert line in progress
    assert "Traceback" not in progress
    assert {each["case"] for each in found["rounds"]} == {"5 nodes at once"}
    assert [each["case"] for each in found["failures"]] == ["10 pods"]


def observer(bench: int) -> int:
    """Return the process id of the bench's observer."""
    children = Path(f"/proc/{bench}/task/{bench}/children").read_text().split()
    (found,) = [child for child in children if b"bench.observer" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(found)


def test_a_bench_that_is_terminated_takes_its_cluster_down() -> None:
    with bench("--cases", "100 pods") as (process, _):
        directory = Path(said(process, r"^export KUBECONFIG=(.*)/kubeconfig$"))
        said(process, "^(local: 100 pods)$")
        process.terminate()
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM
    assert state_directory.supervisors(directory) == []
    assert not directory.parent.exists()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_bench_that_is_ended_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Signals end the bench with both clusters, the operator and the observers, also during the first drains."""
    with bench("--cases", "10 pods", TMPDIR=str(tmp_path), **OPERATOR) as (process, _):
        said(process, "(10 pods: ours)")
        started = with_variable(f"TMPDIR={tmp_path}")
        process.send_signal(number)
        process.communicate(timeout=60)

    assert len(started) > 15
    assert process.returncode != 0
    assert soon(lambda: with_variable(f"TMPDIR={tmp_path}") == [])


def with_variable(setting: str) -> list[int]:
    """Return the ids of the processes with this setting in their environment, which child processes inherit."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process exited meanwhile
            if any(each.startswith(setting.encode()) for each in environ.read_bytes().split(b"\0")):
                found.append(int(environ.parent.name))
    return found


def test_rest_is_looked_at_for_a_minute(resting: Bench) -> None:
    """Ticks cause no events in the idle case. This test is the last one, so that the others need not wait for it."""
    shown, progress = resting.process.communicate(timeout=200)
    assert resting.process.returncode == 0, progress
    figures = {each["what"]: each["value"] for each in results(resting.folder)["findings"]}

    assert figures["ticks, meanwhile"] in (3, 4, 5)
    assert figures["events between ticks"] == figures["journal rows between ticks"] == 0
    assert figures["requests of a tick, median"] > 0
    assert 0 < figures["cores of the API server"] < 2
    assert "| local | nothing to do | events between ticks | 0 | 0 |" in shown
