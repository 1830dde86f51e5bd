"""Checks of manifests applied to real nodes: every pod is Ready, and a second `kubectl apply` changes nothing."""

from __future__ import annotations

from pathlib import Path

from kube.paths import Object
from kube.pods import is_ready
from localcluster.access import NAMESPACE
from localcluster.knative import pod_install
from tests.real.environment import RealNodesEnvironment

GENERATIONS_OUTPUT = (
    'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation}{"\\n"}{end}'
)
ALWAYS_SENT_KIND = "poddisruptionbudget"
"""Kind whose objects kubectl sends on every apply: a PDB's selector has the patch strategy `replace`.

The API server then changes nothing.
"""


def list_ready_pods(environment: RealNodesEnvironment) -> list[Object]:
    """Return the product's pods, and assert that all of them are Ready."""
    pods: list[Object] = environment.client.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert [pod["metadata"]["name"] for pod in pods if not is_ready(pod)] == []
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in pods}
    print(f"{len(pods)} pods; restarts: { {name: count for name, count in restarts.items() if count} }")
    return pods


def assert_second_apply_changes_nothing(
    environment: RealNodesEnvironment, overlay: Path, namespace: str = NAMESPACE
) -> None:
    """Apply an overlay again, and assert that no object changes."""
    kinds = pod_install.format_kinds_with_ready_condition(environment.cluster)
    generations = ("get", f"deployment,pdb,{kinds}", "-n", namespace, "-o", GENERATIONS_OUTPUT)
    before = environment.cluster.kubectl(*generations).stdout
    output = environment.cluster.kubectl("apply", "-k", overlay).stdout.splitlines()
    sent_objects = {line.split()[0] for line in output if not line.endswith(" unchanged")}
    changed = {name for name in sent_objects if not name.startswith(ALWAYS_SENT_KIND)}
    assert not changed, changed
    assert environment.cluster.kubectl(*generations).stdout == before
