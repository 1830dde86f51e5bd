"""The bench with an operator beside ours: a small one of our own, which has a cluster to itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from bench import operator
from localcluster.cluster import LocalCluster
from localcluster.trouble import LocalClusterError
from tests.localcluster.commands import soon

ROOT = Path(__file__).parents[2]
CRDS = ROOT / "manifests" / "base" / "crds"
CRD = CRDS / "nodemaintenance.medik8s.io.yaml"
OTHER_CRD = CRDS / "nodemaintenance.kubevirt.io.yaml"
OPERATOR = {"OPERATOR": f"{sys.executable} -m tests.bench.small_operator", "OPERATOR_CRD": str(CRD)}

pytestmark = pytest.mark.e2e


def line(folder: Path) -> list[str]:
    words = ["--cases", "10 pods", "--rounds", "1", "--results", str(folder / "results.json")]
    return [sys.executable, "-m", "bench", *words]


def test_an_operator_is_one_more_way(tmp_path: Path) -> None:
    """It has a row of its own, in seconds that can be, and ours is compared with it."""
    done = subprocess.run(
        line(tmp_path),
        cwd=ROOT,
        env={**os.environ, **OPERATOR},
        capture_output=True,
        text=True,
        check=False,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    rounds = {each["way"]: each for each in json.loads((tmp_path / "results.json").read_text())["rounds"]}

    assert rounds.keys() == {"ours", "kubectl drain", "floor", "operator"}
    assert 0 < rounds["operator"]["seconds"] < 60
    assert "| operator |" in done.stdout
    assert " of operator" in done.stdout
    assert rounds["operator"]["costs"] == {}


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_bench_that_is_ended_leaves_nothing_behind(number: signal.Signals, tmp_path: Path) -> None:
    """Both clusters, the operator and the observers end with it, in the midst of the first drains."""
    environment = {**os.environ, **OPERATOR, "TMPDIR": str(tmp_path)}
    bench = subprocess.Popen(line(tmp_path), cwd=ROOT, env=environment, stderr=subprocess.PIPE, text=True)
    assert bench.stderr
    said = next(line for line in bench.stderr if "10 pods: ours" in line)
    started = with_variable(f"TMPDIR={tmp_path}")

    bench.send_signal(number)
    bench.communicate(timeout=60)

    assert said.startswith("local: 10 pods: ours: ")
    assert len(started) > 15
    assert bench.returncode != 0
    assert soon(lambda: with_variable(f"TMPDIR={tmp_path}") == [])


def with_variable(setting: str) -> list[int]:
    """Give the processes whose environment has it: all that a process with it started, if they did not change it."""
    found = []
    for environ in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # it ended meanwhile
            if any(each.startswith(setting.encode()) for each in environ.read_bytes().split(b"\0")):
                found.append(int(environ.parent.name))
    return found


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    """Give a cluster of one node on which nothing is installed."""
    with LocalCluster(tmp_path_factory.mktemp("bare"), nodes=1) as running:
        yield running


def test_a_crd_that_the_api_server_refuses_is_named_with_its_reason(bare: LocalCluster, tmp_path: Path) -> None:
    wrong = tmp_path / "crd.yaml"
    wrong.write_text(CRD.read_text().replace("scope: Cluster", "scope: Everywhere"))

    with pytest.raises(LocalClusterError, match=rf'^OPERATOR_CRD={wrong}: .*"Everywhere".*; give the Custom.*\Z'):
        operator.install(bare, wrong)


def test_a_crd_of_another_kind_is_named(bare: LocalCluster) -> None:
    reason = (
        r'"nodemaintenances\.nodemaintenance\.medik8s\.io" not found; give the Custom.* of nodemaintenances\.v1beta1'
    )
    with pytest.raises(LocalClusterError, match=rf"^OPERATOR_CRD={OTHER_CRD}: .*{reason}"):
        operator.install(bare, OTHER_CRD)


def test_an_operator_that_ends_is_named_with_its_last_words(bare: LocalCluster) -> None:
    """They stay in a file."""
    operator.install(bare, CRD)
    ending = operator.Operator((sys.executable, "-c", "print('no flag of that name')"), CRD)

    with (
        pytest.raises(
            LocalClusterError, match=r"^OPERATOR=.*: it ended; give .*operator\.log ends:\n +no flag of that"
        ),
        operator.serving(bare, ending, "node-1"),
    ):
        pass
    assert operator.LOG.read_text() == "no flag of that name\n"
