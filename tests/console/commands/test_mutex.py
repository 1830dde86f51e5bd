"""Tests of `mutex status` and `mutex retry` on a real API server, with run records as the functions write them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator

import pytest

from kube.client.sync_client import Cluster
from kube.mutex.objects import NAMESPACE, RETRY, RUN, path, path_of
from kube.mutex.run_record import is_resumed
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.console.commands import mutex_runs
from tests.console.conftest import Run
from tests.proofs import proves

EXAMPLE = f"{NAMESPACE}/example"


@pytest.fixture(scope="module")
def kinds(served: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster with the CRDs of the mutex."""
    with mutex_runs.kinds(served):
        yield served


@pytest.fixture
def door(kinds: LocalCluster) -> Iterator[Cluster]:
    """Yield the API client, with one active run."""
    admin = kinds.door()
    mutex_runs.create(admin, "example")
    yield admin
    admin.run(admin.api.request("DELETE", path_of(RUN, NAMESPACE, "example")))


def test_a_cluster_without_the_mutex_is_told_so(run: Run) -> None:
    """Check that `mutex status` names the missing component; this test must run before the CRDs are installed."""
    refused = run("mutex", "status")
    assert (refused.exit_code, refused.output) == (
        *(1, "Error: this cluster has no MutexRunConfig kind: install the component mutex first\n"),
    )


def test_all_are_listed_with_what_they_wait_for(door: Cluster, run: Run) -> None:
    shown = run("mutex", "status")
    assert shown.exit_code == 0, shown.output
    assert shown.stdout.splitlines()[1].split()[1:6] == ["example", "RunningJobs", "2", "of", "3:"]
    assert f"{EXAMPLE} waits for: Job {NAMESPACE}/disks-1 of rule {NAMESPACE}/disks for node worker-2" in shown.stdout
    (entry,) = json.loads(run("mutex", "status", "-o", "json").stdout)["runs"]
    assert (entry["name"], entry["step"], entry["version"]) == ("example", "RunningJobs", "4.16.4")


@pytest.mark.parametrize("name", ["example", EXAMPLE])
def test_one_is_shown_with_steps_nodes_and_jobs(door: Cluster, run: Run, name: str) -> None:
    shown = run("mutex", "status", name)
    assert shown.exit_code == 0, shown.output
    lines = [" ".join(line.split()) for line in shown.stdout.splitlines()]
    assert lines[0] == f"{EXAMPLE} to 4.16.4 RunningJobs"
    assert any(line.startswith("Nodes upgraded (1 of 3) now") for line in lines)
    assert any(line.startswith("worker-1 Done") and line.endswith("1 of 1 Job complete") for line in lines)
    assert any(line.startswith("worker-2 RunningJobs") for line in lines)
    assert any(line.startswith("worker-3 Waiting") for line in lines)
    assert any(line.endswith(f"kubectl logs -n {NAMESPACE} job/disks-1") for line in lines)
    found = json.loads(run("mutex", "status", name, "-o", "json").stdout)
    assert [each["state"] for each in found["nodes"]] == ["Done", "RunningJobs", "Waiting"]


def test_a_watch_follows_it(door: Cluster, kinds: LocalCluster, plugin: dict[str, str]) -> None:
    """Check that `mutex status --watch` prints one JSON object per change."""
    words = ["kubectl", "maintenance", "mutex", "status", "example", "--watch", "-o", "json"]
    with subprocess.Popen(words, env=plugin, stdout=subprocess.PIPE, text=True) as watching:
        assert watching.stdout
        first = json.loads(watching.stdout.readline())
        uid = door.get(path_of(RUN, NAMESPACE, "example"))["metadata"]["uid"]
        mutex_runs.write(door, "example", step="ReleasingNode", **mutex_runs.begun(uid))
        second = json.loads(watching.stdout.readline())
        watching.terminate()
    assert (first["step"], second["step"]) == ("RunningJobs", "ReleasingNode")


@proves("MUT-48")
def test_a_stopped_run_is_resumed(door: Cluster, run: Run) -> None:
    """Check that `mutex retry` resumes a halted run, and that a second `retry` is an error.

    The command sets the annotation at which the function `check-run` resumes the run.
    """
    item = door.get(path_of(RUN, NAMESPACE, "example"))
    failure = {**mutex_runs.STOPPED, "at": mutex_runs.AT, "generation": item["metadata"]["generation"], "retry": ""}
    mutex_runs.write(door, "example", **{**item["status"]["record"], "failure": failure})
    assert "kubectl maintenance mutex retry" in run("mutex", "status", "example").stdout

    resumed = run("mutex", "retry", "example")

    assert (resumed.exit_code, resumed.stdout) == (0, f"the run of {EXAMPLE} is resumed where it stopped\n")
    item = door.get(path(item))
    assert item["metadata"]["annotations"][RETRY]
    assert is_resumed(item)
    again = run("mutex", "retry", "example")
    assert again.exit_code == 1
    assert "about to be resumed" in again.output


@proves("MUT-48")
def test_a_run_that_has_not_stopped_is_left_alone(door: Cluster, run: Run) -> None:
    refused = run("mutex", "retry", EXAMPLE)
    assert refused.exit_code == 1
    assert f"the run of {EXAMPLE} has not stopped, it is RunningJobs: " in refused.output
    assert "annotations" not in door.get(path_of(RUN, NAMESPACE, "example"))["metadata"]


@pytest.mark.parametrize("words", [("status", "nobody"), ("status", "nobody", "--watch"), ("retry", "nobody")])
def test_a_name_that_nobody_has_is_refused(door: Cluster, run: Run, words: tuple[str, ...]) -> None:
    refused = run("mutex", *words)
    assert refused.exit_code == 1
    assert refused.output == ("Error: there is no MutexRunConfig nobody: see kubectl maintenance mutex status\n")


def test_who_may_not_is_told_so(door: Cluster, run: Run) -> None:
    refused = run("mutex", "status", user=UNPRIVILEGED)
    assert refused.exit_code == 1
    assert "mutexrunconfigs" in refused.output
