"""Tests that `make deploy` creates the Secret for signing events, unless running pods lack its key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.deploy import apply, preflight
from localcluster.errors import LocalClusterError
from tests.manifests.rendering import OVERLAYS, ROOT, Manifest, filter_by_kind, get_pod_templates, render_overlay

NAMESPACE = "signed"
CREATE_COMMAND_PATTERN = re.escape(
    f"kubectl create secret generic {preflight.SIGNING_SECRET} -n {NAMESPACE} "
    '--from-literal=key="$(openssl rand -hex 32)"'
)
DELETE_COMMAND_PATTERN = re.escape(f"kubectl delete pods -n {NAMESPACE} -l {apply.POD_SELECTOR}")
PRODUCT_LABELS = dict([apply.POD_SELECTOR.split("=")])
KEY_VARIABLE = {
    "name": "SIGNING_KEY",
    "valueFrom": {"secretKeyRef": {"name": preflight.SIGNING_SECRET, "key": "key", "optional": True}},
}
OTHER_VARIABLE = {"name": "HOME", "value": "/"}


def build_pod(name: str, labels: dict[str, str], *variables: Manifest) -> Manifest:
    """Build a pod that is never scheduled, so that it can be deleted without a kubelet."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": labels}
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "fake", "env": [*variables]}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create_objects(cluster: LocalCluster, *manifests: Manifest) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests}))


def list_object_names(cluster: LocalCluster) -> list[str]:
    kinds = "pods,secrets,containersources.sources.knative.dev"
    return [name.split("/")[1] for name in cluster.kubectl("get", kinds, "-n", NAMESPACE, "-o", "name").stdout.split()]


@pytest.mark.slow
def test_signing_key_is_not_created_while_pods_without_key_run(
    knative_cluster: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `make deploy` creates no signing key while pods of the product run without this key.

    A process with the key would permanently reject the events of these pods. The error names the pods and the command
    that deletes them; `make deploy` deletes nothing. Pods that do not read the key and pods of other products are
    ignored. If the key exists, `make deploy` does not check the pods.
    """
    monkeypatch.setenv("KUBECONFIG", str(knative_cluster.kubeconfig))
    [source] = filter_by_kind(render_overlay("plain"), "ContainerSource")
    source["metadata"]["namespace"] = NAMESPACE
    (tmp_path / "all.json").write_text(json.dumps(source).replace('"nodemaintenance"', '"example/nodemaintenance"'))
    (tmp_path / "kustomization.yaml").write_text("resources: [all.json]\n")
    create_objects(knative_cluster, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}})
    knative_cluster.kubectl("wait", "--for=create", "serviceaccount/default", "-n", NAMESPACE, "--timeout=30s")
    signing_pod, other_pods = (
        build_pod("signs", PRODUCT_LABELS, KEY_VARIABLE),
        [build_pod("webhook", PRODUCT_LABELS, OTHER_VARIABLE), build_pod("another", {}, KEY_VARIABLE)],
    )
    create_objects(knative_cluster, signing_pod, *other_pods)

    with pytest.raises(
        LocalClusterError,
        match=f"pods run without it, such as signs: .*: {CREATE_COMMAND_PATTERN}; {DELETE_COMMAND_PATTERN}$",
    ):
        apply.deploy(str(tmp_path))
    assert list_object_names(knative_cluster) == ["another", "signs", "webhook"]

    knative_cluster.kubectl("delete", "pod", "signs", "-n", NAMESPACE)
    apply.deploy(str(tmp_path))
    create_objects(knative_cluster, signing_pod)
    apply.deploy(str(tmp_path))
    assert list_object_names(knative_cluster) == [
        "another",
        "signs",
        "webhook",
        preflight.SIGNING_SECRET,
        source["metadata"]["name"],
    ]


def test_finished_pod_does_not_prevent_creation_of_signing_key() -> None:
    """Check that finished pods are ignored, for example pods evicted because of node pressure."""
    phases = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    pods = [
        {**build_pod(phase, PRODUCT_LABELS, OTHER_VARIABLE, KEY_VARIABLE), "status": {"phase": phase}}
        for phase in phases
    ]

    assert preflight.list_pods_with_key_variable(pods) == ["Pending", "Running", "Unknown"]


def test_security_page_contains_commands_of_error_message() -> None:
    page = (ROOT / "docs/security.md").read_text().replace("-n node-maintenance", f"-n {NAMESPACE}")

    assert re.search(f"{CREATE_COMMAND_PATTERN}\n.*{DELETE_COMMAND_PATTERN}", page)


def test_workloads_with_signing_key_have_product_label() -> None:
    label, value = apply.POD_SELECTOR.split("=")
    labels_by_workload = {
        (name, workload): pod_template["metadata"].get("labels", {}).get(label)
        for name in OVERLAYS
        for workload, pod_template in get_pod_templates(render_overlay(name)).items()
        if f'"name": "{preflight.SIGNING_SECRET}"' in json.dumps(pod_template)
    }

    assert {name for name, _ in labels_by_workload} == set(OVERLAYS) != set()
    assert {workload: found for workload, found in labels_by_workload.items() if found != value} == {}
