"""Tests that the real CRDs of OpenShift and KubeVirt accept the objects of the requirements documents.

The CRDs reject a ClusterVersion without `spec.clusterID`, which document 004 does not mention. They also reject a
ClusterVersion whose `status.history` is a string (C23), a MachineConfigPool whose `paused` is a string, and a VM
without a template. They accept objects that only KubeVirt's webhook rejects, such as a virtual machine with an unknown
run strategy (C15).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from kube.client.api_errors import ApiError
from kube.mutex.pools import CLUSTER_VERSIONS_PATH
from kube.paths import Object
from localcluster.cluster import LocalCluster
from localcluster.simulators.openshift import build_pool
from tests.functions.mutex.conftest import UpgradeScenario
from tests.functions.mutex.test_detect_upgrade import write_status
from tests.proofs import proves
from tests.sources import ROOT

CANARY_SAMPLE: Object = yaml.safe_load((ROOT / "config" / "samples" / "mutex_canary.yaml").read_text())
CLUSTER_VERSION: Object = {
    "apiVersion": "config.openshift.io/v1",
    "kind": "ClusterVersion",
    "metadata": {"name": "cluster"},
    "spec": {"clusterID": "00000000-0000-4000-8000-000000000000", "desiredUpdate": {"version": "4.16.4"}},
}
"""ClusterVersion with the name and the field that document 004 uses."""
VM_DISKS = [{"name": name, "disk": {"bus": "virtio"}} for name in ("containerdisk", "cloudinitdisk")]
VM_TEMPLATE_SPEC: Object = {
    "domain": {"devices": {"disks": VM_DISKS}, "resources": {"requests": {"memory": "64M"}}},
    "volumes": [
        {"name": "containerdisk", "containerDisk": {"image": "quay.io/kubevirt/cirros-container-disk-demo"}},
        {"name": "cloudinitdisk", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
    ],
}


def build_virtual_machine(version: str = "v1", **spec_fields: Any) -> Object:
    """Build the documented VirtualMachine `testvm`, with additional fields in its spec."""
    template = {"metadata": {"labels": {"kubevirt.io/domain": "testvm"}}, "spec": VM_TEMPLATE_SPEC}
    metadata = {"name": "testvm", "namespace": "default"}
    return {
        "apiVersion": f"kubevirt.io/{version}",
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": {"template": template, **spec_fields},
    }


def create_by_dry_run(cluster: LocalCluster, manifest: Object) -> str:
    """Create an object with a dry run that rejects unknown fields, and return kubectl's output."""
    arguments = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    result = cluster.kubectl(*arguments, input=json.dumps(manifest), check=False)
    return result.stdout + result.stderr


@proves("5, top")
@pytest.mark.parametrize(
    "manifest",
    [
        pytest.param(CANARY_SAMPLE, id="the canary of document 004"),
        pytest.param(CLUSTER_VERSION, id="the ClusterVersion of document 004"),
        pytest.param(build_virtual_machine(running=False), id="a stopped VM"),
        pytest.param(build_virtual_machine("v1alpha3", running=True), id="a VM of API version v1alpha3"),
        pytest.param(build_virtual_machine(runStrategy="Manual"), id="a run strategy"),
        pytest.param(build_virtual_machine(runStrategy="Running"), id="the run strategy of document 003"),
    ],
)
def test_object_of_requirements_document_is_accepted_by_real_crd(idle_cluster: LocalCluster, manifest: Object) -> None:
    """Check that the CRDs of OpenShift and KubeVirt accept the objects of the requirements documents."""
    assert f"/{manifest['metadata']['name']} created (server dry run)\n" in create_by_dry_run(idle_cluster, manifest)


@proves("5, top")
@pytest.mark.parametrize(
    ("manifest", "message"),
    [
        pytest.param(
            {**CLUSTER_VERSION, "spec": {}}, "spec.clusterID: Required value", id="a ClusterVersion without an id"
        ),
        pytest.param(
            {**CANARY_SAMPLE, "spec": {**CANARY_SAMPLE["spec"], "paused": "false"}},
            "spec.paused: Invalid value",
            id="a pool whose paused is a string",
        ),
        pytest.param(
            {**build_pool("x", {}), "spec": {"pausd": True}}, 'unknown field "spec.pausd"', id="a typo in a pool"
        ),
        pytest.param(
            {**build_virtual_machine(), "spec": {"running": True}},
            "spec.template: Required value",
            id="a VM without a template",
        ),
        pytest.param(
            build_virtual_machine(running="yes"), "spec.running: Invalid value", id="a VM whose running is a string"
        ),
    ],
)
def test_invalid_object_is_rejected_by_real_crd(idle_cluster: LocalCluster, manifest: Object, message: str) -> None:
    """Check that the real CRDs reject objects that a CRD without a schema for these fields would accept."""
    assert message in create_by_dry_run(idle_cluster, manifest)


@proves("5, top", "C23")
def test_cluster_version_with_string_as_history_is_rejected(upgrade: UpgradeScenario) -> None:
    """Check that the real CRD requires a list in `status.history`, although document 004 compares it with a string."""
    status = upgrade.administrator_client.get(f"{CLUSTER_VERSIONS_PATH}/version")["status"]

    with pytest.raises(ApiError, match=r"status\.history: Invalid value"):
        write_status(upgrade, "version", {**status, "history": "Completed"})
