"""Tests for `mutex status` and `mutex retry` on a real API server, with run records as the functions write them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone

import pytest

from kube.client.sync_client import SyncClient
from kube.mutex.objects import DEFAULT_NAMESPACE, RETRY_ANNOTATION, RUN_KIND, build_object_path, build_path
from kube.mutex.run_record import is_resume_requested
from kube.times import format_time
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.console.commands import mutex_runs
from tests.console.conftest import RunCommand
from tests.proofs import proves

RUN_KEY = f"{DEFAULT_NAMESPACE}/example"


@pytest.fixture(scope="module")
def mutex_cluster(served_cluster: LocalCluster) -> Iterator[LocalCluster]:
    """Yield the cluster with the CRDs of the component `mutex`."""
    with mutex_runs.install_mutex_crds(served_cluster):
        yield served_cluster


@pytest.fixture
def client_with_run(mutex_cluster: LocalCluster) -> Iterator[SyncClient]:
    """Create a MutexRunConfig with an active run, and yield the API client."""
    admin = mutex_cluster.get_client()
    mutex_runs.create_run_config(admin, "example")
    yield admin
    admin.run(admin.api.request("DELETE", build_path(RUN_KIND, DEFAULT_NAMESPACE, "example")))


def test_error_of_status_without_crds_names_missing_component(run_command: RunCommand) -> None:
    """Check that the error of `mutex status` names the missing component.

    This test must run before another test installs the CRDs.
    """
    result = run_command("mutex", "status")
    assert (result.exit_code, result.output) == (
        *(1, 'Error: the cluster does not serve MutexRunConfigs: install the component "mutex" first\n'),
    )


def test_mutex_status_lists_each_run_and_what_it_waits_for(
    client_with_run: SyncClient, run_command: RunCommand
) -> None:
    result = run_command("mutex", "status")
    assert result.exit_code == 0, result.output
    assert result.stdout.splitlines()[1].split()[1:6] == ["example", "RunningJobs", "2", "of", "3:"]
    assert (
        f"{RUN_KEY} waits for: Job {DEFAULT_NAMESPACE}/disks-1 of rule {DEFAULT_NAMESPACE}/disks for node worker-2"
        in result.stdout
    )
    (run,) = json.loads(run_command("mutex", "status", "-o", "json").stdout)["runs"]
    assert (run["name"], run["step"], run["version"]) == ("example", "RunningJobs", "4.16.4")


@pytest.mark.parametrize("name", ["example", RUN_KEY])
def test_status_of_one_run_shows_steps_nodes_and_jobs(
    client_with_run: SyncClient, run_command: RunCommand, name: str
) -> None:
    result = run_command("mutex", "status", name)
    assert result.exit_code == 0, result.output
    lines = [" ".join(line.split()) for line in result.stdout.splitlines()]
    assert lines[0] == f"{RUN_KEY} to 4.16.4 RunningJobs"
    assert any(line.startswith("Nodes upgraded (1 of 3) current") for line in lines)
    assert any(line.startswith("worker-1 Done") and line.endswith("1 of 1 Job complete") for line in lines)
    assert any(line.startswith("worker-2 RunningJobs") for line in lines)
    assert any(line.startswith("worker-3 Waiting") for line in lines)
    assert lines[-2:] == ["To show the logs:", f"kubectl logs -n {DEFAULT_NAMESPACE} job/disks-1"]
    report = json.loads(run_command("mutex", "status", name, "-o", "json").stdout)
    assert [node["state"] for node in report["nodes"]] == ["Done", "RunningJobs", "Waiting"]


def test_status_of_finished_run_announces_next_run(client_with_run: SyncClient, run_command: RunCommand) -> None:
    record = client_with_run.get(build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"))["status"]["record"]
    finished_record = {**record, "finishedAt": format_time(datetime.now(timezone.utc) - timedelta(hours=5, minutes=30))}
    mutex_runs.write_run_status(client_with_run, "example", step="Finished", **finished_record)
    wait = "for: the next desired version after 4.16.4, which starts another run (since 5h)"
    remedy = f"to prevent this, run kubectl delete mutexrunconfig -n {DEFAULT_NAMESPACE} example"
    assert run_command("mutex", "status").stdout.splitlines()[-2:] == [f"{RUN_KEY} waits {wait}", remedy]
    assert run_command("mutex", "status", "example").stdout.splitlines()[1:3] == [f"Waits {wait}", remedy]


def test_status_watch_prints_one_json_object_per_change(
    client_with_run: SyncClient, mutex_cluster: LocalCluster, plugin_environment: dict[str, str]
) -> None:
    """Check that `mutex status --watch` prints one JSON object per change."""
    command = ["kubectl", "maintenance", "mutex", "status", "example", "--watch", "-o", "json"]
    with subprocess.Popen(command, env=plugin_environment, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        first_output = json.loads(process.stdout.readline())
        uid = client_with_run.get(build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"))["metadata"]["uid"]
        mutex_runs.write_run_status(
            client_with_run, "example", step="ReleasingNode", **mutex_runs.build_run_record(uid)
        )
        second_output = json.loads(process.stdout.readline())
        process.terminate()
    assert (first_output["step"], second_output["step"]) == ("RunningJobs", "ReleasingNode")


@proves("MUT-48")
def test_retry_resumes_halted_run(client_with_run: SyncClient, run_command: RunCommand) -> None:
    """Check that `mutex retry` resumes a halted run, and that a second `retry` is an error.

    The command sets the annotation that makes the function `check-run` resume the run.
    """
    run_config = client_with_run.get(build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"))
    failure = {
        **mutex_runs.HALTED_FAILURE,
        "at": mutex_runs.FIVE_MINUTES_AGO,
        "generation": run_config["metadata"]["generation"],
        "retry": "",
    }
    mutex_runs.write_run_status(client_with_run, "example", **{**run_config["status"]["record"], "failure": failure})
    assert "kubectl maintenance mutex retry" in run_command("mutex", "status", "example").stdout

    retry_result = run_command("mutex", "retry", "example")

    assert (retry_result.exit_code, retry_result.stdout) == (0, f"the run of {RUN_KEY} resumes where it stopped\n")
    run_config = client_with_run.get(build_object_path(run_config))
    assert run_config["metadata"]["annotations"][RETRY_ANNOTATION]
    assert is_resume_requested(run_config)
    second_retry = run_command("mutex", "retry", "example")
    assert second_retry.exit_code == 1
    assert "is already requested" in second_retry.output


@proves("MUT-48")
def test_retry_refuses_active_run(client_with_run: SyncClient, run_command: RunCommand) -> None:
    result = run_command("mutex", "retry", RUN_KEY)
    assert result.exit_code == 1
    assert f"the run of {RUN_KEY} has not stopped, its step is RunningJobs: " in result.output
    assert "annotations" not in client_with_run.get(build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"))["metadata"]


@pytest.mark.parametrize("args", [("status", "unknown"), ("status", "unknown", "--watch"), ("retry", "unknown")])
def test_unknown_run_config_is_an_error(
    client_with_run: SyncClient, run_command: RunCommand, args: tuple[str, ...]
) -> None:
    result = run_command("mutex", *args)
    assert result.exit_code == 1
    assert result.output == 'Error: MutexRunConfig "unknown" not found: see kubectl maintenance mutex status\n'


def test_error_about_missing_permission_names_resource(client_with_run: SyncClient, run_command: RunCommand) -> None:
    result = run_command("mutex", "status", user=UNPRIVILEGED)
    assert result.exit_code == 1
    assert "mutexrunconfigs" in result.output
