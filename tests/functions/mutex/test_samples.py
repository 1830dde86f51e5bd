"""The document's samples are created as they are written, and are valid (5.1)."""

from __future__ import annotations

import pytest
import yaml

from kube.mutex.objects import NAMESPACE, RULE, RUN, TARGET, condition, path_of
from kube.mutex.pools import pool_path
from kube.mutex.versions import WORKER
from localcluster.cluster import LocalCluster
from tests.functions.mutex.conftest import Upgrade
from tests.openshift import pool
from tests.proofs import proves
from tests.sources import ROOT

SAMPLES = ROOT / "config" / "samples"
OBJECTS = ("mutexrule", "mutextarget", "mutexrunconfig")


@proves("MUT-3", "C28")
def test_the_samples_of_the_document_are_valid_beside_their_pools(upgrade: Upgrade, quiet: LocalCluster) -> None:
    """Created by kubectl into the namespace that they name, with the canary beside them."""
    upgrade.clear()
    upgrade.admin.create("/apis/machineconfiguration.openshift.io/v1/machineconfigpools", pool("worker", {WORKER: ""}))
    for name in OBJECTS:
        quiet.kubectl("apply", "-n", NAMESPACE, "-f", SAMPLES / f"mutex_v1alpha1_{name}.yaml")
    quiet.kubectl("apply", "-f", SAMPLES / "mutex_canary.yaml")
    upgrade.rule = upgrade.admin.get(path_of(RULE, NAMESPACE, "k8s-example"))
    upgrade.target = upgrade.admin.get(path_of(TARGET, NAMESPACE, "worker-example"))
    upgrade.run = upgrade.admin.get(path_of(RUN, NAMESPACE, "example"))
    upgrade.judge()
    upgrade.functions.post("check-run", upgrade.said("dev.nodemaintenance.run.found"))
    assert condition(upgrade.again(upgrade.run), "ConfigValidated")["status"] == "True"
    assert upgrade.admin.get(pool_path("canary"))["spec"]["paused"] is False
    shown = quiet.kubectl("get", "numo", "-n", NAMESPACE).stdout
    assert all(name in shown for name in ("k8s-example", "worker-example", "JOB NAME", "STEP"))


@pytest.mark.parametrize("name", OBJECTS)
def test_no_sample_names_a_namespace_of_its_own(name: str) -> None:
    """C28: the document's have none, though what refers to them does."""
    (item,) = yaml.safe_load_all((SAMPLES / f"mutex_v1alpha1_{name}.yaml").read_text())
    assert "namespace" not in item["metadata"]
