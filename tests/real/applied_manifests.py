"""Checks of manifests applied to real nodes: every pod is Ready, and a second `kubectl apply` changes nothing."""

from __future__ import annotations

from collections.abc import Collection

from kube.paths import Object
from kube.pods import is_ready
from localcluster.access import NAMESPACE
from tests.real.environment import Real

GENERATIONS = 'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation}{"\\n"}{end}'
ALWAYS_SENT = "poddisruptionbudget"
"""kubectl always sends a budget's selector, since its patch strategy is replace; the server changes nothing."""


def ready_pods(real: Real) -> list[Object]:
    """Return the product's pods, and assert that all of them are Ready."""
    found: list[Object] = real.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert [pod["metadata"]["name"] for pod in found if not is_ready(pod)] == []
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in found}
    print(f"{len(found)} pods, of which restarted: { {name: count for name, count in restarts.items() if count} }")
    return found


def check_second_apply(real: Real, overlay: str, bound: Collection[str]) -> None:
    """Apply an overlay again, and assert that no object changes.

    Args:
        real: The environment.
        overlay: The path of the overlay.
        bound: The objects that kubectl sends again, because Knative completed their environment variables.
    """
    generations = ("get", "deployment,trigger,broker,pdb", "-n", NAMESPACE, "-o", GENERATIONS)
    before = real.cluster.kubectl(*generations).stdout
    again = real.cluster.kubectl("apply", "-k", overlay).stdout.splitlines()
    sent = {line.split()[0] for line in again if not line.endswith(" unchanged")}
    changed = {name for name in sent if not name.startswith(ALWAYS_SENT)} - set(bound)
    assert not changed, changed
    assert real.cluster.kubectl(*generations).stdout == before
