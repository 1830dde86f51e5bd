"""Tests for the three CRDs of NodeMaintenance, as a real API server serves them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from kube.maintenance.groups import GROUPS, KUBEVIRT, MEDIK8S
from kube.notifications.webhooks import URL_PATTERN
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from tests.proofs import proves

ROOT = Path(__file__).parents[2]
SAMPLE_FILES = sorted((ROOT / "config/samples").glob("nodemaintenance*.yaml"))
CRD_FILES = [
    ROOT / "manifests/base/crds/nodemaintenance.medik8s.io.yaml",
    ROOT / "manifests/base/crds/nodemaintenance.kubevirt.io.yaml",
    ROOT / "manifests/v1alpha1/crd.yaml",
]
MEDIK8S_CRD_NAME = "nodemaintenances.nodemaintenance.medik8s.io"
KUBEVIRT_CRD_NAME = "nodemaintenances.nodemaintenance.kubevirt.io"


def read_crd(file: Path) -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    return document


def build_manifest(name: str, spec: Any, api_version: str = MEDIK8S.api_version) -> str:
    return json.dumps({"apiVersion": api_version, "kind": "NodeMaintenance", "metadata": {"name": name}, "spec": spec})


@pytest.fixture
def sample_name(installed_cluster: LocalCluster) -> Iterator[str]:
    """Yield the name of a medik8s NodeMaintenance for a node that does not exist."""
    name = "crd-sample"
    installed_cluster.kubectl(
        "create", "-f", "-", input=build_manifest(name, {"nodeName": "crd-node", "reason": "first"})
    )
    yield name
    installed_cluster.kubectl("delete", MEDIK8S_CRD_NAME, name, "--ignore-not-found")


@pytest.fixture
def kubectl_without_cache(installed_cluster: LocalCluster, tmp_path: Path) -> Any:
    """Return a function that runs kubectl, with an empty discovery cache for its first call."""
    return lambda *arguments: installed_cluster.kubectl(*arguments, "--cache-dir", tmp_path, check=False)


@proves("C2")
def test_three_api_groups_have_same_schema_and_columns() -> None:
    """X-7, C2: the three CRDs have the same schema and columns, although they are separate YAML files."""
    first, *other_schemas = ({**read_crd(file)["spec"]["versions"][0], "name": ""} for file in CRD_FILES)

    assert all(other == first for other in other_schemas)


@proves("C2")
def test_crd_files_serve_api_groups_in_code() -> None:
    """C2: the CRD files serve the three API groups in the code, each with its version."""
    specs = [read_crd(file)["spec"] for file in CRD_FILES]

    assert [f"{spec['group']}/{spec['versions'][0]['name']}" for spec in specs] == list(GROUPS)


def test_every_field_in_crd_has_description() -> None:
    """Check that each field in the CRD has a description, which `kubectl explain` prints."""
    schema = read_crd(CRD_FILES[0])["spec"]["versions"][0]["schema"]["openAPIV3Schema"]

    # The API server adds the description of `metadata`.
    assert list(find_fields_without_description(schema, "")) == [".metadata"]


def find_fields_without_description(schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the paths of the schema's fields that have no description."""
    for name, child in schema.get("properties", schema.get("items", {}).get("properties", {})).items():
        if "description" not in child:
            yield f"{path}.{name}"
        yield from find_fields_without_description(child, f"{path}.{name}")


def test_file_paths_in_documentation_of_oldest_api_exist() -> None:
    """DRN-12: both paths in the oldest API's documentation exist; the CRD's path is a link to the only copy."""
    file = ROOT / "deploy/crds/nodemaintenance_crd.yaml"

    assert file.samefile(CRD_FILES[2])
    assert (
        yaml.safe_load((ROOT / "deploy/crds/nodemaintenance_cr.yaml").read_text())["apiVersion"]
        == "kubevirt.io/v1alpha1"
    )


@proves("NMO-1")
def test_api_resources_prints_kind_with_short_name(installed_cluster: LocalCluster, kubectl_without_cache: Any) -> None:
    """NMO-1, C7: the short name `nm` is the medik8s group's, and the resources are cluster-scoped."""
    listed = kubectl_without_cache("api-resources", "--no-headers").stdout.splitlines()
    rows = [line.split() for line in listed if line.startswith("nodemaintenances ")]

    assert ["nodemaintenances", "nm", MEDIK8S.api_version, "false", "NodeMaintenance"] in rows
    assert ["nodemaintenances", KUBEVIRT.api_version, "false", "NodeMaintenance"] in rows


@proves("NMO-1", "NMO-2")
@pytest.mark.parametrize("file", SAMPLE_FILES, ids=lambda file: file.name)
def test_api_server_accepts_sample_unchanged(installed_cluster: LocalCluster, file: Path) -> None:
    """NMO-1, KNM-1, OSV-11: the API server accepts every sample unchanged, and keeps reason and node (NMO-2)."""
    result = installed_cluster.kubectl("apply", "--dry-run=server", "-o", "json", "-f", file)

    assert json.loads(result.stdout)["spec"] == yaml.safe_load(file.read_text())["spec"]


@proves("NMO-2")
@pytest.mark.parametrize(
    ("spec", "message"),
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
        "overlong nodeName",
        "integer reason",
    ],
)
@pytest.mark.parametrize("api_version", [MEDIK8S.api_version, KUBEVIRT.api_version])
def test_invalid_spec_is_rejected(installed_cluster: LocalCluster, api_version: str, spec: Any, message: str) -> None:
    """NMO-2, KNM-1: the API server rejects an invalid spec without a webhook, and names the field (NMO-18)."""
    body = json.loads(build_manifest("crd-refused", spec, api_version))
    if spec is None:
        del body["spec"]

    result = installed_cluster.kubectl("create", "--validate=false", "-f", "-", input=json.dumps(body), check=False)

    assert result.returncode == 1
    assert message in result.stderr


@proves("DRN-1a")
@pytest.mark.parametrize(
    ("drain", "message"),
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
        ({"deadline": 60}, 'spec.drain.deadline: Invalid value: "integer"'),
        *(
            ({"deadline": value}, "spec.drain.deadline is not a positive duration: write hours, minutes and seconds")
            for value in ("soon", "0s", "-5m", "1d", "5m1h", "1.5h")
        ),
        ({"deadline": "9" * 19}, "spec.drain.deadline: Too long"),
        ({"escalation": "Delete"}, 'spec.drain.escalation: Invalid value: "string"'),
        ({"escalation": [{"after": "1m"}]}, "spec.drain.escalation[0].action: Required value"),
        ({"escalation": [{"action": "Delete"}]}, "spec.drain.escalation[0].after: Required value"),
        ({"escalation": [{"after": "1m", "action": "Evict"}]}, "spec.drain.escalation[0].action: Unsupported value"),
        (
            {"escalation": [{"after": "soon", "action": "Delete"}]},
            "after in spec.drain.escalation is not a positive duration: write hours, minutes and seconds",
        ),
        (
            {"escalation": [{"after": "1m", "action": "Delete"}, {"after": "2m", "action": "DeleteUnready"}]},
            "the actions in spec.drain.escalation are not in ascending order: use DeleteUnready, Delete, DeleteNow",
        ),
        (
            {"escalation": [{"after": "1m", "action": "Delete"}, {"after": "2m", "action": "Delete"}]},
            "the actions in spec.drain.escalation are not in ascending order: use DeleteUnready, Delete, DeleteNow",
        ),
        *(
            (
                {"escalation": [dict(zip(("after", "action"), step, strict=True)) for step in steps]},
                "spec.drain.escalation must be in ascending order of after: sort the steps by time",
            )
            for steps in (
                [("10m", "DeleteUnready"), ("600s", "Delete")],
                [("1m", "DeleteUnready"), ("3m", "Delete"), ("2m", "DeleteNow")],
            )
        ),
        ({"escalation": [{"after": "1m", "action": "Delete"}] * 4}, "spec.drain.escalation: Too many"),
    ],
)
def test_invalid_drain_options_are_rejected(installed_cluster: LocalCluster, drain: Any, message: str) -> None:
    """DRN-1a, NMO-18: the schema rejects an invalid `spec.drain`, and names the field."""
    body = build_manifest("crd-refused", {"nodeName": "n", "drain": drain})

    result = installed_cluster.kubectl("create", "--validate=false", "-f", "-", input=body, check=False)

    assert result.returncode == 1
    assert message in result.stderr


@proves("DRN-1a")
@pytest.mark.parametrize("api_version", [MEDIK8S.api_version, KUBEVIRT.api_version])
def test_api_server_keeps_every_drain_option(installed_cluster: LocalCluster, api_version: str) -> None:
    """DRN-1a: the API server keeps every field of `spec.drain` in each API group."""
    drain = {
        "force": False,
        "deleteEmptyDirData": False,
        "ignoreDaemonSets": False,
        "podSelector": "app in (a, b),!example.com/old, tier!=x",
        "gracePeriodSeconds": -1,
        "disableEviction": True,
        "skipWaitForDeleteTimeoutSeconds": 0,
        "deadline": "1h30m",
        "escalation": [
            {"after": "10m", "action": "DeleteUnready"},
            {"after": "30m", "action": "Delete"},
            {"after": "1h", "action": "DeleteNow"},
        ],
    }
    body = build_manifest("crd-kept", {"nodeName": "n", "drain": drain}, api_version)

    result = installed_cluster.kubectl(
        "create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-", input=body
    )

    assert json.loads(result.stdout)["spec"]["drain"] == drain


@pytest.mark.parametrize("api_version", [MEDIK8S.api_version, KUBEVIRT.api_version])
@pytest.mark.parametrize(
    ("url", "is_valid"),
    [
        ("https://hooks.example.com/services/T0/B0?x=%20y", True),
        ("http://bridge.chat.svc:8080", True),
        ("https://user:password@hooks.example.com/", False),
        ("https://hooks.example.com/a b", False),
        ("https://hooks.example.com\\@evil.example/", False),
        ("ftp://hooks.example.com/", False),
        ("hooks.example.com", False),
        (f"https://{'a' * 254}", False),
    ],
)
def test_invalid_notification_url_is_rejected(
    installed_cluster: LocalCluster, api_version: str, url: str, is_valid: bool
) -> None:
    """NMO-18: the schema rejects a `spec.notify.url` that `notify-owners` would not accept, and names the field."""
    body = build_manifest("crd-notify", {"nodeName": "n", "notify": {"url": url}}, api_version)

    result = installed_cluster.kubectl(
        *("create", "--dry-run=server", "--validate=strict", "-o", "json", "-f", "-"), input=body, check=False
    )

    assert (result.returncode == 0) is is_valid, result.stderr
    assert is_valid == (URL_PATTERN.fullmatch(url) is not None)
    if is_valid:
        assert json.loads(result.stdout)["spec"]["notify"] == {"url": url}
    else:
        assert "spec.notify.url is not an http(s) address without credentials: write https://HOST/PATH" in result.stderr


@proves("DRN-1a")
def test_drain_options_may_be_changed_at_any_time(installed_cluster: LocalCluster, sample_name: str) -> None:
    """DRN-1a: `spec.drain` may be changed and removed at any time."""
    for drain in ({"force": False}, {"force": True}, None):
        installed_cluster.kubectl(
            "patch", MEDIK8S_CRD_NAME, sample_name, "--type=merge", "-p", json.dumps({"spec": {"drain": drain}})
        )


@proves("NMO-21")
def test_node_name_of_maintenance_cannot_be_changed(installed_cluster: LocalCluster, sample_name: str) -> None:
    """NMO-21: the API server rejects a changed `spec.nodeName`, and suggests creating a new NodeMaintenance."""
    patch = '{"spec": {"nodeName": "another"}}'

    result = installed_cluster.kubectl("patch", MEDIK8S_CRD_NAME, sample_name, "--type=merge", "-p", patch, check=False)

    assert result.returncode == 1
    assert (
        "updating spec.NodeName isn't allowed: delete this NodeMaintenance and create another for the other node"
        in result.stderr
    )


@proves("NMO-2")
def test_reason_may_be_changed_at_any_time(installed_cluster: LocalCluster, sample_name: str) -> None:
    """NMO-2: `spec.reason` may be changed at any time."""
    installed_cluster.kubectl(
        "patch", MEDIK8S_CRD_NAME, sample_name, "--type=merge", "-p", '{"spec": {"reason": "second"}}'
    )

    assert (
        installed_cluster.kubectl("get", MEDIK8S_CRD_NAME, sample_name, "-o", "jsonpath={.spec.reason}").stdout
        == "second"
    )


@proves("KNM-2", "C1")
def test_api_server_keeps_all_status_fields_and_both_spellings_of_totalpods(
    installed_cluster: LocalCluster, sample_name: str
) -> None:
    """KNM-2, C1: the schema contains every status field; the API server would silently drop any other field."""
    pod_reference = {"namespace": "default", "name": "pod-a"}
    since = "2022-06-23T11:43:18Z"
    condition = {"type": "Drained", "status": "False", "reason": "Blocked", "message": "", "lastTransitionTime": since}
    block_details = {
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
        "pendingPodsRefs": [pod_reference],
        "pendingCount": 1,
        "startTime": since,
        "escalation": {"action": "Delete", "after": "30m", "time": since},
        "lastError": "Last failure message",
        "lastUpdate": since,
        "blockedPods": [{**pod_reference, **block_details}],
        "conditions": [{**condition, "observedGeneration": 1}],
    }

    patch = json.dumps({"status": status})
    options = ("--subresource=status", "--type=merge", "-o", "json", "-p", patch)
    live_status = json.loads(installed_cluster.kubectl("patch", MEDIK8S_CRD_NAME, sample_name, *options).stdout)[
        "status"
    ]

    assert live_status == status


@pytest.mark.parametrize("status", [{"phase": "Done"}, {"drainProgress": 101}, {"drainProgress": -1}])
def test_api_server_rejects_invalid_status(
    installed_cluster: LocalCluster, sample_name: str, status: dict[str, Any]
) -> None:
    """NMO-10, C6: the schema rejects an unknown phase, and a progress outside of 0 to 100."""
    patch = json.dumps({"status": status})

    result = installed_cluster.kubectl(
        "patch", MEDIK8S_CRD_NAME, sample_name, "--subresource=status", "--type=merge", "-p", patch, check=False
    )

    assert result.returncode == 1


def test_field_selector_selects_maintenances_by_node_name(installed_cluster: LocalCluster, sample_name: str) -> None:
    """NMO-22: one list request with a field selector returns the NodeMaintenances of a node."""
    output = installed_cluster.kubectl(
        "get", MEDIK8S_CRD_NAME, "-o", "name", "--field-selector=spec.nodeName=crd-node"
    ).stdout
    output_for_other_node = installed_cluster.kubectl(
        "get", MEDIK8S_CRD_NAME, "-o", "name", "--field-selector=spec.nodeName=crd-other"
    ).stdout

    assert output.split() == [f"nodemaintenance.nodemaintenance.medik8s.io/{sample_name}"]
    assert output_for_other_node == ""


def test_kubectl_get_prints_node_phase_progress_pending_and_age(
    installed_cluster: LocalCluster, sample_name: str
) -> None:
    """NMO-1: `kubectl get` prints node, phase, progress, pending pods and age; `-o wide` adds reason and error."""
    columns = installed_cluster.kubectl("get", MEDIK8S_CRD_NAME, sample_name).stdout.splitlines()[0].split()
    wide_columns = (
        installed_cluster.kubectl("get", MEDIK8S_CRD_NAME, sample_name, "-o", "wide").stdout.splitlines()[0].split()
    )

    assert columns == ["NAME", "NODE", "PHASE", "DRAIN", "PROGRESS", "PENDING", "AGE"]
    assert wide_columns == [*columns, "REASON", "ERROR"]


@proves("C7")
def test_bare_resource_names_refer_to_documented_api_group(
    installed_cluster: LocalCluster, sample_name: str, kubectl_without_cache: Any
) -> None:
    """C7: without the oldest API's CRD, `nodemaintenance` is KubeVirt's resource, and `nm` that of medik8s."""
    assert installed_cluster.kubectl("get", "crd", "nodemaintenances.kubevirt.io", check=False).returncode != 0

    assert (
        f"nodemaintenance.nodemaintenance.medik8s.io/{sample_name}"
        in kubectl_without_cache("get", "nm", "-o", "name").stdout
    )
    for name in ("nodemaintenance", "NodeMaintenance", "nodemaintenances"):
        assert (
            f'{KUBEVIRT_CRD_NAME} "{sample_name}" not found' in kubectl_without_cache("get", name, sample_name).stderr
        )


@proves("OSV-14")
def test_unprivileged_user_may_not_start_maintenance(installed_cluster: LocalCluster) -> None:
    """OSV-14: a user who may not create NodeMaintenances gets a 403 that names the verb and the resource."""
    body = build_manifest("crd-forbidden", {"nodeName": "crd-node"})

    result = installed_cluster.kubectl(
        "create", "--validate=false", "-f", "-", input=body, check=False, user=UNPRIVILEGED
    )

    assert result.returncode == 1
    assert 'cannot create resource "nodemaintenances" in API group "nodemaintenance.medik8s.io"' in result.stderr
