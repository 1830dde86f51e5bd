"""Tests of a recorded run: its event tree is complete, and a replay gives the recorded replies or an explanation."""

from __future__ import annotations

import json
import re

import pytest
from click.testing import CliRunner, Result

from console.cli import commands
from kube.mutex.objects import NAMESPACE
from tests.chain.mutex.environment import NEW, Stage
from tests.chain.journal_reading import whole_recording
from tests.openshift import FakeMco
from tests.proofs import proves
from tests.workload import Audit, is_dry

pytestmark = pytest.mark.slow

DRY = "--dry-run=server"


def begin(stage: Stage, delay: str = "") -> str:
    """Create a run over one node whose upgrade is due; return the path of its config."""
    stage.workers("blue", 1)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only", cleanup=True, delay=delay)
    run = stage.run("example", ["only"], ["all"])
    stage.reaches(run, "Waiting")
    stage.cvo.want(NEW)
    return run


def await_recorded(stage: Stage, uid: str) -> None:
    """Wait until all events of the run are delivered and recorded."""
    stage.settle()
    whole_recording(stage.admin, str(stage.product.journal), uid)


def replay(stage: Stage) -> Result:
    """Replay all recorded events of the newest run config `example` as a dry run."""
    where = ("--kubeconfig", str(stage.cluster.kubeconfig), "--functions", stage.product.functions_url)
    words = ("replay", "--run", "example", DRY, "--journal", str(stage.product.journal), *where, "-o", "json")
    return CliRunner().invoke(commands, list(words))


def kept(audit: Audit) -> list[str]:
    """Return the resources that the product wrote, without dry runs: run configs, pools, nodes and Jobs."""
    written = [entry["objectRef"]["resource"] for entry in audit.writes_by() if not is_dry(entry)]
    return [resource for resource in written if resource in ("mutexrunconfigs", "machineconfigpools", "nodes", "jobs")]


def shown(stage: Stage, form: str) -> str:
    """Return the output of `events` for the run config `example`."""
    words = ["events", "--run", "example", "--journal", str(stage.product.journal), "-o", form]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 0, result.output
    return result.stdout


@proves("X-1", "X-2")
def test_the_tree_of_a_run_is_whole_and_a_replay_of_it_changes_nothing(stage: Stage, mco: FakeMco) -> None:
    """Recorded runs are complete; a dry replay writes nothing and explains its differences by the run's end."""
    run = begin(stage)
    item = stage.reaches(run, "Finished")
    uid = item["metadata"]["uid"]
    await_recorded(stage, uid)

    tree = shown(stage, "tree")
    assert tree.startswith(f"MutexRunConfig example ({uid}), ")
    steps = ("check-run", "detect-upgrade", "claim-pools", "pause-pools", "label-nodes", "edit-pools", "run-job")
    for step in (*steps, "release-node", "await-version", "restore-pools"):
        assert re.search(rf"\b{step} \d+ ms", tree), step
    assert not {"MISSING", "ANSWERED"} & set(tree.replace(",", " ").split())

    audit = stage.audit()
    result = replay(stage)
    found = json.loads(result.stdout)
    assert [answer for answer in found["answers"] if answer["result"] not in ("same", "explained")] == []
    assert result.exit_code == 0
    assert "mutexrunconfig example has gone on since" in result.stdout
    assert kept(audit) == []


@proves("X-2")
def test_a_replay_amid_a_run_creates_no_job_twice(stage: Stage, mco: FakeMco) -> None:
    """Dry replays during the first Job return the recorded replies and write nothing."""
    run = begin(stage, delay="1h")
    item = stage.until(run, lambda found: (found or {}).get("status", {}).get("job"))
    await_recorded(stage, item["metadata"]["uid"])
    audit = stage.audit()
    result = replay(stage)
    assert result.exit_code == 0, result.output
    assert kept(audit) == []
    (job,) = stage.created()
    where = ("--kubeconfig", str(stage.cluster.kubeconfig))
    state = json.loads(CliRunner().invoke(commands, [*where, "mutex", "status", "example", "-o", "json"]).stdout)
    assert [each["logs"] for node in state["nodes"] for each in node["jobs"]] == [
        f"kubectl logs -n {NAMESPACE} job/{job['metadata']['name']}"
    ]
    assert state["waits"]["since"] == job["metadata"]["creationTimestamp"]


def test_a_run_that_was_never_recorded_is_told(stage: Stage) -> None:
    """Commands reject a run that has no recorded events."""
    words = ["events", "--run", "nobody", "--journal", str(stage.product.journal)]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 2
    assert "the journal has no event of a MutexRunConfig nobody" in result.output


@pytest.mark.parametrize("name", ["events", "replay"])
def test_a_run_and_a_maintenance_at_once_are_refused(stage: Stage, name: str) -> None:
    """Commands reject `--run` with `--maintenance`, since it is ambiguous."""
    words = [name, "--run", "a", "--maintenance", "b", "--journal", str(stage.product.journal)]
    result = CliRunner().invoke(commands, words)
    assert result.exit_code == 2
    assert "leave one out" in result.output
