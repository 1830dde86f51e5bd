"""Tests of the requirements documents' objects against the real CRDs of OpenShift and KubeVirt.

The CRDs reject a ClusterVersion without `spec.clusterID`, which document 004 does not mention. They reject one whose
`status.history` is a string (C23), a pool whose `paused` is a string, and a virtual machine without a template. They
accept objects that only KubeVirt's webhook rejects, such as a virtual machine with an unknown run strategy (C15).
"""

from __future__ import annotations

import json
from typing import Any

import pytest
import yaml

from kube.client.api_errors import ApiError
from kube.mutex.pools import CLUSTER_VERSIONS
from kube.paths import Object
from localcluster.cluster import LocalCluster
from tests.functions.mutex.conftest import Upgrade
from tests.functions.mutex.test_detect_upgrade import write_status
from tests.openshift import pool
from tests.proofs import proves
from tests.sources import ROOT

CANARY: Object = yaml.safe_load((ROOT / "config" / "samples" / "mutex_canary.yaml").read_text())
CLUSTER: Object = {
    "apiVersion": "config.openshift.io/v1",
    "kind": "ClusterVersion",
    "metadata": {"name": "cluster"},
    "spec": {"clusterID": "00000000-0000-4000-8000-000000000000", "desiredUpdate": {"version": "4.16.4"}},
}
"""ClusterVersion with the name that document 004 uses, and the field that it reads."""
DISKS = [{"name": name, "disk": {"bus": "virtio"}} for name in ("containerdisk", "cloudinitdisk")]
GUEST: Object = {
    "domain": {"devices": {"disks": DISKS}, "resources": {"requests": {"memory": "64M"}}},
    "volumes": [
        {"name": "containerdisk", "containerDisk": {"image": "quay.io/kubevirt/cirros-container-disk-demo"}},
        {"name": "cloudinitdisk", "cloudInitNoCloud": {"userData": "#!/bin/sh"}},
    ],
}


def machine(version: str = "v1", **spec: Any) -> Object:
    """Build the documented VirtualMachine `testvm`, with these fields in its spec besides the template."""
    template = {"metadata": {"labels": {"kubevirt.io/domain": "testvm"}}, "spec": GUEST}
    metadata = {"name": "testvm", "namespace": "default"}
    return {
        "apiVersion": f"kubevirt.io/{version}",
        "kind": "VirtualMachine",
        "metadata": metadata,
        "spec": {"template": template, **spec},
    }


def created(quiet: LocalCluster, item: Object) -> str:
    """Create an object by a dry run that rejects unknown fields; return kubectl's output."""
    words = ("create", "--dry-run=server", "--validate=strict", "-f", "-")
    done = quiet.kubectl(*words, input=json.dumps(item), check=False)
    return done.stdout + done.stderr


@proves("5, top")
@pytest.mark.parametrize(
    "item",
    [
        pytest.param(CANARY, id="the canary of 004"),
        pytest.param(CLUSTER, id="the ClusterVersion of 004"),
        pytest.param(machine(running=False), id="a stopped machine"),
        pytest.param(machine("v1alpha3", running=True), id="a machine of the document's time"),
        pytest.param(machine(runStrategy="Manual"), id="a run strategy"),
        pytest.param(machine(runStrategy="Running"), id="the run strategy of 003"),
    ],
)
def test_an_object_of_the_documents_is_accepted(quiet: LocalCluster, item: Object) -> None:
    """Check that the CRDs of OpenShift and KubeVirt accept the objects of the requirements documents."""
    assert f"/{item['metadata']['name']} created (server dry run)\n" in created(quiet, item)


@proves("5, top")
@pytest.mark.parametrize(
    ("item", "message"),
    [
        pytest.param({**CLUSTER, "spec": {}}, "spec.clusterID: Required value", id="a ClusterVersion without an id"),
        pytest.param(
            {**CANARY, "spec": {**CANARY["spec"], "paused": "false"}},
            "spec.paused: Invalid value",
            id="a pause as text",
        ),
        pytest.param({**pool("x", {}), "spec": {"pausd": True}}, 'unknown field "spec.pausd"', id="a typo in a pool"),
        pytest.param(
            {**machine(), "spec": {"running": True}}, "spec.template: Required value", id="a machine without a template"
        ),
        pytest.param(machine(running="yes"), "spec.running: Invalid value", id="running as text"),
    ],
)
def test_an_object_that_only_a_minimal_kind_would_take_is_refused(
    quiet: LocalCluster, item: Object, message: str
) -> None:
    """Check that the real CRDs reject objects that a CRD with preserved unknown fields would accept."""
    assert message in created(quiet, item)


@proves("5, top", "C23")
def test_a_history_that_is_a_word_is_refused(upgrade: Upgrade) -> None:
    """Check that the real CRD requires a list in `status.history`, which document 004 compares with `Completed`."""
    status = upgrade.admin.get(f"{CLUSTER_VERSIONS}/version")["status"]

    with pytest.raises(ApiError, match=r"status\.history: Invalid value"):
        write_status(upgrade, "version", {**status, "history": "Completed"})
