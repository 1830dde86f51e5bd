"""Tests that the samples of document 004 can be created unchanged, and are valid (5.1)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from kube.mutex.objects import DEFAULT_NAMESPACE, RULE_KIND, RUN_KIND, TARGET_KIND, build_path, get_condition
from kube.mutex.pools import build_pool_path
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from localcluster.cluster import LocalCluster
from localcluster.simulators.openshift import build_pool
from tests.functions.mutex.conftest import UpgradeScenario
from tests.proofs import proves
from tests.sources import ROOT

SAMPLES_DIRECTORY = ROOT / "config" / "samples"
MACHINE_CONFIG_FILE = SAMPLES_DIRECTORY / "mutex_machineconfig.yaml"
SAMPLE_KINDS = ("mutexrule", "mutextarget", "mutexrunconfig")


@proves("MUT-3", "C28")
def test_documented_samples_are_valid_with_their_pools(upgrade: UpgradeScenario, idle_cluster: LocalCluster) -> None:
    """Check that the samples and their pools are valid if kubectl creates them in the namespace that they refer to."""
    upgrade.delete_all()
    upgrade.administrator_client.create(
        "/apis/machineconfiguration.openshift.io/v1/machineconfigpools", build_pool("worker", {WORKER_LABEL: ""})
    )
    for name in SAMPLE_KINDS:
        idle_cluster.kubectl("apply", "-n", DEFAULT_NAMESPACE, "-f", SAMPLES_DIRECTORY / f"mutex_v1alpha1_{name}.yaml")
    idle_cluster.kubectl("apply", "-f", SAMPLES_DIRECTORY / "mutex_canary.yaml")
    upgrade.rule = upgrade.administrator_client.get(build_path(RULE_KIND, DEFAULT_NAMESPACE, "k8s-example"))
    upgrade.target = upgrade.administrator_client.get(build_path(TARGET_KIND, DEFAULT_NAMESPACE, "worker-example"))
    upgrade.run_config = upgrade.administrator_client.get(build_path(RUN_KIND, DEFAULT_NAMESPACE, "example"))
    upgrade.check_rule_and_target()
    upgrade.functions.invoke("check-run", upgrade.build_event("dev.nodemaintenance.run.check_pending"))
    assert get_condition(upgrade.read_object(upgrade.run_config), "ConfigValidated")["status"] == "True"
    assert upgrade.administrator_client.get(build_pool_path("canary"))["spec"]["paused"] is False
    output = idle_cluster.kubectl("get", "numo", "-n", DEFAULT_NAMESPACE).stdout
    assert all(name in output for name in ("k8s-example", "worker-example", "JOB NAME", "STEP"))


@pytest.mark.parametrize("name", SAMPLE_KINDS)
def test_samples_set_no_namespace(name: str) -> None:
    """C28: As in document 004, no sample sets a namespace, although samples refer to each other with a namespace."""
    (manifest,) = yaml.safe_load_all((SAMPLES_DIRECTORY / f"mutex_v1alpha1_{name}.yaml").read_text())
    assert "namespace" not in manifest["metadata"]


@proves("MUT-2")
def test_sample_machine_config_is_valid(idle_cluster: LocalCluster) -> None:
    """Check that OpenShift's CRD accepts the sample MachineConfig, and that the MachineConfig applies to workers."""
    output = idle_cluster.kubectl("apply", "--dry-run=server", "-o", "yaml", "-f", MACHINE_CONFIG_FILE).stdout
    labels = yaml.safe_load(output)["metadata"]["labels"]
    assert labels == {"machineconfiguration.openshift.io/role": "worker"}


@proves("MUT-2")
@pytest.mark.parametrize("separator", [": ", ":"], ids=["with space", "without space"])
def test_sample_script_writes_node_version(tmp_path: Path, separator: str) -> None:
    """Check that the MachineConfig's script writes the node's version, and that the sample's comment shows this script.

    The test runs the script on a temporary directory instead of a node's root directory.
    """
    text = MACHINE_CONFIG_FILE.read_text()
    (file,) = yaml.safe_load(text)["spec"]["config"]["storage"]["files"]
    script = unquote(file["contents"]["source"].removeprefix("data:,"))
    assert "".join(f"#   {line}" for line in script.splitlines(keepends=True)) in text
    current_config = tmp_path / "etc" / "machine-config-daemon" / "currentconfig"
    current_config.parent.mkdir(parents=True)
    current_config.write_text(
        f'{{"metadata":{{"annotations":{{"a":"b","{VERSION_LABEL}"{separator}"4.16.4","c":"d"}}}}}}'
    )

    subprocess.run(["bash", "-c", script, "release-image-version", tmp_path], check=True)

    features_directory = tmp_path / "etc" / "kubernetes" / "node-feature-discovery" / "features.d"
    assert {file.name: file.read_text() for file in features_directory.iterdir()} == {
        "release-image-version": f"{VERSION_LABEL}=4.16.4\n"
    }


@proves("MUT-2")
def test_node_feature_discovery_sample_reads_local_files() -> None:
    """Check that the sample NodeFeatureDiscovery generates node labels from local files on the nodes.

    The CRD of NodeFeatureDiscovery is not installed, so the test compares the fields with document 004.
    """
    sample = yaml.safe_load((SAMPLES_DIRECTORY / "mutex_nodefeaturediscovery.yaml").read_text())
    assert (sample["apiVersion"], sample["kind"]) == ("nfd.openshift.io/v1", "NodeFeatureDiscovery")
    assert sample["metadata"] == {"name": "nfd-instance", "namespace": "openshift-nfd"}
    core = yaml.safe_load(sample["spec"]["workerConfig"]["configData"])["core"]
    assert core == {"sleepInterval": "60s", "featureSources": ["local"]}
