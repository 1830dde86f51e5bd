"""`make demo-mutex`: upgrades four workers one by one, with Jobs before and after each upgrade.

Fake OpenShift operators upgrade a node as soon as its pool allows it; everything else is the real product.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from kube.mutex.objects import NAMESPACE, RULE_LABEL, RUN, RUN_LABEL, collection
from kube.mutex.pools import POOLS
from kube.mutex.versions import VERSION_LABEL, WORKER
from kube.nodes import NODES
from kube.paths import Object
from localcluster import delivery_engines
from localcluster.cluster import LocalCluster
from localcluster.demo.event_log import Flow
from localcluster.demo.common import DemoError, kubectl, say, show, tell, title
from localcluster.product import Product
from localcluster.components.fakes import Actors
from localcluster.components.selection import MAINTENANCE, MUTEX

STORY = Path(__file__).with_name("upgrade.yaml")
WINGS = (MAINTENANCE, MUTEX)
NAME, INFRA = "demo", ("node-4", "node-5")
NEW = "4.16.4"
JOBS = 4
"""Jobs per node: two rules, each with one Job before the upgrade and one after it."""
SECONDS = 60.0
"""Longest time without a change of the run before the demo fails."""
WIDTH = 14
"""Length of the longest function name."""


def main() -> int:
    """Run the demo; return 0 if the workers were upgraded one after another and the cluster's state was restored."""
    started = time.monotonic()
    say("a cluster for this demo: etcd, API server, controller manager, scheduler, kwok; OpenShift is played")
    engine = delivery_engines.named("local")
    engine.build(WINGS)
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-") as folder:
        where = Path(folder)
        with engine.cluster(where / "cluster", 5) as cluster:
            cluster.make_control_plane(1)
            say(f"a control plane and four workers on a real API server after {time.monotonic() - started:.1f} s")
            with engine.open(cluster, where / "product", WINGS) as product, Actors(cluster, where / "product", WINGS):
                say("OpenShift's and our CRDs installed; functions, delivery, fake-cvo and fake-mco at work")
                _tell(cluster, product)
    say("everything that was started is stopped")
    return 0


def _tell(cluster: LocalCluster, product: delivery_engines.Running) -> None:
    if not isinstance(product, Product):
        raise TypeError("the flow of events is read from the local delivery's log")
    before = _prepare(cluster)
    with Flow(product.delivery_log, show=print, width=WIDTH) as flow:
        title(f"Somebody wants {NEW}; a run begins once the control plane has it")
        wanted = json.dumps({"spec": {"desiredUpdate": {"version": NEW}}})
        show(cluster, "patch", "clusterversion", "version", "--type=merge", "-p", wanted)
        run, seconds = _follow(cluster, flow)
    title("Every worker is upgraded, its Jobs are done, and the pools are as they were")
    show(cluster, "get", "nodes", "-L", f"{VERSION_LABEL},{RUN_LABEL}")
    show(cluster, "get", "jobs", "-n", NAMESPACE)
    _show_pools(cluster)
    _check(cluster, run, before)
    title("How long each step took")
    for line in flow.summary():
        print(f"  {line}")
    print(f"  wanted to Finished: {seconds:.1f} s for {len(run['status']['record']['order'])} nodes")


def _prepare(cluster: LocalCluster) -> dict[str, Object]:
    """Create the pools, the rules, the target and the run config; return the pools as they are before the run."""
    title("Two pools of two workers each, an empty canary, two rules with cleanup Jobs, one run")
    kubectl(cluster, "label", "node", *INFRA, "node-role.kubernetes.io/infra=")
    show(cluster, "apply", "-f", str(STORY))
    waiting = ("--for=jsonpath={.status.step}=Waiting", "--timeout=30s")
    kubectl(cluster, "wait", "mutexrunconfig", NAME, "-n", NAMESPACE, *waiting)
    show(cluster, "get", "nodes", "-L", VERSION_LABEL)
    _show_pools(cluster)
    return _pools(cluster)


def _follow(cluster: LocalCluster, flow: Flow) -> tuple[Object, float]:
    """Print the run's progress until it is finished; return the run and the seconds that it took."""
    started, shown, are_pools_shown = time.monotonic(), "", False
    for change in cluster.watch(collection(RUN), fields=f"metadata.name={NAME}", seconds=SECONDS):
        status = change.object.get("status") or {}
        line = progress_line(status)
        if line != shown:
            flow.interleave(f"  {'':9} {line}")
            shown = line
        if status.get("step") == "RunningJobs" and not are_pools_shown:
            _show_pools(cluster)
            are_pools_shown = True
        if status.get("step") == "Finished":
            return change.object, time.monotonic() - started
        if status.get("step") == "Failed":
            raise DemoError(f"the run stopped: {status['record']['failure']['message']}")
    raise DemoError("the run fell silent")


def progress_line(status: Object) -> str:
    """Return the run's status as one line: the number of finished nodes, the step, the node and the current Job."""
    nodes = ((status.get("record") or {}).get("nodes") or {}).values()
    done = sum("cleanedAt" in node for node in nodes)
    bar = "■" * done + "□" * (len(nodes) - done)
    words = (bar, f"{status.get('step') or 'new':13}", status.get("progress"), status.get("job"))
    return "  ".join(str(word) for word in words if word)


def _check(cluster: LocalCluster, run: Object, before: dict[str, Object]) -> None:
    """Check the upgraded nodes, the pools and the Jobs. Raises `DemoError` if one is not as expected."""
    nodes = cluster.door().list(NODES, labels=WORKER)["items"]
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    if late := [name for name, own in labels.items() if own[VERSION_LABEL] != NEW]:
        raise DemoError(f"not upgraded: {', '.join(late)}")
    if left := [name for name, own in labels.items() if any(key.startswith((RULE_LABEL, RUN_LABEL)) for key in own)]:
        raise DemoError(f"labels of the run were left on {', '.join(left)}")
    if _pools(cluster) != before:
        raise DemoError("the pools are not as they were before the run")
    record = run["status"]["record"]
    turns = [record["nodes"][name] for name in record["order"]]
    if len(turns) != len(labels) or any(second["releasedAt"] < first["cleanedAt"] for first, second in pairwise(turns)):
        raise DemoError(f"the nodes were not released one after another: {record['nodes']}")
    jobs = cluster.door().list(f"/apis/batch/v1/namespaces/{NAMESPACE}/jobs")["items"]
    if len(jobs) != JOBS * len(labels) or any(job["status"].get("succeeded") != 1 for job in jobs):
        raise DemoError(f"{len(jobs)} Jobs, of which not each is complete")


def _show_pools(cluster: LocalCluster) -> None:
    columns = "NAME:.metadata.name,PAUSED:.spec.paused,SELECTOR:.spec.nodeSelector"
    show(cluster, "get", "machineconfigpools", "-o", f"custom-columns={columns}")


def _pools(cluster: LocalCluster) -> dict[str, Any]:
    """Return the spec of each pool, by name."""
    return {pool["metadata"]["name"]: pool["spec"] for pool in cluster.door().list(POOLS)["items"]}


if __name__ == "__main__":
    tell(main)
