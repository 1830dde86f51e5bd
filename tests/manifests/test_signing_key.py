"""`make deploy` makes the key that our programs sign events with, and no program is left that runs without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from localcluster import deploy
from localcluster.cluster import LocalCluster
from tests.manifests.rendering import OVERLAYS, Manifest, of_kind, overlay, pod_specs

SPACE = "signed"


def bare(name: str, labels: dict[str, str]) -> Manifest:
    """A pod that no scheduler cares for, and so no kubelet has to end."""
    metadata = {"name": name, "namespace": SPACE, "labels": labels}
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "fake"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(cluster: LocalCluster, *items: Manifest) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def pods(cluster: LocalCluster) -> list[str]:
    return cluster.kubectl("get", "pods", "-n", SPACE, "-o", "name").stdout.split()


def test_a_first_key_restarts_the_pods_that_run_without_it_and_no_others(
    knative: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is there already restarts nothing: the pods have it."""
    monkeypatch.setenv("KUBECONFIG", str(knative.kubeconfig))
    [source] = of_kind(overlay("plain"), "ContainerSource")
    source["metadata"]["namespace"] = SPACE
    (tmp_path / "all.json").write_text(json.dumps(source).replace('"nodemaintenance"', '"example/nodemaintenance"'))
    (tmp_path / "kustomization.yaml").write_text("resources: [all.json]\n")
    create(knative, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    knative.kubectl("wait", "--for=create", "serviceaccount/default", "-n", SPACE, "--timeout=30s")
    ours = bare("ours", dict([deploy.OURS.split("=")]))
    create(knative, ours, bare("another", {"app": "another"}))

    deploy.deploy(str(tmp_path))
    left = pods(knative)
    create(knative, ours)
    deploy.deploy(str(tmp_path))

    assert left == ["pod/another"]
    assert pods(knative) == ["pod/another", "pod/ours"]


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_with_the_key_are_found_by_one_label(name: str) -> None:
    label, value = deploy.OURS.split("=")
    signing = [spec for spec in pod_specs(overlay(name)).values() if f'"name": "{deploy.KEY}"' in json.dumps(spec)]

    assert signing
    assert {spec["metadata"]["labels"].get(label) for spec in signing} == {value}
