"""Tests for `must-gather` on a real cluster: the archive's content, redaction, and missing permissions."""

from __future__ import annotations

import http.server
import json
import sqlite3
import ssl
import tarfile
import threading
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from cloudevents.core.v1.event import CloudEvent

from console.cli import cli
from console.operations.archive import Archive, redact_possible_secrets
from eventing import events
from eventing.journal.store import Attempt, Journal, Query
from kube.cpu_labels import capabilities, hyperconverged
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.leases import build_lease_name
from kube.mutex import pools
from kube.mutex.jobs import build_job_path, build_jobs_path
from kube.mutex.objects import API_VERSION, DEFAULT_NAMESPACE, RULE_KIND, RUN_LABEL, build_collection_path
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.components import crds
from localcluster.components.selection import CPU_LABELS, MUTEX
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from localcluster.processes import wait_until_ready
from localcluster.product import Product
from localcluster.simulators.openshift import build_pool
from tests.console.commands import mutex_runs, virtual_machines
from tests.console.commands.workload_objects import build_budget, build_controller, build_pod, create_and_wait
from tests.console.conftest import CreateNode, RunCommand
from tests.proofs import proves

SECRET_VALUE = "hunter-of-two-secrets"  # noqa: S105 - a fake secret that the tests search for
PRODUCT_LABELS = {"app.kubernetes.io/part-of": "node-maintenance"}
LIMITED_ACCOUNT = "reader"
CLUSTER_VERSIONS_PATH = "/apis/config.openshift.io/v1/clusterversions"
MUTEX_API_VERSION = {"apiVersion": API_VERSION}


def read_archive(file: Path) -> dict[str, bytes]:
    """Return a map from file name to content for an archive, without the top-level directory in the names."""
    with tarfile.open(file) as archive:
        members = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {
            name.removeprefix("must-gather/"): content_file.read() for name, content_file in members if content_file
        }


def get_object_names(content: bytes) -> list[str]:
    """Return the names of the objects in a Kubernetes list in JSON, the format of the archive's files."""
    return [obj["metadata"]["name"] for obj in json.loads(content)["items"]]


def wait_for_attempts(journal: Path, node: str) -> None:
    """Wait until the journal contains the attempts about the node, which functions publish half a second later."""
    with closing(Journal(journal)) as store:
        wait_until_ready("attempts", lambda: any(entry.attempts for entry in store.select(Query(node=node))), [], 10)


@pytest.fixture
def blocked_node_with_secrets(
    installed_cluster: LocalCluster, product: Product, create_node: CreateNode, run_command: RunCommand
) -> Iterator[str]:
    """Yield the name of a node whose drain a PodDisruptionBudget blocks, and whose objects contain secret values."""
    node = create_node()
    bare_pod = build_pod(f"bare-{node}", node)
    bare_pod["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": SECRET_VALUE}]
    bare_pod["metadata"]["finalizers"] = ["test.nodemaintenance.dev/stay"]
    create_and_wait(
        installed_cluster,
        bare_pod,
        build_controller("ReplicaSet", node),
        build_budget("strict", node, {"by": "replicaset"}, minAvailable=1),
    )
    for namespace in ("default", "node-maintenance"):
        installed_cluster.kubectl(
            "create", "secret", "generic", f"s-{node}", "-n", namespace, f"--from-literal=p={SECRET_VALUE}"
        )
    run_command("start", node, "--wait", "--timeout=1s")
    yield node
    installed_cluster.kubectl("patch", "pod", bare_pod["metadata"]["name"], "-p", '{"metadata":{"finalizers":null}}')
    run_command("stop", node)


@proves("NMO-25")
def test_archive_contains_objects_logs_and_journal_of_blocked_maintenance(
    run_command: RunCommand, blocked_node_with_secrets: str, product: Product, tmp_path: Path
) -> None:
    """NMO-25: the archive contains everything that explains why a drain is blocked, and an index of its files.

    The archive contains maintenances, nodes, PodDisruptionBudgets, the node's pods, Events, Leases, logs and the
    journal.
    """
    file = tmp_path / "case.tar.gz"
    wait_for_attempts(product.journal, blocked_node_with_secrets)

    result = run_command(
        "must-gather",
        "--file",
        str(file),
        "--logs",
        str(product.functions_log.parent),
        "--journal",
        str(product.journal),
        "-o",
        "json",
    )

    assert result.exit_code == 0, result.output
    files = read_archive(file)
    index = json.loads(files.pop("index.json"))
    assert json.loads(result.stdout) == {"file": str(file), **index}
    assert [entry["file"] for entry in index["files"]] == list(files)
    assert blocked_node_with_secrets in get_object_names(files["maintenances/nodemaintenance.medik8s.io.json"])
    assert blocked_node_with_secrets in get_object_names(files["nodes.json"])
    assert "strict" in get_object_names(files["poddisruptionbudgets.json"])
    assert f"bare-{blocked_node_with_secrets}" in get_object_names(files[f"pods/{blocked_node_with_secrets}.json"])
    assert build_lease_name(blocked_node_with_secrets) in get_object_names(files["leases.json"])
    assert "CordonNode" in {event["reason"] for event in json.loads(files["events.json"])["items"]}
    assert b"Reconciling NodeMaintenance" in files["logs/functions.log"]
    recorded_events = [json.loads(line) for line in files["journal.jsonl"].splitlines()]
    assert {"dev.nodemaintenance.maintenance.begun", "dev.nodemaintenance.attempts.made"} <= {
        event["type"] for event in recorded_events if blocked_node_with_secrets in json.dumps(event)
    }
    assert index["missingPermissions"] == index["notRead"] == []
    assert "list triggers.eventing.knative.dev in node-maintenance" in index["notInstalled"]


def test_archive_contains_no_secrets(run_command: RunCommand, blocked_node_with_secrets: str, tmp_path: Path) -> None:
    """NMO-25: the archive contains no Secrets or values of environment variables, and only its owner may read it."""
    file = tmp_path / "case.tar.gz"

    assert run_command("must-gather", "--file", str(file)).exit_code == 0

    files = read_archive(file)
    assert [name for name, content in files.items() if SECRET_VALUE.encode() in content] == []
    assert b'"TOKEN"' in files[f"pods/{blocked_node_with_secrets}.json"]
    assert file.stat().st_mode & 0o077 == 0


@proves("NMO-25")
def test_journal_in_archive_has_no_environment_values(run_command: RunCommand, tmp_path: Path) -> None:
    """NMO-25: the journal in the archive contains no values of environment variables.

    Events from the API server contain whole objects. A MutexRule contains a pod template, as do the replies to events
    about this rule.
    """
    container = {"name": "mutex", "env": [{"name": "TOKEN", "value": SECRET_VALUE}]}
    rule = {
        **MUTEX_API_VERSION,
        "kind": RULE_KIND,
        "metadata": {"name": "disks", "uid": "1"},
        "spec": {"containers": [container]},
    }
    attributes = {"id": "1", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": RULE_KIND}
    recorded_event = CloudEvent({**attributes, "datacontenttype": "application/json"}, rule)
    reply = {"id": "2", "type": "x", "data": rule}
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write_event(recorded_event)
        journal.write_attempts([Attempt("/apis", "1", "check-rule", datetime.now(timezone.utc), 0.1, 200, (reply,))])

    result = run_command("must-gather", "--file", str(tmp_path / "case"), "--journal", str(tmp_path / "journal.db"))

    assert result.exit_code == 0, result.output
    text = read_archive(tmp_path / "case")["journal.jsonl"].decode()
    assert SECRET_VALUE not in text
    assert text.count('"TOKEN"') == 2


def test_unreadable_log_is_reported_and_other_files_are_archived(run_command: RunCommand, tmp_path: Path) -> None:
    """NMO-25: an unreadable log file is reported with exit status 1, and all other files are archived.

    Examples are a directory, and a dangling symbolic link, which a log rotation can leave for a moment.
    """
    (tmp_path / "evict.log").symlink_to(tmp_path / "rotated")
    (tmp_path / "old.log").mkdir()
    (tmp_path / "status.log").write_text("a line\n")
    Journal(tmp_path / "journal.db").close()
    options = ("--logs", str(tmp_path), "--journal", str(tmp_path / "journal.db"))

    result = run_command("must-gather", "--file", str(tmp_path / "case"), *options)

    files = read_archive(tmp_path / "case")
    unreadable_files = {name: str(tmp_path / f"{name}.log") for name in ("evict", "old")}
    assert json.loads(files["index.json"])["notRead"] == [
        {"what": unreadable_files["evict"], "message": "No such file or directory"},
        {"what": unreadable_files["old"], "message": "Is a directory"},
    ]
    assert (files["logs/status.log"], "journal.jsonl" in files) == (b"a line\n", True)
    assert result.exit_code == 1
    assert (
        f"is incomplete: {unreadable_files['evict']}: No such file or directory; {unreadable_files['old']}: "
        in result.stderr
    )


def test_unreadable_journal_is_reported_and_other_files_are_archived(run_command: RunCommand, tmp_path: Path) -> None:
    """NMO-25: if the journal cannot be read, the exit status is 1, and the index contains the reason."""
    file = tmp_path / "journal.db"
    Journal(file).close()
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE bodies")

    result = run_command("must-gather", "--file", str(tmp_path / "case"), "--journal", str(file))

    files = read_archive(tmp_path / "case")
    assert result.exit_code == 1
    assert [entry["what"] for entry in json.loads(files["index.json"])["notRead"]] == ["the journal"]
    assert "is incomplete: the journal: " in result.stderr
    assert "nodes.json" in files


def test_node_name_cannot_place_file_outside_archive(
    run_command: RunCommand, served_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that the node name in a maintenance, which may be any string, cannot place a file outside the archive."""
    client, body = (
        served_cluster.get_client(),
        {"metadata": {"name": "led-out"}, "spec": {"nodeName": "zz/../../../../escaped"}},
    )
    client.create(MEDIK8S.path, {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", **body})
    result = run_command("must-gather", "--file", str(tmp_path / "case"))
    client.run(client.api.request("DELETE", f"{MEDIK8S.path}/led-out"))

    assert result.exit_code == 0, result.output
    members = read_archive(tmp_path / "case")
    assert [name for name in members if "escaped" in name] == ["pods/zz%3A..%3A..%3A..%3A..%3Aescaped.json"]
    assert [name for name in members if ".." in name.split("/")] == []


@pytest.mark.parametrize("has_logs_option", [False, True])
def test_missing_logs_and_events_are_reported(
    run_command: RunCommand, product: Product, blocked_node_with_secrets: str, tmp_path: Path, has_logs_option: bool
) -> None:
    """Check that the output reports missing logs and missing recorded events.

    The command cannot find the logs of functions that do not run in pods.
    """
    logs = ["--logs", str(product.functions_log.parent)] if has_logs_option else []

    result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"), *logs)

    assert result.stdout.splitlines()[1].startswith("Review it before you share it: it contains reasons, annotations, ")
    assert ("The archive contains no logs: " in result.stdout) is not has_logs_option
    assert "The archive contains no recorded events: name the journal with --journal." in result.stdout


@pytest.fixture
def limited_kubeconfig(served_cluster: LocalCluster) -> Iterator[Path]:
    """Yield a kubeconfig for a ServiceAccount that may only list nodes and the maintenances of one API group."""
    account = f"--serviceaccount=default:{LIMITED_ACCOUNT}"
    role_options = ("--verb=list", "--resource=nodes,nodemaintenances.nodemaintenance.medik8s.io")
    served_cluster.kubectl("create", "serviceaccount", LIMITED_ACCOUNT, "-n", "default")
    served_cluster.kubectl("create", "clusterrole", LIMITED_ACCOUNT, *role_options)
    served_cluster.kubectl("create", "clusterrolebinding", LIMITED_ACCOUNT, f"--clusterrole={LIMITED_ACCOUNT}", account)
    kubeconfig = write_account_kubeconfig(served_cluster, "default", LIMITED_ACCOUNT)
    yield kubeconfig
    kubeconfig.unlink()  # The next ServiceAccount with this name needs a new token.
    served_cluster.kubectl("delete", f"clusterrole/{LIMITED_ACCOUNT}", f"clusterrolebinding/{LIMITED_ACCOUNT}")
    served_cluster.kubectl("delete", "serviceaccount", LIMITED_ACCOUNT, "-n", "default")


def run_must_gather(kubeconfig: Path, file: Path) -> Result:
    """Run `must-gather` with this kubeconfig, and return the result."""
    return CliRunner().invoke(cli, ["must-gather", f"--kubeconfig={kubeconfig}", "--file", str(file)])


@proves("NMO-25")
def test_missing_permissions_are_listed_and_readable_objects_are_kept(
    limited_kubeconfig: Path, blocked_node_with_secrets: str, tmp_path: Path
) -> None:
    """NMO-25: one line lists the missing permissions, the exit status is 1, and all readable objects are archived."""
    file = tmp_path / "case.tar.gz"

    result = run_must_gather(limited_kubeconfig, file)

    missing = [
        "list nodemaintenances.nodemaintenance.kubevirt.io",
        "list nodemaintenances.kubevirt.io",
        "list poddisruptionbudgets.policy",
        "list events",
        "list leases.coordination.k8s.io in medik8s-leases",
        "list pods",
        "list pods in node-maintenance",
        "list deployments.apps in node-maintenance",
    ]
    files = read_archive(file)
    index = json.loads(files["index.json"])
    permissions = [entry["permission"] for entry in index["missingPermissions"]]
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert set(missing) <= set(permissions)
    assert result.stderr.rstrip().endswith(f"ask an administrator for the rights to {', '.join(permissions)}")
    assert all(
        permission.split()[1].partition(".")[0] in entry["message"]
        for permission, entry in zip(permissions, index["missingPermissions"], strict=True)
    )
    assert blocked_node_with_secrets in get_object_names(files["maintenances/nodemaintenance.medik8s.io.json"])
    assert blocked_node_with_secrets in get_object_names(files["nodes.json"])


@pytest.mark.slow
@proves("NMO-25", "NMO-25a")
def test_archive_contains_mutex_run_configs_rules_and_jobs(
    run_command: RunCommand, served_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that the archive contains MutexRules, MutexRunConfigs and Jobs, without values of environment variables.

    The test cluster is not OpenShift, so the index lists MachineConfigPools as not installed.
    """
    container = {"name": "mutex", "image": "fake", "env": [{"name": "TOKEN", "value": SECRET_VALUE}]}
    job = {"template": {"spec": {"containers": [container], "restartPolicy": "Never", "nodeSelector": {"no": "one"}}}}
    client = served_cluster.get_client()
    with mutex_runs.install_mutex_crds(served_cluster):
        mutex_runs.create_run_config(client, "example")
        spec = {"jobName": "disks", "jobNamespace": DEFAULT_NAMESPACE, "jobSpec": job}
        client.create(
            build_collection_path(RULE_KIND, DEFAULT_NAMESPACE),
            {**MUTEX_API_VERSION, "kind": RULE_KIND, "metadata": {"name": "disks"}, "spec": spec},
        )
        metadata = {"name": "disks-1", "labels": {RUN_LABEL: "uid-1"}}
        client.create(build_jobs_path(DEFAULT_NAMESPACE), {"metadata": metadata, "spec": job})
        result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"))
        client.run(client.api.request("DELETE", build_job_path(DEFAULT_NAMESPACE, "disks-1")))
    assert result.exit_code == 0, result.output
    files = read_archive(tmp_path / "case.tar.gz")
    assert get_object_names(files["mutex/mutexrunconfigs.json"]) == ["example"]
    assert get_object_names(files["mutex/mutexrules.json"]) == ["disks"]
    assert get_object_names(files["mutex/jobs.json"]) == ["disks-1"]
    assert [name for name, content in files.items() if SECRET_VALUE.encode() in content] == []
    not_installed = json.loads(files["index.json"])["notInstalled"]
    assert "list machineconfigpools.machineconfiguration.openshift.io" in not_installed


@pytest.mark.slow
@proves("NMO-25a")
def test_archive_contains_pools_and_cluster_version(
    run_command: RunCommand, served_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that the archive contains OpenShift's MachineConfigPools and ClusterVersion, if there is an upgrade run."""
    client = served_cluster.get_client()
    crds.install_crds(served_cluster, (MUTEX,))
    try:
        with mutex_runs.install_mutex_crds(served_cluster):
            mutex_runs.create_run_config(client, "example")
            client.create(pools.POOLS_PATH, build_pool("blue", {"role": "blue"}))
            type_fields = {"apiVersion": "config.openshift.io/v1", "kind": "ClusterVersion"}
            spec = {"clusterID": "8f6a2f6e-3a0b-4a5c-9a52-0f6a1e0f4c11"}
            client.create(CLUSTER_VERSIONS_PATH, {**type_fields, "metadata": {"name": "version"}, "spec": spec})
            result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"))
    finally:
        for file in crds.fetch_openshift_crd_files():
            served_cluster.kubectl("delete", "-f", file)

    assert result.exit_code == 0, result.output
    files = read_archive(tmp_path / "case.tar.gz")
    assert get_object_names(files["mutex/machineconfigpools.json"]) == ["blue"]
    assert get_object_names(files["mutex/clusterversions.json"]) == ["version"]
    assert json.loads(files["index.json"])["missingPermissions"] == []


@pytest.mark.slow
@proves("NMO-25", "NMO-25a")
def test_archive_contains_vms_and_migrations(
    run_command: RunCommand, served_cluster: LocalCluster, blocked_node_with_secrets: str, tmp_path: Path
) -> None:
    """Check that the archive contains VMs, VMIs, migrations and virt-launcher pods, without cloud-init data."""
    client = served_cluster.get_client()
    volume = {"name": "seed", "cloudInitNoCloud": {"userData": f"#cloud-config\npassword: {SECRET_VALUE}"}}
    with virtual_machines.install_kubevirt_crds(served_cluster):
        virtual_machines.create_vms(client, blocked_node_with_secrets)
        path = f"/apis/kubevirt.io/v1/namespaces/{virtual_machines.VM_NAMESPACE}/virtualmachines/live"
        client.patch(path, {"spec": {"template": {"spec": {"volumes": [volume]}}}})
        result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"))
        virtual_machines.delete_vms(client)
    assert result.exit_code == 0, result.output
    files = read_archive(tmp_path / "case.tar.gz")
    for kind in ("virtualmachines", "virtualmachineinstances"):
        assert get_object_names(files[f"virtualization/{kind}.json"]) == ["live", "manual", "plain", "stuck"]
    assert get_object_names(files["virtualization/virtualmachineinstancemigrations.json"]) == [
        virtual_machines.MIGRATION_NAME
    ]
    assert "virt-launcher-live" in get_object_names(files["virtualization/launchers.json"])
    assert get_object_names(files["virtualization/kubevirts.json"]) == []
    assert [name for name, content in files.items() if SECRET_VALUE.encode() in content] == []


@proves("NMO-25")
def test_archive_contains_cpu_capabilities(
    run_command: RunCommand, served_cluster: LocalCluster, tmp_path: Path
) -> None:
    """Check that the archive contains the nodes' CPU capabilities, and lists HyperConverged as not installed."""
    client, path = served_cluster.get_client(), "/api/v1/namespaces/default/configmaps"
    client.create(
        path, {"metadata": {"name": "cpus", "labels": {capabilities.CAPABILITIES_LABEL: ""}}, "data": {"a": "{}"}}
    )
    result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"))
    client.run(client.api.request("DELETE", f"{path}/cpus"))

    assert result.exit_code == 0, result.output
    files = read_archive(tmp_path / "case.tar.gz")
    assert get_object_names(files["cpu-labels/capabilities.json"]) == ["cpus"]
    assert "list hyperconvergeds.hco.kubevirt.io" in json.loads(files["index.json"])["notInstalled"]


@pytest.mark.slow
@proves("NMO-25a")
def test_archive_contains_hyperconverged(run_command: RunCommand, served_cluster: LocalCluster, tmp_path: Path) -> None:
    """Check that the archive contains the HyperConverged object with its list of obsolete CPU models.

    The command reads this object only if a ConfigMap describes the nodes' CPU capabilities.
    """
    client, obsolete_cpus = (
        served_cluster.get_client(),
        {"obsoleteCPUs": {"cpuModels": ["Haswell"], "minCPUModel": "Penryn"}},
    )
    config_map = {"metadata": {"name": "offered", "labels": {capabilities.CAPABILITIES_LABEL: ""}}, "data": {"a": "{}"}}
    client.create("/api/v1/namespaces/default/configmaps", config_map)
    body = {"apiVersion": hyperconverged.API_VERSION, "kind": hyperconverged.KIND, "spec": obsolete_cpus}
    path = f"/apis/{hyperconverged.API_VERSION}/namespaces/default/hyperconvergeds"
    crds.install_crds(served_cluster, (CPU_LABELS,))
    client.create(path, {**body, "metadata": {"name": hyperconverged.HYPERCONVERGED_NAME}})
    result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"))
    served_cluster.kubectl("delete", "-f", crds.HYPERCONVERGED_CRD_FILE)
    served_cluster.kubectl("delete", "configmap", "offered")

    assert result.exit_code == 0, result.output
    (hyperconverged_object,) = json.loads(read_archive(tmp_path / "case.tar.gz")["cpu-labels/hyperconvergeds.json"])[
        "items"
    ]
    assert (hyperconverged_object["metadata"]["name"], hyperconverged_object["spec"]) == (
        hyperconverged.HYPERCONVERGED_NAME,
        obsolete_cpus,
    )


def test_error_without_any_permission_lists_all_permissions(served_cluster: LocalCluster, tmp_path: Path) -> None:
    """NMO-25, OSV-14: the error for a user without any permission lists all missing permissions, maintenances first."""
    result = run_must_gather(served_cluster.ensure_kubeconfig(UNPRIVILEGED), tmp_path / "case.tar.gz")

    assert result.exit_code == 1
    assert "the rights to list nodemaintenances.nodemaintenance.medik8s.io, " in result.stderr
    assert set(read_archive(tmp_path / "case.tar.gz")) == {"index.json", "version.json"}


class FakeKubeletHandler(http.server.BaseHTTPRequestHandler):
    """Request handler of a fake kubelet that serves container logs."""

    def do_GET(self) -> None:
        path, _, query = self.path.partition("?")
        text = f"{path} {'before' if 'previous=true' in query else 'now'}\n".encode()
        self.send_response(200 if "/containerLogs/" in path else 404)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, format: str, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def kubelet_port(served_cluster: LocalCluster) -> Iterator[int]:
    """Yield the port of a fake kubelet, which uses the API server's serving certificate."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), FakeKubeletHandler)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (certificate,) = served_cluster.directory.rglob("apiserver.crt")
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def build_function_pod(name: str, node: str) -> dict[str, Any]:
    """Build a pod like those of the product's Deployments."""
    containers = [{"name": "function", "image": "registry.invalid/main"}]
    metadata = {"name": name, "namespace": "node-maintenance", "labels": PRODUCT_LABELS}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": containers},
    }


@pytest.fixture
def function_pods(served_cluster: LocalCluster, kubelet_port: int) -> Iterator[None]:
    """Create a function pod on a node with a fake kubelet, and another on a node whose kubelet does not respond.

    The pod on the first node has been restarted once.
    """
    addresses = [{"type": "InternalIP", "address": "127.0.0.1"}]
    ports = {"node-with-logs": kubelet_port, "node-without": 9}  # Port 9 (discard) has no listener.
    for number, (node, port) in enumerate(ports.items()):
        served_cluster.kubectl(
            "create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        )
        status = {"addresses": addresses, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        patch_status(served_cluster, status, "node", node)
        served_cluster.kubectl("create", "-f", "-", input=json.dumps(build_function_pod(f"evict-{number}", node)))
    container_status = {"name": "function", "restartCount": 1, "image": "i", "imageID": "i", "ready": True}
    patch_status(served_cluster, {"containerStatuses": [container_status]}, "pod", "evict-0", "-n=node-maintenance")
    yield
    served_cluster.kubectl("delete", "pod", "evict-0", "evict-1", "-n=node-maintenance", "--force", "--grace-period=0")
    served_cluster.kubectl("delete", "node", *ports)


def patch_status(cluster: LocalCluster, status: dict[str, Any], *object_arguments: str) -> None:
    """Write an object's status, as a kubelet does; `object_arguments` identify the object for `kubectl patch`."""
    cluster.kubectl(
        "patch",
        *object_arguments,
        "--subresource=status",
        "--type=merge",
        "-p",
        json.dumps({"status": status}),
    )


@pytest.mark.usefixtures("function_pods")
def test_logs_of_function_pods_are_archived(run_command: RunCommand, tmp_path: Path) -> None:
    """NMO-25: current and previous logs are archived; an unreachable kubelet does not count as a missing permission."""
    result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"))

    files = read_archive(tmp_path / "case.tar.gz")
    index = json.loads(files["index.json"])
    path = b"/containerLogs/node-maintenance/evict-0/function"
    assert files["logs/evict-0/function.log"] == path + b" now\n"
    assert files["logs/evict-0/function.previous.log"] == path + b" before\n"
    assert [entry["what"] for entry in index["notRead"]] == [
        "get pods/log in node-maintenance, for logs/evict-1/function.log"
    ]
    assert index["missingPermissions"] == []
    assert result.exit_code == 1
    assert "logs/evict-1/function.log: " in result.stderr


@pytest.mark.usefixtures("function_pods")
def test_error_names_missing_permission_for_logs(
    served_cluster: LocalCluster, limited_kubeconfig: Path, tmp_path: Path
) -> None:
    """NMO-25: if the permission to get pods/log is missing, the error names it only once for all pods."""
    served_cluster.kubectl("create", "role", LIMITED_ACCOUNT, "--verb=list", "--resource=pods", "-n=node-maintenance")
    served_cluster.kubectl(
        "create",
        "rolebinding",
        LIMITED_ACCOUNT,
        f"--role={LIMITED_ACCOUNT}",
        f"--serviceaccount=default:{LIMITED_ACCOUNT}",
        "-n=node-maintenance",
    )

    result = run_must_gather(limited_kubeconfig, tmp_path / "case.tar.gz")

    served_cluster.kubectl("delete", f"role/{LIMITED_ACCOUNT}", f"rolebinding/{LIMITED_ACCOUNT}", "-n=node-maintenance")
    assert "list pods in node-maintenance" not in result.stderr
    assert result.stderr.count("get pods/log in node-maintenance") == 1


def test_must_gather_does_not_overwrite_existing_file(run_command: RunCommand, tmp_path: Path) -> None:
    file = tmp_path / "case.tar.gz"
    file.write_text("an older case")

    result = run_command("must-gather", "--file", str(file))

    assert (result.exit_code, result.stderr) == (1, f"Error: {file} already exists: name another --file\n")
    assert file.read_text() == "an older case"


def test_missing_journal_of_must_gather_is_one_line_error(run_command: RunCommand, tmp_path: Path) -> None:
    missing_journal = tmp_path / "none.db"

    result = run_command("must-gather", "--file", str(tmp_path / "case.tar.gz"), "--journal", str(missing_journal))

    assert result.exit_code == 2
    assert result.stderr == f"Error: journal {missing_journal} not found: name it with --journal or $JOURNAL\n"
    assert not (tmp_path / "case.tar.gz").exists()


def test_missing_output_directory_is_one_line_error(run_command: RunCommand, tmp_path: Path) -> None:
    result = run_command("must-gather", "--file", str(tmp_path / "none" / "case.tar.gz"))

    assert result.exit_code == 1
    assert result.stderr.startswith("Error: cannot write ")
    assert result.stderr.endswith(": No such file or directory; name another --file\n")


def test_interrupted_archive_contains_its_index(tmp_path: Path) -> None:
    """Check that an archive is valid and contains its index even if Ctrl-C interrupts the command."""

    def write_and_interrupt() -> None:
        with Archive(tmp_path / "case.tar.gz") as archive:
            archive.add_file("nodes.json", b"{}", "list nodes")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_and_interrupt()

    assert set(read_archive(tmp_path / "case.tar.gz")) == {"nodes.json", "index.json"}


IGNITION = {"kubevirt.io/ignitiondata": json.dumps({"passwd": {"users": [{"passwordHash": SECRET_VALUE}]}})}
APPLIED_CONFIGURATION = json.dumps({"spec": {"containers": [{"env": [{"name": "TOKEN", "value": SECRET_VALUE}]}]}})
DOWNLOAD_SOURCE = {"http": {"url": "https://images.example", "extraHeaders": [f"Authorization: Bearer {SECRET_VALUE}"]}}
OBJECTS_WITH_SECRETS = {
    "Ignition": {"metadata": {"annotations": IGNITION}},
    "template": {"spec": {"template": {"metadata": {"annotations": IGNITION}}}},
    "download": {"spec": {"dataVolumeTemplates": [{"spec": {"source": DOWNLOAD_SOURCE}}]}},
    "cloud-init": {"cloudInitConfigDrive": {"userDataBase64": SECRET_VALUE, "networkData": SECRET_VALUE}},
    "last applied configuration": {
        "annotations": {"kubectl.kubernetes.io/last-applied-configuration": APPLIED_CONFIGURATION}
    },
    "configuration applied by another tool": {"annotations": {"kapp.k14s.io/original": APPLIED_CONFIGURATION}},
    "object in an annotation": {"annotations": {"example.com/pod": f" {APPLIED_CONFIGURATION}"}},
    "object in a list in an annotation": {
        "annotations": {"example.com/all": json.dumps([{"pod": APPLIED_CONFIGURATION}])}
    },
    "event whose data is a string": {"data": json.dumps({"userData": SECRET_VALUE})},
    "too deeply nested to be searched": {
        "annotations": {"example.com/deep": "[" * 900 + json.dumps(SECRET_VALUE) + "]" * 900}
    },
}


@pytest.mark.parametrize("obj", OBJECTS_WITH_SECRETS.values(), ids=OBJECTS_WITH_SECRETS)
def test_secrets_are_redacted_everywhere_in_object(obj: Any) -> None:
    """NMO-25: secret values, such as a VM's cloud-init data, are redacted wherever they occur in an object.

    KubeVirt copies such values from the VM to the VMI and the virt-launcher pod, and tools store whole objects in
    annotations.
    """
    assert SECRET_VALUE not in json.dumps(redact_possible_secrets(obj))


@pytest.mark.parametrize("text", ["{", "[1, 2", "{}", '{"uid":  "1"}', "[a] was refused", "", '[{"env": ["x"]}]'])
def test_redaction_leaves_text_without_secrets_unchanged(text: str) -> None:
    """Check that redaction leaves text without secret values unchanged, even if the text is JSON."""
    assert redact_possible_secrets({"message": text}) == {"message": text}


@pytest.mark.parametrize("env", [["value"], [5, None], [["value"]], "value", {"name": "URL"}, None, 5, [{"name": "A"}]])
def test_env_field_in_unknown_format_is_unchanged(env: Any) -> None:
    """X-1: redaction leaves an `env` field in an unknown format unchanged; any client may post events with any data."""
    assert redact_possible_secrets({"data": {"env": env}}) == {"data": {"env": env}}


def test_environment_values_are_redacted_at_any_depth() -> None:
    """Check that the values of environment variables are redacted at any depth, but not their names and references."""
    reference = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    spec = {
        "template": {"spec": {"containers": [{"env": [{"name": "URL", "value": "postgresql://u:p@h/d"}, reference]}]}}
    }
    manifest = {
        "metadata": {"managedFields": [], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}
    }

    redacted = redact_possible_secrets({**manifest, "spec": spec})

    assert redacted["metadata"] == {"annotations": {}}
    [container] = redacted["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "URL", "value": "(redacted)"}, reference]
