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
from tests.localcluster.commands import wait_until

ROOT = Path(__file__).parents[2]
CRD_FILE = ROOT / "manifests" / "base" / "crds" / "nodemaintenance.medik8s.io.yaml"
OPERATOR_ENV = {"OPERATOR": f"{sys.executable} -m tests.bench.small_operator", "OPERATOR_CRD": str(CRD_FILE)}
"""Environment variables for a small operator of the tests, which runs on its own cluster."""
RESULTS_FILE = "results.json"

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("idle_bench")]


class BenchRun(NamedTuple):
    """A running bench, whose progress goes to a pipe, and the directory for its results."""

    process: subprocess.Popen[str]
    directory: Path


def read_results(directory: Path) -> dict[str, Any]:
    """Return the results file's content."""
    results: dict[str, Any] = json.loads((directory / RESULTS_FILE).read_text())
    return results


@contextmanager
def run_bench(*arguments: str, **environment: str) -> Iterator[BenchRun]:
    """Yield a bench that runs with these arguments and environment variables; terminate it afterwards."""
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


def await_progress(process: subprocess.Popen[str], pattern: str) -> str:
    """Return the pattern's first group in the first line of progress that matches."""
    assert process.stderr
    lines = []
    for line in process.stderr:
        lines.append(line)
        if match := re.search(pattern, line):
            return match.group(1)
    raise AssertionError(f"the bench ended: {''.join(lines)}")


@pytest.fixture(scope="module")
def idle_bench() -> Iterator[BenchRun]:
    """Yield the bench of the idle case, started before the other tests and awaited after them."""
    with run_bench("--cases", "nothing to do") as run:
        yield run


@pytest.mark.abreast
def test_bench_measures_all_drainers_and_costs() -> None:
    """Check that `python -m bench` prints one row per drainer, and measures the costs of the product only."""
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
    assert costs["events"]["dev.nodemaintenance.node.drained"] in (1, 2)  # a late hint may cause a second one
    assert costs["cpu"]["functions"] > 0
    assert costs["memory"]["podsource"] > 0
    assert 0 < costs["waits"]["median"] <= costs["waits"]["longest"]
    assert rounds["floor"]["costs"] == {}


@pytest.mark.abreast
def test_bench_measures_other_operator() -> None:
    """Another operator gets a row of its own, and the product is compared with it."""
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
def test_failed_case_is_reported_and_others_are_measured() -> None:
    """Cases that fail are reported in one line, the others are measured, and the exit status is 1.

    Here the observer is killed. The next case runs on its own cluster.
    """
    with run_bench("--cases", "10 pods,5 nodes at once") as (process, directory):
        await_progress(process, "^(local: 10 pods)$")
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
    """Return the process id of the bench's observer."""
    children = Path(f"/proc/{bench_pid}/task/{bench_pid}/children").read_text().split()
    (observer,) = [child for child in children if b"bench.observer" in Path(f"/proc/{child}/cmdline").read_bytes()]
    return int(observer)


def test_terminated_bench_stops_its_cluster() -> None:
    with run_bench("--cases", "100 pods") as (process, _):
        directory = Path(await_progress(process, r"^export KUBECONFIG=(.*)/kubeconfig$"))
        await_progress(process, "^(local: 100 pods)$")
        process.terminate()
        process.communicate(timeout=60)

    assert process.returncode == 128 + signal.SIGTERM
    assert state_directory.find_supervisors(directory) == []
    assert not directory.parent.exists()


@pytest.mark.parametrize("signal_number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_signalled_bench_leaves_no_process(signal_number: signal.Signals, tmp_path: Path) -> None:
    """Signals end the bench with both clusters, the operator and the observers, also during the first drains."""
    with run_bench("--cases", "10 pods", TMPDIR=str(tmp_path), **OPERATOR_ENV) as (process, _):
        await_progress(process, "(10 pods: ours)")
        started = find_processes_with_variable(f"TMPDIR={tmp_path}")
        process.send_signal(signal_number)
        process.communicate(timeout=60)

    assert len(started) > 15
    assert process.returncode != 0
    assert wait_until(lambda: find_processes_with_variable(f"TMPDIR={tmp_path}") == [])


def find_processes_with_variable(setting: str) -> list[int]:
    """Return the ids of the processes with this setting in their environment, which child processes inherit."""
    matching = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # the process exited meanwhile
            if any(variable.startswith(setting.encode()) for variable in environ.read_bytes().split(b"\0")):
                matching.append(int(environ.parent.name))
    return matching


def test_idle_case_has_no_events_between_ticks(idle_bench: BenchRun) -> None:
    """Ticks cause no events in the idle case. This test is the last one, so that the others need not wait for it."""
    output, progress = idle_bench.process.communicate(timeout=200)
    assert idle_bench.process.returncode == 0, progress
    figures = {finding["metric"]: finding["value"] for finding in read_results(idle_bench.directory)["findings"]}

    assert figures["ticks"] in (3, 4, 5)
    assert figures["events between ticks"] == figures["journal rows between ticks"] == 0
    assert figures["requests of a tick, median"] > 0
    assert 0 < figures["cores of the API server"] < 2
    assert "| local | nothing to do | events between ticks | 0 | 0 |" in output
