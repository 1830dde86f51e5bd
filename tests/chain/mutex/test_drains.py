"""Tests for drains during upgrade runs: by the Job of a rule, and by an unrelated maintenance of the node."""

from __future__ import annotations

import os
import subprocess

import pytest

from console.operations.maintenance_actions import end_maintenances
from kube.maintenance.groups import MEDIK8S
from kube.mutex.nodes import is_released
from kube.mutex.objects import DEFAULT_NAMESPACE, RULE_KIND, RUN_LABEL, build_path, get_condition
from kube.mutex.versions import get_version
from kube.nodes import build_node_path, is_cordoned
from kube.paths import Object
from localcluster import access
from localcluster.programs.build import ensure_programs
from localcluster.simulators.openshift import FakeMco
from localcluster.simulators.upgrade_objects import JOBS_PATH, NEW_VERSION
from localcluster.waiting import wait_for_collection
from tests.chain.mutex.environment import MutexEnvironment, get_node_and_rule
from tests.proofs import proves
from tests.sources import ROOT

pytestmark = pytest.mark.slow

SAMPLE_FILE = ROOT / "config" / "samples" / "mutex_drain_rule.yaml"
WAITING_JOB_SPEC = {"template": {"metadata": {"annotations": {"pod-complete.stage.kwok.x-k8s.io/delay": "1h"}}}}
"""A Job spec whose pods run until the test completes them, because kwok completes such pods only after an hour."""
PODS_PATH = "/api/v1/namespaces/default/pods"


def apply_sample(environment: MutexEnvironment) -> None:
    """Apply the sample manifest, and replace its Job specs, because the test itself runs the Jobs' commands."""
    environment.cluster.kubectl("apply", "-n", DEFAULT_NAMESPACE, "-f", SAMPLE_FILE)
    spec = {"spec": {"jobSpec": WAITING_JOB_SPEC, "cleanUpJobSpec": WAITING_JOB_SPEC}}
    environment.client.patch(build_path(RULE_KIND, DEFAULT_NAMESPACE, "drain"), spec)


def run_job_locally(environment: MutexEnvironment, node: str, job_name_prefix: str) -> None:
    """Run the command of the node's Job with the permissions of its ServiceAccount, then complete the Job's pod."""
    jobs_by_name = wait_for_collection(
        environment.client,
        JOBS_PATH,
        lambda jobs: any(name.startswith(job_name_prefix) for name in jobs),
        labels=RUN_LABEL,
    )
    (job,) = [job for name, job in jobs_by_name.items() if name.startswith(job_name_prefix)]
    assert get_node_and_rule(job) == (node, "drain")
    pod = job["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    variables = {variable["name"]: variable["value"] for variable in container["env"]}
    command = [*container["command"], *container["args"]]
    subprocess.run(
        command,
        env={**build_kubectl_environment(environment, pod["serviceAccountName"]), **variables},
        check=True,
        timeout=60,
    )
    environment.end_job_pod(node, "drain")


def build_kubectl_environment(environment: MutexEnvironment, service_account: str) -> dict[str, str]:
    """Return environment variables for kubectl: PATH, the ServiceAccount's KUBECONFIG, and a HOME for its cache."""
    token = environment.cluster.kubectl("create", "token", service_account, "-n", DEFAULT_NAMESPACE).stdout.strip()
    file = environment.cluster.directory / f"{service_account}.kubeconfig"
    access.write_kubeconfig(file, environment.cluster.url, environment.cluster.certificate, service_account, token)
    return {
        "KUBECONFIG": str(file),
        "HOME": str(environment.cluster.directory),
        "PATH": f"{ensure_programs()}:{os.environ['PATH']}",
    }


def create_pod_on_node(environment: MutexEnvironment, node: str) -> str:
    """Create a pod on the node; return its path."""
    spec = {"nodeName": node, "containers": [{"name": "web", "image": "fake"}]}
    environment.client.create(PODS_PATH, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec})
    return f"{PODS_PATH}/web"


@pytest.mark.slow
@proves("MUT-44", "MUT-46")
def test_drain_rule_drains_and_restores_node(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run whose rule drains each node does not wait for the maintenance that its own Job has created."""
    (name,) = environment.create_workers("blue", 1)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    apply_sample(environment)
    pod = create_pod_on_node(environment, name)
    run = environment.create_run("example", ["drain"], ["all"])
    environment.wait_for_step(run, "Waiting")
    fake_mco.skip_nodes(name)
    environment.cvo.set_desired_version(NEW_VERSION)
    run_job_locally(environment, name, "drain-")
    environment.wait_for_step(run, "UpgradingNode")
    (maintenance,) = environment.client.list(MEDIK8S.path)["items"]
    drained_statuses = [
        condition["status"] for condition in maintenance["status"]["conditions"] if condition["type"] == "Drained"
    ]
    assert drained_statuses == ["True"]
    assert maintenance["metadata"]["labels"][RUN_LABEL] == environment.client.get(run)["status"]["record"]["id"]
    environment.wait_for_state(pod, lambda current_pod: current_pod is None)
    assert is_cordoned(environment.get_node(name))

    environment.set_node_version(name)
    run_job_locally(environment, name, "cleanup-drain-")
    environment.wait_for_step(run, "Finished")
    assert environment.client.list(MEDIK8S.path)["items"] == []
    assert not is_cordoned(environment.get_node(name))
    assert get_version(environment.get_node(name)) == NEW_VERSION


@proves("MUT-44", "X-3")
def test_unrelated_maintenance_delays_release_of_node(environment: MutexEnvironment, fake_mco: FakeMco) -> None:
    """Check that a run reports an unrelated maintenance of its node, and continues after that maintenance."""
    (name,) = environment.create_workers("blue", 1)
    environment.create_canary()
    environment.create_target("all", environment.create_pool("blue", "blue"))
    environment.create_rule("only", delay="1h")
    run = environment.create_run("example", ["only"], ["all"])
    environment.wait_for_step(run, "Waiting")
    body: Object = {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", "metadata": {"name": "disk"}}
    environment.client.create(MEDIK8S.path, {**body, "spec": {"nodeName": name, "reason": "new disk"}})
    environment.wait_for_state(build_node_path(name), lambda node: is_cordoned(node or {"spec": {}}))
    environment.cvo.set_desired_version(NEW_VERSION)
    environment.end_job_pod(name, "only")
    blocked_run = environment.wait_for_state(
        run, lambda run_config: "disk" in get_condition(run_config or {}, "NodeUpgrade").get("message", "")
    )
    assert blocked_run["status"]["step"] == "ReleasingNode"
    assert not is_released(environment.get_node(name))

    environment.client.run(end_maintenances(environment.client.api, name))
    environment.wait_for_state(build_node_path(name), lambda node: not is_cordoned(node or {"spec": {}}))
    environment.send_tick()
    environment.wait_for_step(run, "Finished")
    assert fake_mco.upgraded == [name]
