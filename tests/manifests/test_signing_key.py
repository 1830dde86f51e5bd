"""`make deploy` creates the Secret for signing events, unless pods without it would keep running."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from localcluster.cluster import LocalCluster
from localcluster.deploy import apply, preflight
from localcluster.errors import LocalClusterError
from tests.manifests.rendering import OVERLAYS, ROOT, Manifest, of_kind, overlay, pod_specs

SPACE = "signed"
CREATES = re.escape(
    f'kubectl create secret generic {preflight.KEY} -n {SPACE} --from-literal=key="$(openssl rand -hex 32)"'
)
ENDS = re.escape(f"kubectl delete pods -n {SPACE} -l {apply.OURS}")
OURS = dict([apply.OURS.split("=")])
READS = {"name": "SIGNING_KEY", "valueFrom": {"secretKeyRef": {"name": preflight.KEY, "key": "key", "optional": True}}}
PLAIN = {"name": "HOME", "value": "/"}


def pod(name: str, labels: dict[str, str], *variables: Manifest) -> Manifest:
    """Build a pod that is never scheduled, so that it is deleted without a kubelet."""
    metadata = {"name": name, "namespace": SPACE, "labels": labels}
    spec = {"schedulerName": "nobody", "containers": [{"name": "main", "image": "fake", "env": [*variables]}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def create(cluster: LocalCluster, *items: Manifest) -> None:
    cluster.kubectl("create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))


def there(cluster: LocalCluster) -> list[str]:
    kinds = "pods,secrets,containersources.sources.knative.dev"
    return [name.split("/")[1] for name in cluster.kubectl("get", kinds, "-n", SPACE, "-o", "name").stdout.split()]


@pytest.mark.slow
def test_a_first_key_does_not_come_beside_pods_that_run_without_it(
    knative: LocalCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `make deploy` creates no key while pods of the product run without it.

    A process with the key permanently rejects the events of such pods. The error names the pods and the command that
    deletes them; `make deploy` deletes nothing itself. Pods that do not read the key, and pods of others, do not
    matter. If the key exists, `make deploy` does not check the pods.
    """
    monkeypatch.setenv("KUBECONFIG", str(knative.kubeconfig))
    [source] = of_kind(overlay("plain"), "ContainerSource")
    source["metadata"]["namespace"] = SPACE
    (tmp_path / "all.json").write_text(json.dumps(source).replace('"nodemaintenance"', '"example/nodemaintenance"'))
    (tmp_path / "kustomization.yaml").write_text("resources: [all.json]\n")
    create(knative, {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SPACE}})
    knative.kubectl("wait", "--for=create", "serviceaccount/default", "-n", SPACE, "--timeout=30s")
    signs, others = pod("signs", OURS, READS), [pod("webhook", OURS, PLAIN), pod("another", {}, READS)]
    create(knative, signs, *others)

    with pytest.raises(LocalClusterError, match=f"pods run without it, as signs; .*: {CREATES}; {ENDS}$"):
        apply.deploy(str(tmp_path))
    assert there(knative) == ["another", "signs", "webhook"]

    knative.kubectl("delete", "pod", "signs", "-n", SPACE)
    apply.deploy(str(tmp_path))
    create(knative, signs)
    apply.deploy(str(tmp_path))
    assert there(knative) == ["another", "signs", "webhook", preflight.KEY, source["metadata"]["name"]]


def test_a_pod_that_has_ended_is_in_no_key_s_way() -> None:
    """Check that a finished pod does not count, such as one that was evicted because of node pressure."""
    phases = ("Pending", "Running", "Succeeded", "Failed", "Unknown")
    pods = [{**pod(phase, OURS, PLAIN, READS), "status": {"phase": phase}} for phase in phases]

    assert preflight.unkeyed(pods) == ["Pending", "Running", "Unknown"]


def test_the_page_says_the_lines_that_the_refusal_says() -> None:
    page = (ROOT / "docs/security.md").read_text().replace("-n node-maintenance", f"-n {SPACE}")

    assert re.search(f"{CREATES}\n.*{ENDS}", page)


@pytest.mark.parametrize("name", OVERLAYS)
def test_pods_with_the_key_are_found_by_one_label(name: str) -> None:
    label, value = apply.OURS.split("=")
    signing = [spec for spec in pod_specs(overlay(name)).values() if f'"name": "{preflight.KEY}"' in json.dumps(spec)]

    assert signing
    assert {spec["metadata"]["labels"].get(label) for spec in signing} == {value}
