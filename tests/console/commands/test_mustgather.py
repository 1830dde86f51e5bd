"""Tests of `must-gather` on a real cluster: the content of the archive, redaction, and missing permissions."""

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

from console.cli import commands
from console.operations.archive import Archive
from console.operations.archive_contents import without_values
from eventing import events
from eventing.journal.store import Attempt, Journal, Query
from kube.cpu import capabilities, hyperconverged
from kube.maintenance.groups import MEDIK8S
from kube.maintenance.leases import lease_name
from kube.mutex.jobs import job_path, jobs_path
from kube.mutex.objects import API_VERSION, NAMESPACE, RULE, RUN_LABEL, collection
from localcluster.access import UNPRIVILEGED
from localcluster.cluster import LocalCluster
from localcluster.hyperconverged import crds
from localcluster.knative.fake_kubelet import kubeconfig
from localcluster.processes import await_ready
from localcluster.product import Product
from tests.console.commands import virtual_machines, mutex_runs
from tests.console.commands.workload_objects import apply, budget, controlled, pod
from tests.console.conftest import Nodes, Run
from tests.proofs import proves

PASSWORD = "hunter-of-two-secrets"  # noqa: S105 - what must not be found
LABELS = {"app.kubernetes.io/part-of": "node-maintenance"}
READER = "reader"
OURS = {"apiVersion": API_VERSION}


def contents(file: Path) -> dict[str, bytes]:
    """Return the files of an archive by name, without the archive's one top-level directory."""
    with tarfile.open(file) as archive:
        found = [(entry.name, archive.extractfile(entry)) for entry in archive.getmembers()]
        return {name.removeprefix("must-gather/"): opened.read() for name, opened in found if opened}


def names(content: bytes) -> list[str]:
    """Return the names of the objects in a list."""
    return [item["metadata"]["name"] for item in json.loads(content)["items"]]


def await_attempts(journal: Path, node: str) -> None:
    """Wait until attempts on events about the node are in the journal; functions publish them half a second later."""
    with closing(Journal(journal)) as book:
        await_ready("attempts", lambda: any(entry.attempts for entry in book.select(Query(node=node))), [], 10)


@pytest.fixture
def maintained(installed: LocalCluster, product: Product, new_node: Nodes, run: Run) -> Iterator[str]:
    """Yield a node whose drain a budget blocks, with secret values that the archive must not contain."""
    node = new_node()
    bare = pod(f"bare-{node}", node)
    bare["spec"]["containers"][0]["env"] = [{"name": "TOKEN", "value": PASSWORD}]
    bare["metadata"]["finalizers"] = ["test.nodemaintenance.dev/stay"]
    apply(installed, bare, controlled("ReplicaSet", node), budget("strict", node, {"by": "replicaset"}, minAvailable=1))
    for namespace in ("default", "node-maintenance"):
        installed.kubectl("create", "secret", "generic", f"s-{node}", "-n", namespace, f"--from-literal=p={PASSWORD}")
    run("start", node, "--wait", "--timeout=1s")
    yield node
    installed.kubectl("patch", "pod", bare["metadata"]["name"], "-p", '{"metadata":{"finalizers":null}}')
    run("stop", node)


@proves("NMO-25")
def test_all_that_explains_a_maintenance_is_in_the_archive(
    run: Run, maintained: str, product: Product, tmp_path: Path
) -> None:
    """NMO-25: The archive contains everything that explains a maintenance, and the index names every file.

    The files are maintenances, nodes, budgets, the node's pods, Events, leases, logs and the journal.
    """
    file = tmp_path / "case.tar.gz"
    await_attempts(product.journal, maintained)

    result = run(
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
    files = contents(file)
    index = json.loads(files.pop("index.json"))
    assert json.loads(result.stdout) == {"file": str(file), **index}
    assert [entry["file"] for entry in index["files"]] == list(files)
    assert maintained in names(files["maintenances/nodemaintenance.medik8s.io.json"])
    assert maintained in names(files["nodes.json"])
    assert "strict" in names(files["poddisruptionbudgets.json"])
    assert f"bare-{maintained}" in names(files[f"pods/{maintained}.json"])
    assert lease_name(maintained) in names(files["leases.json"])
    assert "CordonNode" in {item["reason"] for item in json.loads(files["events.json"])["items"]}
    assert b"Reconciling NodeMaintenance" in files["logs/functions.log"]
    recorded = [json.loads(line) for line in files["journal.jsonl"].splitlines()]
    assert {"dev.nodemaintenance.maintenance.begun", "dev.nodemaintenance.attempts.made"} <= {
        event["type"] for event in recorded if maintained in json.dumps(event)
    }
    assert index["missingPermissions"] == index["notRead"] == []
    assert "list triggers.eventing.knative.dev in node-maintenance" in index["notInstalled"]


def test_no_secret_is_in_the_archive(run: Run, maintained: str, tmp_path: Path) -> None:
    """NMO-25: The archive has no Secrets and no values of environment variables, and only its owner may read it."""
    file = tmp_path / "case.tar.gz"

    assert run("must-gather", "--file", str(file)).exit_code == 0

    files = contents(file)
    assert [name for name, content in files.items() if PASSWORD.encode() in content] == []
    assert b'"TOKEN"' in files[f"pods/{maintained}.json"]
    assert file.stat().st_mode & 0o077 == 0


@proves("NMO-25")
def test_no_value_of_the_environment_is_in_what_was_recorded(run: Run, tmp_path: Path) -> None:
    """NMO-25: The journal in the archive has no values of environment variables.

    Events of the API server contain whole objects. Rules contain containers, and so do the replies to events about
    rules.
    """
    container = {"name": "mutex", "env": [{"name": "TOKEN", "value": PASSWORD}]}
    rule = {**OURS, "kind": RULE, "metadata": {"name": "disks", "uid": "1"}, "spec": {"containers": [container]}}
    attributes = {"id": "1", "source": "/apis", "type": events.RESOURCE_ADDED, "kind": RULE}
    recorded = CloudEvent({**attributes, "datacontenttype": "application/json"}, rule)
    reply = {"id": "2", "type": "x", "data": rule}
    with closing(Journal(tmp_path / "journal.db")) as journal:
        journal.write(recorded)
        journal.write_attempts([Attempt("/apis", "1", "check-rule", datetime.now(timezone.utc), 0.1, 200, (reply,))])

    result = run("must-gather", "--file", str(tmp_path / "case"), "--journal", str(tmp_path / "journal.db"))

    assert result.exit_code == 0, result.output
    text = contents(tmp_path / "case")["journal.jsonl"].decode()
    assert PASSWORD not in text
    assert text.count('"TOKEN"') == 2


def test_a_log_that_cannot_be_read_is_named_and_the_rest_is_kept(run: Run, tmp_path: Path) -> None:
    """NMO-25: An unreadable log file is reported with exit status 1, and the rest of the archive is written.

    Examples are a dangling link, which a log rotation can leave for a moment, and a directory.
    """
    (tmp_path / "evict.log").symlink_to(tmp_path / "rotated")
    (tmp_path / "old.log").mkdir()
    (tmp_path / "status.log").write_text("a line\n")
    Journal(tmp_path / "journal.db").close()
    given = ("--logs", str(tmp_path), "--journal", str(tmp_path / "journal.db"))

    result = run("must-gather", "--file", str(tmp_path / "case"), *given)

    files = contents(tmp_path / "case")
    missed = {name: str(tmp_path / f"{name}.log") for name in ("evict", "old")}
    assert json.loads(files["index.json"])["notRead"] == [
        {"what": missed["evict"], "message": "No such file or directory"},
        {"what": missed["old"], "message": "Is a directory"},
    ]
    assert (files["logs/status.log"], "journal.jsonl" in files) == (b"a line\n", True)
    assert result.exit_code == 1
    assert f"is not whole: {missed['evict']}: No such file or directory; {missed['old']}: " in result.stderr


def test_a_journal_that_is_lost_midway_is_named_and_the_rest_is_kept(run: Run, tmp_path: Path) -> None:
    """NMO-25: A journal that fails while it is read exits with 1, and the index gives the reason."""
    file = tmp_path / "journal.db"
    Journal(file).close()
    with closing(sqlite3.connect(file)) as database:
        database.execute("DROP TABLE bodies")

    result = run("must-gather", "--file", str(tmp_path / "case"), "--journal", str(file))

    files = contents(tmp_path / "case")
    assert result.exit_code == 1
    assert [missed["what"] for missed in json.loads(files["index.json"])["notRead"]] == ["the journal"]
    assert "is not whole: the journal: " in result.stderr
    assert "nodes.json" in files


def test_no_name_leads_out_of_the_archive(run: Run, served: LocalCluster, tmp_path: Path) -> None:
    """Check that a node name in a maintenance, which may be any text, cannot place a file outside the archive."""
    door, body = served.door(), {"metadata": {"name": "led-out"}, "spec": {"nodeName": "zz/../../../../escaped"}}
    door.create(MEDIK8S.path, {"apiVersion": MEDIK8S.api_version, "kind": "NodeMaintenance", **body})
    result = run("must-gather", "--file", str(tmp_path / "case"))
    door.run(door.api.request("DELETE", f"{MEDIK8S.path}/led-out"))

    assert result.exit_code == 0, result.output
    members = contents(tmp_path / "case")
    assert [name for name in members if "escaped" in name] == ["pods/zz%3A..%3A..%3A..%3A..%3Aescaped.json"]
    assert [name for name in members if ".." in name.split("/")] == []


@pytest.mark.parametrize("given", [False, True])
def test_what_explains_most_is_missed_aloud(
    run: Run, product: Product, maintained: str, tmp_path: Path, given: bool
) -> None:
    """Check that the output names missing logs and recorded events.

    Functions that do not run in pods have their logs in a directory that the command cannot guess.
    """
    logs = ["--logs", str(product.functions_log.parent)] if given else []

    result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"), *logs)

    assert ("No logs are in it: " in result.stdout) is not given
    assert "The recorded events are not in it: name their journal by --journal." in result.stdout


@pytest.fixture
def reader(served: LocalCluster) -> Iterator[Path]:
    """Yield a kubeconfig of a ServiceAccount that may only list nodes and the maintenances of one API group."""
    account = f"--serviceaccount=default:{READER}"
    rules = ("--verb=list", "--resource=nodes,nodemaintenances.nodemaintenance.medik8s.io")
    served.kubectl("create", "serviceaccount", READER, "-n", "default")
    served.kubectl("create", "clusterrole", READER, *rules)
    served.kubectl("create", "clusterrolebinding", READER, f"--clusterrole={READER}", account)
    identity = kubeconfig(served, "default", READER)
    yield identity
    identity.unlink()  # another ServiceAccount of this name needs a new token
    served.kubectl("delete", f"clusterrole/{READER}", f"clusterrolebinding/{READER}")
    served.kubectl("delete", "serviceaccount", READER, "-n", "default")


def gathered(identity: Path, file: Path) -> Result:
    """Run `must-gather` with this kubeconfig, and return the result."""
    return CliRunner().invoke(commands, ["must-gather", f"--kubeconfig={identity}", "--file", str(file)])


@proves("NMO-25")
def test_each_missing_permission_is_named_and_what_can_be_read_is_kept(
    reader: Path, maintained: str, tmp_path: Path
) -> None:
    """NMO-25: Missing permissions exit with 1 and one line that lists them; the archive has all readable objects."""
    file = tmp_path / "case.tar.gz"

    result = gathered(reader, file)

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
    files = contents(file)
    index = json.loads(files["index.json"])
    permissions = [item["permission"] for item in index["missingPermissions"]]
    assert result.exit_code == 1
    assert result.stderr.count("\n") == 1
    assert set(missing) <= set(permissions)
    assert result.stderr.rstrip().endswith(f"ask an administrator for the rights to {', '.join(permissions)}")
    assert all(
        right.split()[1].partition(".")[0] in item["message"]
        for right, item in zip(permissions, index["missingPermissions"], strict=True)
    )
    assert maintained in names(files["maintenances/nodemaintenance.medik8s.io.json"])
    assert maintained in names(files["nodes.json"])


@pytest.mark.slow
@proves("NMO-25", "NMO-25a")
def test_runs_of_the_mutex_and_what_they_stand_on_are_in_the_archive(
    run: Run, served: LocalCluster, tmp_path: Path
) -> None:
    """Check that rule, run and Job are in the archive without environment values.

    The test cluster is not OpenShift, so the index lists MachineConfigPools as not installed.
    """
    container = {"name": "mutex", "image": "fake", "env": [{"name": "TOKEN", "value": PASSWORD}]}
    job = {"template": {"spec": {"containers": [container], "restartPolicy": "Never", "nodeSelector": {"no": "one"}}}}
    door = served.door()
    with mutex_runs.kinds(served):
        mutex_runs.create(door, "example")
        spec = {"jobName": "disks", "jobNamespace": NAMESPACE, "jobSpec": job}
        door.create(collection(RULE, NAMESPACE), {**OURS, "kind": RULE, "metadata": {"name": "disks"}, "spec": spec})
        labelled = {"name": "disks-1", "labels": {RUN_LABEL: "uid-1"}}
        door.create(jobs_path(NAMESPACE), {"metadata": labelled, "spec": job})
        result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"))
        door.run(door.api.request("DELETE", job_path(NAMESPACE, "disks-1")))
    assert result.exit_code == 0, result.output
    files = contents(tmp_path / "case.tar.gz")
    assert names(files["mutex/mutexrunconfigs.json"]) == ["example"]
    assert names(files["mutex/mutexrules.json"]) == ["disks"]
    assert names(files["mutex/jobs.json"]) == ["disks-1"]
    assert [name for name, content in files.items() if PASSWORD.encode() in content] == []
    absent = json.loads(files["index.json"])["notInstalled"]
    assert "list machineconfigpools.machineconfiguration.openshift.io" in absent


@pytest.mark.slow
@proves("NMO-25", "NMO-25a")
def test_virtual_machines_and_what_moves_them_are_in_the_archive(
    run: Run, served: LocalCluster, maintained: str, tmp_path: Path
) -> None:
    """Check that VM, VMI, migration and virt-launcher pods of all nodes are in the archive, without cloud-init data."""
    door = served.door()
    seed = {"name": "seed", "cloudInitNoCloud": {"userData": f"#cloud-config\npassword: {PASSWORD}"}}
    with virtual_machines.kinds(served):
        virtual_machines.each_kind(door, maintained)
        path = f"/apis/kubevirt.io/v1/namespaces/{virtual_machines.SPACE}/virtualmachines/live"
        door.patch(path, {"spec": {"template": {"spec": {"volumes": [seed]}}}})
        result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"))
        virtual_machines.clear(door)
    assert result.exit_code == 0, result.output
    files = contents(tmp_path / "case.tar.gz")
    for kind in ("virtualmachines", "virtualmachineinstances"):
        assert names(files[f"virtualization/{kind}.json"]) == ["live", "manual", "plain", "stuck"]
    assert names(files["virtualization/virtualmachineinstancemigrations.json"]) == [virtual_machines.MOVING]
    assert "virt-launcher-live" in names(files["virtualization/launchers.json"])
    assert names(files["virtualization/kubevirts.json"]) == []
    assert [name for name, content in files.items() if PASSWORD.encode() in content] == []


@proves("NMO-25")
def test_what_labels_of_cpus_stand_on_is_in_the_archive(run: Run, served: LocalCluster, tmp_path: Path) -> None:
    """Check that the CPU capabilities of nodes are in the archive, and that HyperConverged counts as not installed."""
    door, where = served.door(), "/api/v1/namespaces/default/configmaps"
    door.create(where, {"metadata": {"name": "cpus", "labels": {capabilities.LABEL: ""}}, "data": {"a": "{}"}})
    result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"))
    door.run(door.api.request("DELETE", f"{where}/cpus"))

    assert result.exit_code == 0, result.output
    files = contents(tmp_path / "case.tar.gz")
    assert names(files["cpu-labels/capabilities.json"]) == ["cpus"]
    assert "list hyperconvergeds.hco.kubevirt.io" in json.loads(files["index.json"])["notInstalled"]


@pytest.mark.slow
@proves("NMO-25a")
def test_a_hyperconverged_is_in_the_archive(run: Run, served: LocalCluster, tmp_path: Path) -> None:
    """Check that the HyperConverged object is in the archive, with its list of obsolete CPU models.

    The command reads the object if a ConfigMap describes the nodes' CPU capabilities.
    """
    door, wished = served.door(), {"obsoleteCPUs": {"cpuModels": ["Haswell"], "minCPUModel": "Penryn"}}
    offered = {"metadata": {"name": "offered", "labels": {capabilities.LABEL: ""}}, "data": {"a": "{}"}}
    door.create("/api/v1/namespaces/default/configmaps", offered)
    body = {"apiVersion": hyperconverged.API_VERSION, "kind": hyperconverged.KIND, "spec": wished}
    where = f"/apis/{hyperconverged.API_VERSION}/namespaces/default/hyperconvergeds"
    crds.install(served)
    door.create(where, {**body, "metadata": {"name": hyperconverged.NAME}})
    result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"))
    served.kubectl("delete", "-f", crds.FILE)
    served.kubectl("delete", "configmap", "offered")

    assert result.exit_code == 0, result.output
    (found,) = json.loads(contents(tmp_path / "case.tar.gz")["cpu-labels/hyperconvergeds.json"])["items"]
    assert (found["metadata"]["name"], found["spec"]) == (hyperconverged.NAME, wished)


def test_without_any_right_everything_is_named(served: LocalCluster, tmp_path: Path) -> None:
    """NMO-25, OSV-14: Without any permission, the error lists all of them, first the one to list maintenances."""
    result = gathered(served.kubeconfig_for(UNPRIVILEGED), tmp_path / "case.tar.gz")

    assert result.exit_code == 1
    assert "the rights to list nodemaintenances.nodemaintenance.medik8s.io, " in result.stderr
    assert set(contents(tmp_path / "case.tar.gz")) == {"index.json", "version.json"}


class Kubelet(http.server.BaseHTTPRequestHandler):
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
def kubelet(served: LocalCluster) -> Iterator[int]:
    """Yield the port of a fake kubelet; it uses the API server's own serving certificate."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Kubelet)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    (certificate,) = served.directory.rglob("apiserver.crt")
    context.load_cert_chain(certificate, certificate.with_suffix(".key"))
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield server.server_port
    server.shutdown()
    thread.join()
    server.server_close()


def function_pod(name: str, node: str) -> dict[str, Any]:
    """Build a pod like those of the product's Deployments."""
    containers = [{"name": "function", "image": "registry.invalid/main"}]
    metadata = {"name": name, "namespace": "node-maintenance", "labels": LABELS}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": containers},
    }


@pytest.fixture
def function_pods(served: LocalCluster, kubelet: int) -> Iterator[None]:
    """Create a pod of a function on each of two nodes: one with a kubelet, and one whose kubelet port has no listener.

    The pod on the first node has been restarted once.
    """
    address = [{"type": "InternalIP", "address": "127.0.0.1"}]
    ports = {"node-with-logs": kubelet, "node-without": 9}  # port 9 (discard) has no listener
    for number, (node, port) in enumerate(ports.items()):
        served.kubectl(
            "create", "-f", "-", input=json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": node}})
        )
        status = {"addresses": address, "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}
        patched("node", node, status, served)
        served.kubectl("create", "-f", "-", input=json.dumps(function_pod(f"evict-{number}", node)))
    restarted = {"name": "function", "restartCount": 1, "image": "i", "imageID": "i", "ready": True}
    patched("pod/evict-0", "-n=node-maintenance", {"containerStatuses": [restarted]}, served)
    yield
    served.kubectl("delete", "pod", "evict-0", "evict-1", "-n=node-maintenance", "--force", "--grace-period=0")
    served.kubectl("delete", "node", *ports)


def patched(what: str, where: str, status: dict[str, Any], cluster: LocalCluster) -> None:
    """Write a status, as a kubelet does."""
    cluster.kubectl("patch", what, where, "--subresource=status", "--type=merge", "-p", json.dumps({"status": status}))


@pytest.mark.usefixtures("function_pods")
def test_the_logs_of_the_functions_pods_are_read_through_the_api_server(run: Run, tmp_path: Path) -> None:
    """NMO-25: Current and previous logs are read through the API server; a failure is not a permission error."""
    result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"))

    files = contents(tmp_path / "case.tar.gz")
    index = json.loads(files["index.json"])
    path = b"/containerLogs/node-maintenance/evict-0/function"
    assert files["logs/evict-0/function.log"] == path + b" now\n"
    assert files["logs/evict-0/function.previous.log"] == path + b" before\n"
    assert [item["what"] for item in index["notRead"]] == [
        "get pods/log in node-maintenance, of logs/evict-1/function.log"
    ]
    assert index["missingPermissions"] == []
    assert result.exit_code == 1
    assert "logs/evict-1/function.log: " in result.stderr


@pytest.mark.usefixtures("function_pods")
def test_logs_take_a_right_of_their_own(served: LocalCluster, reader: Path, tmp_path: Path) -> None:
    """NMO-25: Logs need the permission for pods/log, which the error names once for all pods."""
    served.kubectl("create", "role", READER, "--verb=list", "--resource=pods", "-n=node-maintenance")
    served.kubectl(
        "create", "rolebinding", READER, f"--role={READER}", f"--serviceaccount=default:{READER}", "-n=node-maintenance"
    )

    result = gathered(reader, tmp_path / "case.tar.gz")

    served.kubectl("delete", f"role/{READER}", f"rolebinding/{READER}", "-n=node-maintenance")
    assert "list pods in node-maintenance" not in result.stderr
    assert result.stderr.count("get pods/log in node-maintenance") == 1


def test_a_file_that_is_there_is_not_overwritten(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "case.tar.gz"
    file.write_text("an older case")

    result = run("must-gather", "--file", str(file))

    assert (result.exit_code, result.stderr) == (1, f"Error: {file} is there already: name another --file\n")
    assert file.read_text() == "an older case"


def test_a_journal_that_is_not_there_is_one_line_and_no_archive(run: Run, tmp_path: Path) -> None:
    missing = tmp_path / "none.db"

    result = run("must-gather", "--file", str(tmp_path / "case.tar.gz"), "--journal", str(missing))

    assert result.exit_code == 2
    assert result.stderr == f"Error: there is no journal at {missing}: name it with --journal or $JOURNAL\n"
    assert not (tmp_path / "case.tar.gz").exists()


def test_a_folder_that_is_not_there_is_one_line(run: Run, tmp_path: Path) -> None:
    result = run("must-gather", "--file", str(tmp_path / "none" / "case.tar.gz"))

    assert result.exit_code == 1
    assert result.stderr.endswith("cannot be written: No such file or directory; name another --file\n")


def test_the_index_is_written_whatever_happens(tmp_path: Path) -> None:
    """Check that an archive interrupted by Ctrl-C is complete with its index."""

    def interrupted() -> None:
        with Archive(tmp_path / "case.tar.gz") as archive:
            archive.add("nodes.json", b"{}", "list nodes")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()

    assert set(contents(tmp_path / "case.tar.gz")) == {"nodes.json", "index.json"}


IGNITION = {"kubevirt.io/ignitiondata": json.dumps({"passwd": {"users": [{"passwordHash": PASSWORD}]}})}
APPLIED = json.dumps({"spec": {"containers": [{"env": [{"name": "TOKEN", "value": PASSWORD}]}]}})
DOWNLOAD = {"http": {"url": "https://images.example", "extraHeaders": [f"Authorization: Bearer {PASSWORD}"]}}
STARTED = {
    "Ignition": {"metadata": {"annotations": IGNITION}},
    "of a template": {"spec": {"template": {"metadata": {"annotations": IGNITION}}}},
    "of a download": {"spec": {"dataVolumeTemplates": [{"spec": {"source": DOWNLOAD}}]}},
    "cloud-init": {"cloudInitConfigDrive": {"userDataBase64": PASSWORD, "networkData": PASSWORD}},
    "what was applied": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": APPLIED}},
    "what others applied": {"annotations": {"kapp.k14s.io/original": APPLIED}},
    "an object in an annotation": {"annotations": {"example.com/pod": f" {APPLIED}"}},
    "a list in an object in an annotation": {"annotations": {"example.com/all": json.dumps([{"pod": APPLIED}])}},
    "an event whose data is a text": {"data": json.dumps({"userData": PASSWORD})},
    "too deep to be searched": {"annotations": {"example.com/deep": "[" * 900 + json.dumps(PASSWORD) + "]" * 900}},
}


@pytest.mark.parametrize("item", STARTED.values(), ids=STARTED)
def test_what_machines_are_started_with_is_left_out_wherever_it_stands(item: Any) -> None:
    """NMO-25: Secret values from which VMs are started are redacted wherever they occur.

    KubeVirt copies them from VM to VMI and virt-launcher pod, and tools keep whole objects in annotations.
    """
    assert PASSWORD not in json.dumps(without_values(item))


@pytest.mark.parametrize("text", ["{", "[1, 2", "{}", '{"uid":  "1"}', "[a] was refused", "", '[{"env": ["x"]}]'])
def test_a_text_without_such_values_is_as_it_was(text: str) -> None:
    """Check that text without secret values is unchanged character by character, even if it is JSON."""
    assert without_values({"message": text}) == {"message": text}


@pytest.mark.parametrize("env", [["value"], [5, None], [["value"]], "value", {"name": "URL"}, None, 5, [{"name": "A"}]])
def test_what_somebody_else_calls_env_is_as_it_is(env: Any) -> None:
    """X-1: An `env` field of another format is unchanged, since any client may post events with any data."""
    assert without_values({"data": {"env": env}}) == {"data": {"env": env}}


def test_values_of_the_environment_are_left_out_at_any_depth() -> None:
    """Check that values of environment variables are redacted at any depth, while names and references stay."""
    reference = {"name": "KEY", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}
    spec = {
        "template": {"spec": {"containers": [{"env": [{"name": "URL", "value": "postgresql://u:p@h/d"}, reference]}]}}
    }
    whole = {
        "metadata": {"managedFields": [], "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}"}}
    }

    left = without_values({**whole, "spec": spec})

    assert left["metadata"] == {"annotations": {}}
    [container] = left["spec"]["template"]["spec"]["containers"]
    assert container["env"] == [{"name": "URL", "value": "(left out)"}, reference]
