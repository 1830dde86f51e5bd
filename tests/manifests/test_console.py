"""Tests for the console's components: the objects that they add, and the permissions of their ServiceAccount."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from console.operations.dead_letter_redrive import find_broker_url
from console.operations.replay import replay_dry_run
from eventing import events
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import Entry
from eventing.journal.wire import READER
from kube.client.sync_client import SyncClient
from kube.maintenance.groups import MEDIK8S
from kube.paths import DEFAULT_NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.http_receiver import Receiver, Response
from localcluster.knative.fake_kubelet import write_account_kubeconfig
from tests.manifests.documented_rights import Right, parse_touches
from tests.manifests.rendering import (
    MANIFESTS,
    ROOT,
    SECURITY_CONTEXT,
    Manifest,
    filter_by_kind,
    get_pod_templates,
    render,
)
from tests.sources import parse_source

RBAC_FILE = MANIFESTS / "components" / "console" / "rbac.yaml"
CONSOLE_LABELS = {"app.kubernetes.io/part-of": "node-maintenance", "app.kubernetes.io/component": "console"}


def render_added_objects(directory: Path, *components: str) -> list[Manifest]:
    """Return the objects that the components add to the overlay `plain`."""
    manifests_path = f"{'../' * len(directory.parts[1:])}{MANIFESTS.relative_to('/')}"
    kustomization = {
        "resources": [f"{manifests_path}/overlays/plain"],
        "components": [f"{manifests_path}/components/{name}" for name in components],
    }
    (directory / "kustomization.yaml").write_text(yaml.safe_dump(kustomization))
    overlay_objects = render(MANIFESTS / "overlays" / "plain")
    return [manifest for manifest in render(directory) if manifest not in overlay_objects]


def list_granted_rights(objects: list[Manifest]) -> set[Right]:
    """Return the permissions that the Roles and ClusterRoles among the objects grant."""
    return {
        Right(group, resource, verb, role["metadata"].get("namespace", ""))
        for role in filter_by_kind(objects, "ClusterRole", "Role")
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def read_documented_rights(*modules: str) -> set[Right]:
    """Return the permissions in the lines `Touches:` of these modules in `console`."""
    docstrings = (ast.get_docstring(parse_source(ROOT / "console" / module)) or "" for module in modules)
    return {right for docstring in docstrings for right in parse_touches(docstring)}


@pytest.mark.slow
def test_console_service_account_may_only_read(tmp_path: Path) -> None:
    """Design rule 7: the console's ServiceAccount has exactly the documented permissions, which are read-only.

    A TokenReview stores nothing. For everything else, the console uses its callers' permissions.
    """
    rights = list_granted_rights(render_added_objects(tmp_path, "console"))

    assert rights == read_documented_rights("web/app.py", "web/journal_api.py")
    assert {right.verb for right in rights if right.resource != "tokenreviews"} == {"list", "watch"}


def test_proxied_console_has_only_documented_permissions(tmp_path: Path) -> None:
    """Check that the component `proxied` adds only the permissions to check the callers' permissions."""
    modules = ("web/app.py", "web/journal_api.py", "web/callers.py")
    assert list_granted_rights(render_added_objects(tmp_path, "console", "proxied")) == read_documented_rights(*modules)


def test_console_pods_are_restricted_and_run_on_different_nodes(tmp_path: Path) -> None:
    """Check that the console's two pods are restricted, on different nodes, and read the journal's URL from a Secret.

    One of the pods then keeps running while a node is drained.
    """
    objects = render_added_objects(tmp_path, "console")
    (deployment,) = filter_by_kind(objects, "Deployment")
    (pod,) = get_pod_templates(objects).values()
    container, journal = pod["spec"]["containers"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    (budget,) = filter_by_kind(objects, "PodDisruptionBudget")

    assert deployment["spec"]["replicas"] == 2
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert budget["spec"]["maxUnavailable"] == 1
    assert pod["metadata"]["labels"] == CONSOLE_LABELS
    assert pod["spec"]["serviceAccountName"] == "console"
    for item in (container, journal):
        assert item["image"] == "nodemaintenance"
        assert item["command"][:4] == ["python", "-m", "console.cli", "console"]
        assert item["securityContext"] == SECURITY_CONTEXT
        assert {mount["mountPath"] for mount in item["volumeMounts"]} == {"/tmp"}  # noqa: S108
        assert set(item["resources"]) == {"requests", "limits"}
        variables = {variable["name"]: variable for variable in item["env"]}
        assert variables["DATABASE_URL"]["valueFrom"]["secretKeyRef"]["optional"]
        assert "CONSOLE_USER_HEADER" not in variables


def test_proxied_component_sets_headers_and_secret(tmp_path: Path) -> None:
    """Check that the component `proxied` sets the header variables, and mounts the proxy's secret."""
    (pod,) = get_pod_templates(render_added_objects(tmp_path, "console", "proxied")).values()

    container = pod["spec"]["containers"][0]
    variables = {variable["name"]: variable.get("value") for variable in container["env"]}
    mounts = {mount["name"]: mount for mount in container["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["spec"]["volumes"]}
    assert {"CONSOLE_USER_HEADER", "CONSOLE_GROUPS_HEADER"} <= set(variables)
    assert variables["CONSOLE_PROXY_SECRET"] == f"{mounts['proxy']['mountPath']}/secret"
    assert mounts["proxy"]["readOnly"]
    assert volumes["proxy"]["secret"] == {
        "secretName": "console-proxy",
        "items": [{"key": "secret", "path": "secret"}],
    }


@pytest.mark.slow
def test_only_component_impersonating_grants_impersonation(tmp_path: Path) -> None:
    """Check that only the component `impersonating` grants impersonation, which is equivalent to all permissions."""
    components = ("console", "proxied", "impersonating")
    base, complete = (tmp_path / name for name in ("without", "whole"))
    for folder in (base, complete):
        folder.mkdir()

    added_rights = list_granted_rights(render_added_objects(complete, *components)) - list_granted_rights(
        render_added_objects(base, *components[:-1])
    )

    assert {(right.group, right.resource, right.verb) for right in added_rights} == {
        ("", "users", "impersonate"),
        ("", "groups", "impersonate"),
    }


def test_network_policies_restrict_traffic_to_and_from_console(tmp_path: Path) -> None:
    """Check that only labeled pods in the console's namespace can reach the console, which can reach the functions."""
    policies = {
        policy["metadata"]["name"]: policy["spec"]
        for policy in filter_by_kind(render_added_objects(tmp_path, "console"), "NetworkPolicy")
    }

    (ingress,) = policies["to-console"]["ingress"]
    (replay,) = policies["from-console"]["ingress"]
    assert ingress["from"] == [{"podSelector": {"matchLabels": {"nodemaintenance.dev/door": "console"}}}]
    assert ingress["ports"] == [{"protocol": "TCP", "port": 8090}]
    assert replay["from"] == [{"podSelector": {"matchLabels": CONSOLE_LABELS}}]


def test_journal_api_has_own_process_and_account_without_permissions(tmp_path: Path) -> None:
    """Check that the journal API has its own port and process, and that its tokens have no other use.

    Every pod can reach the port. A failed probe of this container would make the console's pod unready.
    """
    objects = render_added_objects(tmp_path, "console")
    (service,) = (item for item in filter_by_kind(objects, "Service") if item["metadata"]["name"] == READER)
    (policy,) = (item for item in filter_by_kind(objects, "NetworkPolicy") if item["metadata"]["name"] == "to-journal")
    (account,) = (item for item in filter_by_kind(objects, "ServiceAccount") if item["metadata"]["name"] == READER)
    console, container = get_pod_templates(objects)["console"]["spec"]["containers"]
    subjects = [
        subject["name"]
        for binding in filter_by_kind(objects, "RoleBinding", "ClusterRoleBinding")
        for subject in binding["subjects"]
    ]

    (port,) = service["spec"]["ports"]
    assert container["command"][4:] == ["--journal-api", f"--listen=0.0.0.0:{port['targetPort']}"]
    assert "--journal-api" not in console["command"]
    assert not {"readinessProbe", "livenessProbe", "startupProbe"} & container.keys()
    assert policy["spec"]["ingress"] == [{"ports": [{"protocol": "TCP", "port": port["targetPort"]}]}]
    assert "name" not in port, "the RBAC rules name the Service without a port"
    assert account["automountServiceAccountToken"] is False
    assert READER not in subjects


@pytest.mark.slow
@pytest.mark.parametrize(
    "components", [("console",), ("console", "proxied"), ("console", "proxied", "impersonating")], ids="-".join
)
def test_api_server_accepts_console_components(
    installed_cluster: LocalCluster, tmp_path: Path, components: tuple[str, ...]
) -> None:
    """NMO-24: a real API server accepts the components' objects with strict field validation."""
    objects = render_added_objects(tmp_path, *components)

    result = installed_cluster.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump_all(objects), check=False
    )

    assert result.returncode == 0, result.stderr
    assert "Warning" not in result.stderr


@pytest.fixture
def console_client(knative_cluster: LocalCluster, receiver: Receiver) -> Iterator[SyncClient]:
    """Yield an API client with the console's ServiceAccount, on a cluster with a Broker and a Trigger."""
    admin, eventing_path = knative_cluster.get_client(), f"/apis/eventing.knative.dev/v1/namespaces/{DEFAULT_NAMESPACE}"
    knative_cluster.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": DEFAULT_NAMESPACE}}])
    knative_cluster.kubectl("apply", "-f", RBAC_FILE)
    trigger_filter = {"attributes": {"type": events.NODE_CORDONED}}
    spec = {"broker": "default", "filter": trigger_filter, "subscriber": {"uri": receiver.url}}
    admin.create(
        f"{eventing_path}/triggers", {**_build_eventing_object("Trigger", "taint-on-node-cordoned"), "spec": spec}
    )
    admin.create(f"{eventing_path}/brokers", _build_eventing_object("Broker", "default"))
    admin.patch(f"{eventing_path}/triggers/taint-on-node-cordoned/status", {"status": {"subscriberUri": receiver.url}})
    admin.patch(f"{eventing_path}/brokers/default/status", {"status": {"address": {"url": receiver.url}}})
    kubeconfig = write_account_kubeconfig(knative_cluster, DEFAULT_NAMESPACE, "console")
    with closing(SyncClient(str(kubeconfig))) as client:
        yield client
    kubeconfig.unlink()  # The client's token is invalid once its ServiceAccount is deleted.
    knative_cluster.kubectl("delete", "-f", RBAC_FILE)
    knative_cluster.kubectl("delete", "trigger/taint-on-node-cordoned", "broker/default", "-n", DEFAULT_NAMESPACE)


def _build_eventing_object(kind: str, name: str) -> Manifest:
    return {"apiVersion": "eventing.knative.dev/v1", "kind": kind, "metadata": {"name": name}}


@pytest.mark.slow
def test_console_service_account_finds_functions_and_broker(
    knative_cluster: LocalCluster, console_client: SyncClient, receiver: Receiver
) -> None:
    """Check that the console may list Triggers and Brokers in its namespace, to find the functions and the Broker."""
    reference = events.ObjectReference(MEDIK8S.api_version, "node-1", "uid-1")
    event = events.build_event(events.NODE_CORDONED, "cordon", reference, "node-1")
    entry = Entry(1, datetime.now(timezone.utc), event)
    caller = console_client.api.with_token(knative_cluster.get_token())
    receiver.answers["/"] = lambda _: Response(200, {"content-type": BATCH_CONTENT_TYPE}, b"[]")

    report = replay_dry_run(entry, console_client, caller, "")

    assert [request.id for request in receiver.requests] == [event.get_id()]
    assert [result.response.function for result in report.results] == ["taint"]
    assert find_broker_url(console_client, DEFAULT_NAMESPACE) == receiver.url
