"""Tests of drain and mutex together: a rule whose Jobs drain the node, and a node in another maintenance."""

from __future__ import annotations

import os
import subprocess

import pytest

from console.operations.maintenance_actions import end
from kube.maintenance.groups import MEDIK8S
from kube.mutex.node_labels import is_released
from kube.mutex.objects import NAMESPACE, RULE, RUN_LABEL, condition, path_of
from kube.mutex.versions import version_of
from kube.nodes import is_cordoned, node_path
from kube.paths import Object
from localcluster import access
from localcluster.programs.build import servers
from tests.chain.mutex.environment import NEW, Stage, told
from tests.openshift import FakeMco
from tests.proofs import proves
from tests.sources import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

SAMPLE = ROOT / "config" / "samples" / "mutex_drain_rule.yaml"
WAITING = {"template": {"metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}}}}
"""A Job spec whose pods run until the test ends them, because kwok's delay is an hour."""
POD = "/api/v1/namespaces/default/pods"


def apply_sample(stage: Stage) -> None:
    """Apply the sample's file unchanged, then replace its Jobs: the test does their work."""
    stage.cluster.kubectl("apply", "-n", NAMESPACE, "-f", SAMPLE)
    spec = {"spec": {"jobSpec": WAITING, "cleanUpJobSpec": WAITING}}
    stage.admin.patch(path_of(RULE, NAMESPACE, "drain"), spec)


def work_off(stage: Stage, node: str, prefix: str) -> None:
    """Run the command of the node's Job with its account's token and variables, then end the Job's pod."""
    found = until(stage.admin, stage.jobs, lambda jobs: any(name.startswith(prefix) for name in jobs), labels=RUN_LABEL)
    (job,) = [job for name, job in found.items() if name.startswith(prefix)]
    assert told(job) == (node, "drain")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {each["name"]: each["value"] for each in container["env"]}
    command = [*container["command"], *container["args"]]
    subprocess.run(command, env={**environment(stage, pod["serviceAccountName"]), **variables}, check=True, timeout=60)
    stage.end_job(node, "drain")


def environment(stage: Stage, account: str) -> dict[str, str]:
    """Return the environment for kubectl: PATH, the ServiceAccount's kubeconfig, and a home directory for its cache."""
    token = stage.cluster.kubectl("create", "token", account, "-n", NAMESPACE).stdout.strip()
    file = stage.cluster.directory / f"{account}.kubeconfig"
    access.write_kubeconfig(file, stage.cluster.url, stage.cluster.certificate, account, token)
    return {"KUBECONFIG": str(file), "HOME": str(stage.cluster.directory), "PATH": f"{servers()}:{os.environ['PATH']}"}


def pod_on(stage: Stage, node: str) -> str:
    """Create a pod on the node; return its path."""
    spec = {"nodeName": node, "containers": [{"name": "web", "image": "fake"}]}
    stage.admin.create(POD, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})
    return f"{POD}/web"


@pytest.mark.slow
@proves("MUT-44", "MUT-46")
def test_a_rule_drains_each_node_before_its_upgrade_and_gives_it_back(stage: Stage, mco: FakeMco) -> None:
    """Runs with a rule that drains each node do not wait for the maintenance that their own Job created."""
    (name,) = stage.workers("blue", 1)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    apply_sample(stage)
    pod = pod_on(stage, name)
    run = stage.run("example", ["drain"], ["all"])
    stage.reaches(run, "Waiting")
    mco.hold(name)
    stage.cvo.want(NEW)
    work_off(stage, name, "drain-")
    stage.reaches(run, "UpgradingNode")
    (maintenance,) = stage.admin.list(MEDIK8S.path)["items"]
    drained = [each["status"] for each in maintenance["status"]["conditions"] if each["type"] == "Drained"]
    assert drained == ["True"]
    assert maintenance["metadata"]["labels"][RUN_LABEL] == stage.admin.get(run)["status"]["record"]["id"]
    stage.until(pod, lambda found: found is None)
    assert is_cordoned(stage.node(name))

    stage.upgrade(name)
    work_off(stage, name, "cleanup-drain-")
    stage.reaches(run, "Finished")
    assert stage.admin.list(MEDIK8S.path)["items"] == []
    assert not is_cordoned(stage.node(name))
    assert version_of(stage.node(name)) == NEW


@proves("MUT-44", "X-3")
def test_a_node_that_somebody_else_maintains_is_released_when_he_is_done(stage: Stage, mco: FakeMco) -> None:
    """Runs wait for another maintenance of a node, which the status names, and continue at a later tick."""
    (name,) = stage.workers("blue", 1)
    stage.canary()
    stage.target("all", stage.pool("blue", "blue"))
    stage.rule("only", delay="1h")
    run = stage.run("example", ["only"], ["all"])
    stage.reaches(run, "Waiting")
    body: Object = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "disk"}}
    stage.admin.create(MEDIK8S.path, {**body, "spec": {"nodeName": name, "reason": "new disk"}})
    stage.until(node_path(name), lambda node: is_cordoned(node or {"spec": {}}))
    stage.cvo.want(NEW)
    stage.end_job(name, "only")
    waiting = stage.until(run, lambda item: "disk" in condition(item or {}, "NodeUpgrade").get("message", ""))
    assert waiting["status"]["step"] == "ReleasingNode"
    assert not is_released(stage.node(name))

    stage.admin.run(end(stage.admin.api, name))
    stage.until(node_path(name), lambda node: not is_cordoned(node or {"spec": {}}))
    stage.tick()
    stage.reaches(run, "Finished")
    assert mco.upgraded == [name]
