"""`make demo-mutex`: upgrades four workers one at a time, with Jobs before and after each upgrade.

Fakes of OpenShift's operators upgrade a node as soon as its MachineConfigPool allows it; the rest is the real product.
"""

from __future__ import annotations

import json
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

from kube.mutex.objects import DEFAULT_NAMESPACE, RULE_LABEL_PREFIX, RUN_KIND, RUN_LABEL, build_collection_path
from kube.mutex.pools import POOLS_PATH
from kube.mutex.versions import VERSION_LABEL, WORKER_LABEL
from kube.nodes import NODES_PATH
from kube.paths import Object
from localcluster import delivery_engines
from localcluster.cluster import LocalCluster
from localcluster.components.fakes import Fakes
from localcluster.components.selection import MAINTENANCE, MUTEX
from localcluster.demo.common import DemoError, print_heading, print_line, run_demo, run_kubectl, show_kubectl
from localcluster.demo.event_log import EventLogFollower
from localcluster.product import Product

MANIFEST = Path(__file__).with_name("upgrade.yaml")
COMPONENTS = (MAINTENANCE, MUTEX)
RUN_NAME, INFRA_NODES = "demo", ("node-4", "node-5")
NEW_VERSION = "4.16.4"
JOBS_PER_NODE = 4
"""Jobs per node: two rules, each with one Job before the upgrade and one after it."""
TIMEOUT_SECONDS = 60.0
"""Seconds without a change of the run after which the demo fails."""
FUNCTION_NAME_WIDTH = 14
"""Length of the longest function name."""


def main() -> int:
    """Run the demo; return 0 if the workers were upgraded one at a time and the cluster's state was restored."""
    started = time.monotonic()
    print_line(
        "starting a temporary cluster: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, kwok, "
        "and simulators of OpenShift's operators"
    )
    engine = delivery_engines.get_engine("local")
    engine.build(COMPONENTS)
    with tempfile.TemporaryDirectory(prefix="nodemaintenance-demo-") as folder:
        directory = Path(folder)
        with engine.create_cluster(directory / "cluster", 5) as cluster:
            cluster.mark_control_plane_nodes(1)
            seconds = time.monotonic() - started
            print_line(f"a real API server, a control-plane node and four workers are ready after {seconds:.1f} s")
            with (
                engine.install_product(cluster, directory / "product", COMPONENTS) as product,
                Fakes(cluster, directory / "product", COMPONENTS),
            ):
                print_line(
                    "installed OpenShift's and the product's CRDs; functions, delivery, fake-cvo and fake-mco are ready"
                )
                _upgrade_workers(cluster, product)
    print_line("everything that was started is stopped")
    return 0


def _upgrade_workers(cluster: LocalCluster, product: delivery_engines.RunningProduct) -> None:
    if not isinstance(product, Product):
        raise TypeError(
            "product must be a localcluster.product.Product: the demo reads the log file of its process `delivery`"
        )
    before = _create_run_objects(cluster)
    with EventLogFollower(product.delivery_log, print_line=print, width=FUNCTION_NAME_WIDTH) as event_log:
        print_heading(f"Set the desired version {NEW_VERSION}; the run begins when the control plane has this version")
        patch = json.dumps({"spec": {"desiredUpdate": {"version": NEW_VERSION}}})
        show_kubectl(cluster, "patch", "clusterversion", "version", "--type=merge", "-p", patch)
        run, seconds = _follow_run(cluster, event_log)
    print_heading("All workers are upgraded, all Jobs are complete, and the pools are restored")
    show_kubectl(cluster, "get", "nodes", "-L", f"{VERSION_LABEL},{RUN_LABEL}")
    show_kubectl(cluster, "get", "jobs", "-n", DEFAULT_NAMESPACE)
    _show_pools(cluster)
    _check_upgrade_result(cluster, run, before)
    print_heading("Duration of each step")
    for line in event_log.summarize_calls():
        print(f"  {line}")
    print(f"  from the desired version to Finished: {seconds:.1f} s for {len(run['status']['record']['order'])} nodes")


def _create_run_objects(cluster: LocalCluster) -> dict[str, Object]:
    """Create pools, rules, a target and a run; return the specs of the MachineConfigPools before the run."""
    print_heading("Create two pools of two workers each, an empty canary, two rules with cleanup Jobs, and one run")
    run_kubectl(cluster, "label", "node", *INFRA_NODES, "node-role.kubernetes.io/infra=")
    show_kubectl(cluster, "apply", "-f", str(MANIFEST))
    waiting = ("--for=jsonpath={.status.step}=Waiting", "--timeout=30s")
    run_kubectl(cluster, "wait", "mutexrunconfig", RUN_NAME, "-n", DEFAULT_NAMESPACE, *waiting)
    show_kubectl(cluster, "get", "nodes", "-L", VERSION_LABEL)
    _show_pools(cluster)
    return _list_pools(cluster)


def _follow_run(cluster: LocalCluster, event_log: EventLogFollower) -> tuple[Object, float]:
    """Print the run's progress until it is finished; return the run and the seconds that it took."""
    started, printed, are_pools_shown = time.monotonic(), "", False
    for change in cluster.watch(
        build_collection_path(RUN_KIND), fields=f"metadata.name={RUN_NAME}", timeout=TIMEOUT_SECONDS
    ):
        status = change.object.get("status") or {}
        line = format_progress(status)
        if line != printed:
            event_log.print_between_entries(f"  {'':9} {line}")
            printed = line
        if status.get("step") == "RunningJobs" and not are_pools_shown:
            _show_pools(cluster)
            are_pools_shown = True
        if status.get("step") == "Finished":
            return change.object, time.monotonic() - started
        if status.get("step") == "Failed":
            raise DemoError(f'MutexRunConfig "{RUN_NAME}" failed: {status["record"]["failure"]["message"]}')
    raise DemoError(f'MutexRunConfig "{RUN_NAME}": the watch ended before the run finished')


def format_progress(status: Object) -> str:
    """Return the run's status as one line: a bar of finished nodes, the step, the node and the current Job."""
    nodes = ((status.get("record") or {}).get("nodes") or {}).values()
    done = sum("cleanedAt" in node for node in nodes)
    bar = "■" * done + "□" * (len(nodes) - done)
    columns = (bar, f"{status.get('step') or 'new':13}", status.get("progress"), status.get("job"))
    return "  ".join(str(column) for column in columns if column)


def _check_upgrade_result(cluster: LocalCluster, run: Object, pools_before: dict[str, Object]) -> None:
    """Check the nodes, the pools and the Jobs after the run. Raises `DemoError` if the upgrade was not as expected."""
    nodes = cluster.get_client().list(NODES_PATH, label_selector=WORKER_LABEL)["items"]
    labels_by_node = {node["metadata"]["name"]: node["metadata"]["labels"] for node in nodes}
    if outdated := [name for name, labels in labels_by_node.items() if labels[VERSION_LABEL] != NEW_VERSION]:
        raise DemoError(f"nodes {', '.join(outdated)}: not upgraded to {NEW_VERSION} after the run")
    if still_labelled := [
        name
        for name, labels in labels_by_node.items()
        if any(key.startswith((RULE_LABEL_PREFIX, RUN_LABEL)) for key in labels)
    ]:
        raise DemoError(f"nodes {', '.join(still_labelled)}: labels of the run remain after the run")
    if _list_pools(cluster) != pools_before:
        raise DemoError("MachineConfigPools: the specs differ from those before the run")
    record = run["status"]["record"]
    node_records = [record["nodes"][name] for name in record["order"]]
    if len(node_records) != len(labels_by_node) or any(
        later["releasedAt"] < earlier["cleanedAt"] for earlier, later in pairwise(node_records)
    ):
        raise DemoError(f"nodes were not released one at a time: {record['nodes']}")
    jobs = cluster.get_client().list(f"/apis/batch/v1/namespaces/{DEFAULT_NAMESPACE}/jobs")["items"]
    expected_count = JOBS_PER_NODE * len(labels_by_node)
    complete_count = sum(job["status"].get("succeeded") == 1 for job in jobs)
    if not len(jobs) == complete_count == expected_count:
        raise DemoError(f"Jobs: expected {expected_count} complete ones, found {complete_count} of {len(jobs)}")


def _show_pools(cluster: LocalCluster) -> None:
    columns = "NAME:.metadata.name,PAUSED:.spec.paused,SELECTOR:.spec.nodeSelector"
    show_kubectl(cluster, "get", "machineconfigpools", "-o", f"custom-columns={columns}")


def _list_pools(cluster: LocalCluster) -> dict[str, Any]:
    """Return the spec of each MachineConfigPool, by name."""
    return {pool["metadata"]["name"]: pool["spec"] for pool in cluster.get_client().list(POOLS_PATH)["items"]}


if __name__ == "__main__":
    run_demo(main)
