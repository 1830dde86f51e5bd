"""Tests for the benchmark, with the minimum number of rounds and optionally with another operator."""

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
from tests.localcluster.commands import wait_until

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "manifests" / "base" / "crds" / "nodemaintenance.medik8s.io.yaml"
OPERATOR_ENV = {"OPERATOR": f"{sys.executable} -m tests.bench.small_operator", "OPERATOR_CRD": str(CRD_FILE)}
"""Environment variables that make the benchmark also measure the tests' small operator, on its own cluster."""
RESULTS_FILE = "results.json"

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("idle_bench")]


class BenchRun(NamedTuple):
    """A running benchmark process that writes its progress to a pipe, and the directory for its results."""

    process: subprocess.Popen[str]
    directory: Path


def read_results(directory: Path) -> dict[str, Any]:
    """Return the content of the results file."""
    results: dict[str, Any] = json.loads((directory / RESULTS_FILE).read_text())
    return results


@contextmanager
def run_bench(*arguments: str, **environment: str) -> Iterator[BenchRun]:
    """Yield a benchmark process with these arguments and environment variables; terminate it afterwards."""
    pipe = subprocess.PIPE
    with TemporaryDirectory() as temporary_directory:
        command = [
            sys.executable,
            "-m",
            "bench",
            "--rounds",
            "1",
            "--results",
            f"{temporary_directory}/{RESULTS_FILE}",
            *arguments,
        ]
        env = {**os.environ, **environment}
        with subprocess.Popen(command, cwd=ROOT, env=env, stdout=pipe, stderr=pipe, text=True) as process:
            try:
                yield BenchRun(process, Path(temporary_directory))
            finally:
                process.terminate()


def wait_for_progress(process: subprocess.Popen[str], pattern: str) -> str:
    """Wait for a progress line that matches the pattern, and return the pattern's first group."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if match := re.search(pattern, line):
            return match.group(1)
    raise AssertionError(f"the benchmark ended: {''.join(lines)}")


@pytest.fixture(scope="module")
def idle_bench() -> Iterator[BenchRun]:
    """Yield a benchmark of the idle case that runs concurrently with all tests; the last test waits for it."""
    with run_bench("--cases", "nothing to do") as run:
        yield run


@pytest.mark.abreast
def test_bench_measures_all_drainers_and_resource_usage() -> None:
    """Check that `python -m bench` prints one row per drainer, and measures only the product's resource usage."""
    with run_bench("--cases", "10 pods") as (process, directory):
        output, progress = process.communicate(timeout=200)
        assert process.returncode == 0, progress
        rounds = {round_["drainer"]: round_ for round_ in read_results(directory)["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor"}
    assert all(0 < round_["seconds"] < 60 for round_ in rounds.values())
    assert all(f"| {drainer} |" in output for drainer in rounds)
    assert "| local | 10 pods | hints |" in output
    costs = rounds["ours"]["costs"]
    assert costs["requests"]["create pods/eviction"] == 10
    # A hint event that arrives after the drain may cause a second event.
    assert costs["events"]["dev.nodemaintenance.node.drained"] in (1, 2)
    assert costs["cpu"]["functions"] > 0
    assert costs["memory"]["podsource"] > 0
    assert 0 < costs["waits"]["median"] <= costs["waits"]["longest"]
    assert rounds["floor"]["costs"] == {}


@pytest.mark.abreast
def test_bench_measures_configured_operator() -> None:
    """Check that the operator in $OPERATOR has a row of results, and that the product is compared with it."""
    with run_bench("--cases", "10 pods", **OPERATOR_ENV) as (process, directory):
        output, progress = process.communicate(timeout=200)
        assert process.returncode == 0, progress
        rounds = {round_["drainer"]: round_ for round_ in read_results(directory)["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor", "operator"}
    assert 0 < rounds["operator"]["seconds"] < 60
    assert "| operator |" in output
    assert " of operator" in output
    assert rounds["operator"]["costs"] == {}


@pytest.mark.abreast
def test_bench_reports_failed_case_and_measures_next_case() -> None:
    """Check that a failed case is reported in one line, the next case is measured, and the exit status is 1.

    The test makes the first case fail by killing the observer. The second case runs on a new cluster.
    """
    with run_bench("--cases", "10 pods,5 nodes at once") as (process, directory):
        wait_for_progress(process, "^(local: 10 pods)$")
        os.kill(find_observer(process.pid), signal.SIGKILL)
        output, progress = process.communicate(timeout=200)
        results = read_results(directory)

    assert process.returncode == 1, progress
    line = "local: 10 pods: not measured: RuntimeError: observer exited before it observed"
    assert line in output
    assert line in progress
    assert "Traceback" not in progress
    assert {round_["case"] for round_ in results["rounds"]} == {"5 nodes at once"}
    assert [round_["case"] for round_ in results["failures"]] == ["10 pods"]


def find_observer(bench_pid: int) -> int:
    """Return the process id of the benchmark's observer."""
    children = Path(f"/proc/{bench_pid}/task/{bench_pid}/children").read_text().split()
    (observer,) = [child for child in children if b"bench.observer" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(observer)


def test_terminated_bench_stops_cluster() -> None:
    with run_bench("--cases", "100 pods") as (process, _):
        directory = Path(wait_for_progress(process, r"^export KUBECONFIG=(.*)/kubeconfig$"))
        wait_for_progress(process, "^(local: 100 pods)$")
        process.terminate()
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM
    assert state_directory.find_supervisor_pids(directory) == []
    assert not directory.parent.exists()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signaled_bench_leaves_no_processes(signal_number: signal.Signals, tmp_path: Path) -> None:
    """Check that a signal during the first drains stops the benchmark, both clusters, operator and observers."""
    with run_bench("--cases", "10 pods", TMPDIR=str(tmp_path), **OPERATOR_ENV) as (process, _):
        wait_for_progress(process, "(10 pods: ours)")
        started_pids = find_processes_with_variable(f"TMPDIR={tmp_path}")
        process.send_signal(signal_number)
        process.communicate(timeout=60)

    assert len(started_pids) > 15
    assert process.returncode != 0
    assert wait_until(lambda: find_processes_with_variable(f"TMPDIR={tmp_path}") == [])


def find_processes_with_variable(setting: str) -> list[int]:
    """Return the ids of the processes, including child processes, that have this environment variable set."""
    matching_pids = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # The process may have exited since it was listed.
            if any(variable.startswith(setting.encode()) for variable in environ.read_bytes().split(b"\0")):
                matching_pids.append(int(environ.parent.name))
    return matching_pids


def test_idle_case_has_no_events_between_ticks(idle_bench: BenchRun) -> None:
    """Check that no events occur between ticks in the idle case, which is measured while other tests run."""
    output, progress = idle_bench.process.communicate(timeout=200)
    assert idle_bench.process.returncode == 0, progress
    value_by_metric = {
        finding["metric"]: finding["value"] for finding in read_results(idle_bench.directory)["findings"]
    }

    assert value_by_metric["ticks"] in (3, 4, 5)
    assert value_by_metric["events between ticks"] == value_by_metric["journal rows between ticks"] == 0
    assert value_by_metric["requests of a tick, median"] > 0
    assert 0 < value_by_metric["cores of the API server"] < 2
    assert "| local | nothing to do | events between ticks | 0 | 0 |" in output
