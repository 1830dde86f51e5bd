"""Tests that the samples of document 004 can be created unchanged, and are valid (5.1)."""

from __future__ import annotations

import subprocess
from pathlib import Path
from urllib.parse import unquote

import pytest
import yaml

from kube.mutex.objects import NAMESPACE, RULE, RUN, TARGET, condition, path_of
from kube.mutex.pools import pool_path
from kube.mutex.versions import VERSION_LABEL, WORKER
from localcluster.cluster import LocalCluster
from tests.functions.mutex.conftest import Upgrade
from tests.openshift import pool
from tests.proofs import proves
from tests.sources import ROOT

SAMPLES = ROOT / "config" / "samples"
MACHINE_CONFIG = SAMPLES / "mutex_machineconfig.yaml"
OBJECTS = ("mutexrule", "mutextarget", "mutexrunconfig")


@proves("MUT-3", "C28")
def test_the_samples_of_the_document_are_valid_beside_their_pools(upgrade: Upgrade, quiet: LocalCluster) -> None:
    """Check that the samples, created with kubectl in the namespace that they refer to, are valid with their pools."""
    upgrade.clear()
    upgrade.admin.create("/apis/machineconfiguration.openshift.io/v1/machineconfigpools", pool("worker", {WORKER: ""}))
    for name in OBJECTS:
        quiet.kubectl("apply", "-n", NAMESPACE, "-f", SAMPLES / f"mutex_v1alpha1_{name}.yaml")
    quiet.kubectl("apply", "-f", SAMPLES / "mutex_canary.yaml")
    upgrade.rule = upgrade.admin.get(path_of(RULE, NAMESPACE, "k8s-example"))
    upgrade.target = upgrade.admin.get(path_of(TARGET, NAMESPACE, "worker-example"))
    upgrade.run = upgrade.admin.get(path_of(RUN, NAMESPACE, "example"))
    upgrade.judge()
    upgrade.functions.answer("check-run", upgrade.said("dev.nodemaintenance.run.found"))
    assert condition(upgrade.again(upgrade.run), "ConfigValidated")["status"] == "True"
    assert upgrade.admin.get(pool_path("canary"))["spec"]["paused"] is False
    shown = quiet.kubectl("get", "numo", "-n", NAMESPACE).stdout
    assert all(name in shown for name in ("k8s-example", "worker-example", "JOB NAME", "STEP"))


@pytest.mark.parametrize("name", OBJECTS)
def test_no_sample_names_a_namespace_of_its_own(name: str) -> None:
    """C28: A sample has no namespace of its own, as in document 004, although references to it have one."""
    (item,) = yaml.safe_load_all((SAMPLES / f"mutex_v1alpha1_{name}.yaml").read_text())
    assert "namespace" not in item["metadata"]


@proves("MUT-2")
def test_the_sample_that_knows_a_nodes_version_is_valid(quiet: LocalCluster) -> None:
    """Check that OpenShift's CRD accepts the sample MachineConfig, and that it is for workers."""
    applied = quiet.kubectl("apply", "--dry-run=server", "-o", "yaml", "-f", MACHINE_CONFIG).stdout
    labels = yaml.safe_load(applied)["metadata"]["labels"]
    assert labels == {"machineconfiguration.openshift.io/role": "worker"}


@proves("MUT-2")
@pytest.mark.parametrize("separator", [": ", ":"], ids=["spaced", "narrow"])
def test_a_node_writes_its_version_for_node_feature_discovery(tmp_path: Path, separator: str) -> None:
    """Check that the sample's script writes the node's version, and equals the script in the sample's comment.

    The test runs the script on a folder instead of a node's root.
    """
    text = MACHINE_CONFIG.read_text()
    (file,) = yaml.safe_load(text)["spec"]["config"]["storage"]["files"]
    script = unquote(file["contents"]["source"].removeprefix("data:,"))
    assert "".join(f"#   {line}" for line in script.splitlines(keepends=True)) in text
    current = tmp_path / "etc" / "machine-config-daemon" / "currentconfig"
    current.parent.mkdir(parents=True)
    current.write_text(f'{{"metadata":{{"annotations":{{"a":"b","{VERSION_LABEL}"{separator}"4.16.4","c":"d"}}}}}}')

    subprocess.run(["bash", "-c", script, "release-image-version", tmp_path], check=True)

    features = tmp_path / "etc" / "kubernetes" / "node-feature-discovery" / "features.d"
    assert {file.name: file.read_text() for file in features.iterdir()} == {
        "release-image-version": f"{VERSION_LABEL}=4.16.4\n"
    }


@proves("MUT-2")
def test_node_feature_discovery_takes_what_nodes_wrote() -> None:
    """Check that the sample NodeFeatureDiscovery reads the files that nodes write.

    Its CRD is not available here, so the test compares the fields with document 004.
    """
    sample = yaml.safe_load((SAMPLES / "mutex_nodefeaturediscovery.yaml").read_text())
    assert (sample["apiVersion"], sample["kind"]) == ("nfd.openshift.io/v1", "NodeFeatureDiscovery")
    assert sample["metadata"] == {"name": "nfd-instance", "namespace": "openshift-nfd"}
    core = yaml.safe_load(sample["spec"]["workerConfig"]["configData"])["core"]
    assert core == {"sleepInterval": "60s", "featureSources": ["local"]}
