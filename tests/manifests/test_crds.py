"""The three NodeMaintenance APIs as a real API server serves them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.proofs import proves

ROOT = Path(__file__).parents[2]
SAMPLES = sorted((ROOT / "config/samples").glob("nodemaintenance*.yaml"))
CRDS = [
    ROOT / "manifests/base/crds/nodemaintenance.medik8s.io.yaml",
    ROOT / "manifests/base/crds/nodemaintenance.kubevirt.io.yaml",
    ROOT / "manifests/v1alpha1/crd.yaml",
]
MEDIK8S_NAME = "nodemaintenances.nodemaintenance.medik8s.io"
KUBEVIRT_NAME = "nodemaintenances.nodemaintenance.kubevirt.io"


def crd(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    return document


def maintenance(name: str, spec: Any, api_version: str = MEDIK8S.api_version) -> str:
    return json.dumps({"apiVersion": api_version, "kind": "NodeMaintenance", "metadata": {"name": name}, "spec": spec})


@pytest.fixture
def sample(installed: LocalCluster) -> Iterator[str]:
    """Yield the name of a NodeMaintenance of the medik8s group for a node that does not exist."""
    name = "crd-sample"
    installed.kubectl("create", "-f", "-", input=maintenance(name, {"nodeName": "crd-node", "reason": "first"}))
    yield name
    installed.kubectl("delete", MEDIK8S_NAME, name, "--ignore-not-found")


@pytest.fixture
def by_bare_name(installed: LocalCluster, tmp_path: Path) -> Any:
    """Return a function that runs kubectl with an empty discovery cache."""
    return lambda *arguments: installed.kubectl(*arguments, "--cache-dir", tmp_path, check=False)


@proves("C2")
def test_the_three_groups_have_one_schema_and_one_set_of_columns() -> None:
    """X-7, C2: the three CRDs have the same schema and columns, although they are separate YAML files."""
    first, *others = ({**crd(file)["spec"]["versions"][0], "name": ""} for file in CRDS)

    assert all(other == first for other in others)


@proves("C2")
def test_the_files_serve_the_groups_that_the_code_knows() -> None:
    """C2: the CRD files serve the three groups of the code, each with its version."""
    specs = [crd(file)["spec"] for file in CRDS]

    assert [f"{spec['group']}/{spec['versions'][0]['name']}" for spec in specs] == list(GROUPS)


def test_every_field_is_described() -> None:
    """Check that `kubectl explain` has a description of each field."""
    schema = crd(CRDS[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    assert list(undescribed(schema, "")) == [".metadata"]  # the API server adds its description


def undescribed(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of the properties without a description."""
    for name, child in schema.get("properties", schema.get("items", {}).get("properties", {})).items():
        if "description" not in child:
            yield f"{path}.{name}"
        yield from undescribed(child, f"{path}.{name}")


def test_the_installation_document_of_the_oldest_group_finds_its_files() -> None:
    """DRN-12: both paths of the oldest group's document exist, and the CRD's path is a link to the only copy."""
    file = ROOT / "deploy/crds/nodemaintenance_crd.yaml"

    assert file.samefile(CRDS[2])
    assert (
        yaml.safe_load((ROOT / "deploy/crds/nodemaintenance_cr.yaml").read_text())["apiVersion"]
        == "kubevirt.io/v1alpha1"
    )


@proves("NMO-1")
def test_api_resources_lists_the_kind_with_its_short_name(installed: LocalCluster, by_bare_name: Any) -> None:
    """NMO-1, C7: the short name `nm` belongs to the medik8s group, and the resources are cluster-scoped."""
    listed = by_bare_name("api-resources", "--no-headers").stdout.splitlines()
    rows = [line.split() for line in listed if line.startswith("nodemaintenances ")]

    assert ["nodemaintenances", "nm", MEDIK8S.api_version, "false", "NodeMaintenance"] in rows
    assert ["nodemaintenances", KUBEVIRT.api_version, "false", "NodeMaintenance"] in rows


@proves("NMO-1", "NMO-2")
@pytest.mark.parametrize("file", SAMPLES, ids=lambda file: file.name)
def test_a_sample_of_the_documents_is_accepted_unchanged(installed: LocalCluster, file: Path) -> None:
    """NMO-1, KNM-1, OSV-11: the API server accepts every sample file unchanged, and keeps reason and node (NMO-2)."""
    done = installed.kubectl("apply", "--dry-run=server", "-o", "json", "-f", file)

    assert json.loads(done.stdout)["spec"] == yaml.safe_load(file.read_text())["spec"]


@proves("NMO-2")
@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (None, "spec: Required value"),
        ({}, "spec.nodeName: Required value"),
        ({"reason": "no node"}, "spec.nodeName: Required value"),
        ({"nodeName": ""}, "spec.nodeName"),
        ({"nodeName": 5}, 'spec.nodeName: Invalid value: "integer"'),
        ({"nodeName": "n" * 254}, "spec.nodeName: Too long"),
        ({"nodeName": "n", "reason": 5}, 'spec.reason: Invalid value: "integer"'),
    ],
    ids=[
        "no spec",
        "empty spec",
        "no nodeName",
        "empty nodeName",
        "integer nodeName",
        "endless nodeName",
        "integer reason",
    ],
)
@pytest.mark.parametrize("api_version", [MEDIK8S.api_version, KUBEVIRT.api_version])
def test_a_spec_that_names_no_node_is_refused(installed: LocalCluster, api_version: str, spec: Any, said: str) -> None:
    """NMO-2, KNM-1: the API server rejects the object and names the field, without any webhook (NMO-18)."""
    body = json.loads(maintenance("crd-refused", spec, api_version))
    if spec is None:
        del body["spec"]

    done = installed.kubectl("create", "--validate=false", "-f", "-", input=json.dumps(body), check=False)

    assert done.returncode == 1
    assert said in done.stderr


@proves("DRN-1a")
@pytest.mark.parametrize(
    ("drain", "said"),
    [
        ("all", 'spec.drain: Invalid value: "string"'),
        ({"force": "no"}, 'spec.drain.force: Invalid value: "string"'),
        ({"gracePeriodSeconds": -2}, "spec.drain.gracePeriodSeconds in body should be greater than or equal to -1"),
        ({"skipWaitForDeleteTimeoutSeconds": -1}, "should be greater than or equal to 0"),
        (
            {"podSelector": "app>1"},
            "spec.drain.podSelector cannot be read: write conditions on labels, such as app=web",
        ),
        ({"podSelector": "a" * 2049}, "spec.drain.podSelector: Too long"),
    ],
    ids=["no object", "no boolean", "grace period", "timeout", "selector", "endless selector"],
)
def test_a_drain_that_makes_no_sense_is_refused(installed: LocalCluster, drain: Any, said: str) -> None:
    """DRN-1a, NMO-18: the schema rejects an invalid `spec.drain` and names the field."""
    body = maintenance("crd-refused", {"nodeName": "n", "drain": drain})

    done = installed.kubectl("create", "--validate=false", "-f", "-", input=body, check=False)

    assert done.returncode == 1
    assert said in done.stderr


@proves("DRN-1a")
@pytest.mark.parametrize("api_version", [MEDIK8S.api_version, KUBEVIRT.api_version])
def test_every_flag_of_the_drain_is_kept(installed: LocalCluster, api_version: str) -> None:
    """DRN-1a: every group keeps each field of `spec.drain`, and each field is optional."""
    drain = {
        "force": False,
        "deleteEmptyDirData": False,
        "ignoreDaemonSets": False,
        "podSelector": "app in (a, b),!example.com/old, tier!=x",
        "gracePeriodSeconds": -1,
        "disableEviction": True,
        "skipWaitForDeleteTimeoutSeconds": 0,
    }
    body = maintenance("crd-kept", {"nodeName": "n", "drain": drain}, api_version)

    done = installed.kubectl("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", input=body)

    assert json.loads(done.stdout)["spec"]["drain"] == drain


@proves("DRN-1a")
def test_the_drain_may_be_changed_at_any_time(installed: LocalCluster, sample: str) -> None:
    """DRN-1a: `spec.drain` can be changed and removed at any time."""
    for drain in ({"force": False}, {"force": True}, None):
        installed.kubectl("patch", MEDIK8S_NAME, sample, "--type=merge", "-p", json.dumps({"spec": {"drain": drain}}))


@proves("NMO-21")
def test_the_node_of_a_maintenance_cannot_be_changed(installed: LocalCluster, sample: str) -> None:
    """NMO-21: the API server rejects a changed node and suggests a new NodeMaintenance."""
    patch = '{"spec": {"nodeName": "another"}}'

    done = installed.kubectl("patch", MEDIK8S_NAME, sample, "--type=merge", "-p", patch, check=False)

    assert done.returncode == 1
    assert (
        "updating spec.NodeName isn't allowed: delete this NodeMaintenance and create another for the other node"
        in done.stderr
    )


@proves("NMO-2")
def test_the_reason_may_be_changed_at_any_time(installed: LocalCluster, sample: str) -> None:
    """NMO-2: `spec.reason` can be changed at any time."""
    installed.kubectl("patch", MEDIK8S_NAME, sample, "--type=merge", "-p", '{"spec": {"reason": "second"}}')

    assert installed.kubectl("get", MEDIK8S_NAME, sample, "-o", "jsonpath={.spec.reason}").stdout == "second"


@proves("KNM-2", "C1")
def test_the_status_keeps_both_spellings_and_every_declared_field(installed: LocalCluster, sample: str) -> None:
    """KNM-2, C1: the schema declares every status field; the API server would silently drop undeclared ones."""
    ref = {"namespace": "default", "name": "pod-a"}
    since = "2022-06-23T11:43:18Z"
    condition = {"type": "Drained", "status": "False", "reason": "Blocked", "message": "", "lastTransitionTime": since}
    blocked = {
        "reason": "DisruptionBudget",
        "budget": "web",
        "healthy": 2,
        "needed": 2,
        "allowsNone": True,
        "since": since,
        "message": "said",
    }
    status = {
        "phase": "Running",
        "drainProgress": 40,
        "evictionPods": 5,
        "totalpods": 19,
        "totalPods": 19,
        "pendingPods": ["pod-a"],
        "pendingPodsRefs": [ref],
        "pendingCount": 1,
        "lastError": "Last failure message",
        "lastUpdate": since,
        "blockedPods": [{**ref, **blocked}],
        "conditions": [{**condition, "observedGeneration": 1}],
    }

    patch = json.dumps({"status": status})
    options = ("--subresource=status", "--type=merge", "-o", "json", "-p", patch)
    kept = json.loads(installed.kubectl("patch", MEDIK8S_NAME, sample, *options).stdout)["status"]

    assert kept == status


@pytest.mark.parametrize("status", [{"phase": "Done"}, {"drainProgress": 101}, {"drainProgress": -1}])
def test_a_status_outside_its_bounds_is_refused(installed: LocalCluster, sample: str, status: dict[str, Any]) -> None:
    """NMO-10, C6: the schema rejects an unknown phase and a progress outside 0 to 100."""
    patch = json.dumps({"status": status})

    done = installed.kubectl(
        "patch", MEDIK8S_NAME, sample, "--subresource=status", "--type=merge", "-p", patch, check=False
    )

    assert done.returncode == 1


def test_maintenances_are_selected_by_the_node_they_name(installed: LocalCluster, sample: str) -> None:
    """NMO-22: a field selector lists the NodeMaintenances of a node in one request."""
    found = installed.kubectl("get", MEDIK8S_NAME, "-o", "name", "--field-selector=spec.nodeName=crd-node").stdout
    other = installed.kubectl("get", MEDIK8S_NAME, "-o", "name", "--field-selector=spec.nodeName=crd-other").stdout

    assert found.split() == [f"nodemaintenance.nodemaintenance.medik8s.io/{sample}"]
    assert other == ""


def test_the_table_shows_node_phase_progress_pending_and_age(installed: LocalCluster, sample: str) -> None:
    """NMO-1: `kubectl get` prints node, phase, progress, pending pods and age; `-o wide` adds the reason."""
    plain = installed.kubectl("get", MEDIK8S_NAME, sample).stdout.splitlines()[0].split()
    wide = installed.kubectl("get", MEDIK8S_NAME, sample, "-o", "wide").stdout.splitlines()[0].split()

    assert plain == ["NAME", "NODE", "PHASE", "PROGRESS", "PENDING", "AGE"]
    assert wide == [*plain, "REASON"]


@proves("C7")
def test_bare_names_reach_the_group_whose_document_uses_them(
    installed: LocalCluster, sample: str, by_bare_name: Any
) -> None:
    """C7: without the oldest group's CRD, `nodemaintenance` is KubeVirt's resource, and `nm` is that of medik8s."""
    assert installed.kubectl("get", "crd", "nodemaintenances.kubevirt.io", check=False).returncode != 0

    assert f"nodemaintenance.nodemaintenance.medik8s.io/{sample}" in by_bare_name("get", "nm", "-o", "name").stdout
    for name in ("nodemaintenance", "NodeMaintenance", "nodemaintenances"):
        assert f'{KUBEVIRT_NAME} "{sample}" not found' in by_bare_name("get", name, sample).stderr


@proves("OSV-14")
def test_an_unprivileged_user_may_not_start_a_maintenance(installed: LocalCluster) -> None:
    """OSV-14: a user without the right to create NodeMaintenances gets a 403 that names verb and resource."""
    body = maintenance("crd-forbidden", {"nodeName": "crd-node"})

    done = installed.kubectl("create", "--validate=false", "-f", "-", input=body, check=False, user=UNPRIVILEGED)

    assert done.returncode == 1
    assert 'cannot create resource "nodemaintenances" in API group "nodemaintenance.medik8s.io"' in done.stderr
