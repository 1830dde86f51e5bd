"""What was applied to real nodes: whether each pod of it is Ready, and a second apply changes nothing."""

from __future__ import annotations

from collections.abc import Collection

from kube.paths import Object
from kube.pods import is_ready
from localcluster.access import NAMESPACE
from tests.real.containers import Real

GENERATIONS = 'jsonpath={range .items[*]}{.kind}/{.metadata.name} {.metadata.uid} {.metadata.generation}{"\\n"}{end}'
ALWAYS_SENT = "poddisruptionbudget"
"""kubectl sends a budget's selector at each apply, since its patch is one that replaces; the server changes nothing."""


def ready_pods(real: Real) -> list[Object]:
    """Give the pods of the product; fails when one of them is not Ready."""
    found: list[Object] = real.door.list(f"/api/v1/namespaces/{NAMESPACE}/pods")["items"]
    assert [pod["metadata"]["name"] for pod in found if not is_ready(pod)] == []
    restarts = {pod["metadata"]["name"]: pod["status"]["containerStatuses"][0]["restartCount"] for pod in found}
    print(f"{len(found)} pods, of which restarted: { {name: count for name, count in restarts.items() if count} }")
    return found


def check_second_apply(real: Real, overlay: str, bound: Collection[str]) -> None:
    """Apply an overlay again; fails when any object is another one then.

    In: what kubectl sends again, since Knative has completed its environment. Nothing in these changes.
    """
    generations = ("get", "deployment,trigger,broker,pdb", "-n", NAMESPACE, "-o", GENERATIONS)
    before = real.cluster.kubectl(*generations).stdout
    again = real.cluster.kubectl("apply", "-k", overlay).stdout.splitlines()
    sent = {line.split()[0] for line in again if not line.endswith(" unchanged")}
    changed = {name for name in sent if not name.startswith(ALWAYS_SENT)} - set(bound)
    assert not changed, changed
    assert real.cluster.kubectl(*generations).stdout == before
