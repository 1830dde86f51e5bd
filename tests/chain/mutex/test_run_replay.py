"""Tests for a recorded upgrade run: its event tree is complete, and a replay finds no unexplained differences."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

from console.cli import cli
from kube.mutex.objects import DEFAULT_NAMESPACE
from localcluster.audit_log import AuditLog, is_dry_run
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import NEW_VERSION
from tests.chain.journal_reading import wait_for_complete_recording
from tests.chain.mutex.environment import MutexEnvironment
from tests.proofs import proves

pytestmark = pytest.mark.slow

DRY_RUN_OPTION = "--dry-run=server"


def create_run_with_due_upgrade(environment: MutexEnvironment, delay: str = "") -> str:
    """Create a run for one node, and request an upgrade; return the path of the run config."""
    environment.create_workers("blue", 1)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only", cleanup=True, delay=delay)
    run = environment.create_run("example", ["only"], ["all"])
    environment.wait_for_step(run, "Waiting")
    environment.cvo.set_desired_version(NEW_VERSION)
    return run


def wait_until_recorded(environment: MutexEnvironment, uid: str) -> None:
    """Wait until all events of the run are delivered and recorded."""
    environment.wait_until_delivered()
    wait_for_complete_recording(environment.client, str(environment.product.journal), uid)


def replay_run(environment: MutexEnvironment) -> Result:
    """Replay all recorded events of the newest run config named `example` as a dry run."""
    options = ("--kubeconfig", str(environment.cluster.kubeconfig), "--functions", environment.product.functions_url)
    arguments = (
        "replay",
        "--run",
        "example",
        DRY_RUN_OPTION,
        "--journal",
        str(environment.product.journal),
        *options,
        "-o",
        "json",
    )
    return CliRunner().invoke(cli, list(arguments))


def list_written_resources(audit: AuditLog) -> list[str]:
    """Return the resource of each write by the product to run configs, pools, nodes and Jobs, except dry runs."""
    resources = [entry["objectRef"]["resource"] for entry in audit.list_writes_by() if not is_dry_run(entry)]
    return [
        resource for resource in resources if resource in ("mutexrunconfigs", "machineconfigpools", "nodes", "jobs")
    ]


def run_events_command(environment: MutexEnvironment, output_format: str) -> str:
    """Return the output of the command `events` for the run config `example`."""
    arguments = ["events", "--run", "example", "--journal", str(environment.product.journal), "-o", output_format]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


@proves("X-1", "X-2")
def test_recorded_run_is_complete_and_dry_replay_writes_nothing(
    environment: MutexEnvironment, fake_mco: FakeMco
) -> None:
    """Check that a recorded run is complete, and that a dry replay writes nothing and explains each difference."""
    run = create_run_with_due_upgrade(environment)
    run_config = environment.wait_for_step(run, "Finished")
    uid = run_config["metadata"]["uid"]
    wait_until_recorded(environment, uid)

    tree = run_events_command(environment, "tree")
    assert tree.startswith(f"MutexRunConfig example ({uid}), ")
    steps = ("check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes", "edit-pools", "run-job")
    for step in (*steps, "release-node", "await-version", "restore-pools"):
        assert re.search(rf"\b{step} \d+ ms", tree), step
    assert not {"MISSING", "RESPONDED"} & set(tree.replace(",", " ").split())

    audit = environment.start_audit()
    result = replay_run(environment)
    report = json.loads(result.stdout)
    assert [
        response_row for response_row in report["answers"] if response_row["result"] not in ("same", "explained")
    ] == []
    assert result.exit_code == 0
    assert "mutexrunconfig example has progressed since" in result.stdout
    assert list_written_resources(audit) == []


@proves("X-2")
def test_dry_replay_during_run_writes_nothing(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a dry replay during the first Job returns the recorded replies and writes nothing."""
    run = create_run_with_due_upgrade(environment, delay="1h")
    run_config = environment.wait_for_state(run, lambda current_run: (current_run or {}).get("status", {}).get("job"))
    wait_until_recorded(environment, run_config["metadata"]["uid"])
    audit = environment.start_audit()
    result = replay_run(environment)
    assert result.exit_code == 0, result.output
    assert list_written_resources(audit) == []
    (job,) = environment.list_jobs()
    options = ("--kubeconfig", str(environment.cluster.kubeconfig))
    state = json.loads(CliRunner().invoke(cli, [*options, "mutex", "status", "example", "-o", "json"]).stdout)
    assert [job_report["logs"] for node in state["nodes"] for job_report in node["jobs"]] == [
        f"kubectl logs -n {DEFAULT_NAMESPACE} job/{job['metadata']['name']}"
    ]
    assert state["waits"]["since"] == job["metadata"]["creationTimestamp"]


def test_unrecorded_run_is_rejected(environment: MutexEnvironment) -> None:
    """Check that `events` rejects a run that has no recorded events."""
    arguments = ["events", "--run", "unknown", "--journal", str(environment.product.journal)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert 'MutexRunConfig "unknown" not found in the journal' in result.output


@pytest.mark.parametrize("command", ["events", "replay"])
def test_options_run_and_maintenance_together_are_rejected(environment: MutexEnvironment, command: str) -> None:
    """Check that commands reject the ambiguous combination of `--run` and `--maintenance`."""
    arguments = [command, "--run", "a", "--maintenance", "b", "--journal", str(environment.product.journal)]
    result = CliRunner().invoke(cli, arguments)
    assert result.exit_code == 2
    assert "omit one of them" in result.output
