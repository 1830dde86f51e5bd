"""The console's components: the objects that they add to an install, and the rights of its account."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
import yaml

from console.operations.dead_letter_redrive import broker_address
from console.operations.replay_runner import dry_run
from eventing import events
from eventing.journal.entries import Entry
from eventing.http_binding import BATCH
from kube.client.sync_client import Cluster
from kube.maintenance.groups import MEDIK8S
from kube.paths import NAMESPACE
from localcluster.cluster import LocalCluster
from localcluster.knative.fake_kubelet import kubeconfig
from tests.manifests.rendering import CONFINED, MANIFESTS, ROOT, Manifest, of_kind, pod_specs, rendered
from tests.manifests.documented_rights import Right, touches
from tests.receiver import Answer, Receiver

RIGHTS = MANIFESTS / "components" / "console" / "rbac.yaml"
OURS = {"app.kubernetes.io/part-of": "node-maintenance", "app.kubernetes.io/component": "console"}


def install(folder: Path, *components: str) -> list[Manifest]:
    """Return the objects that the components add to the overlay `plain`."""
    there = f"{'../' * len(folder.parts[1:])}{MANIFESTS.relative_to('/')}"
    file = {
        "resources": [f"{there}/overlays/plain"],
        "components": [f"{there}/components/{name}" for name in components],
    }
    (folder / "kustomization.yaml").write_text(yaml.safe_dump(file))
    before = rendered(MANIFESTS / "overlays" / "plain")
    return [item for item in rendered(folder) if item not in before]


def granted(objects: list[Manifest]) -> set[Right]:
    """Return the rights of all roles."""
    return {
        Right(group, resource, verb, item["metadata"].get("namespace", ""))
        for item in of_kind(objects, "ClusterRole", "Role")
        for rule in item["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def documented(module: str) -> set[Right]:
    return touches(ast.get_docstring(ast.parse((ROOT / "console" / module).read_text())) or "")


@pytest.mark.slow
def test_the_consoles_account_may_only_look(tmp_path: Path) -> None:
    """Design rule 7: the console's account has exactly the documented rights, which are read-only.

    Callers use their own rights for everything else.
    """
    rights = granted(install(tmp_path, "console"))

    assert rights == documented("web/app.py")
    assert {right.verb for right in rights} == {"list", "watch"}


def test_behind_a_proxy_it_may_do_what_it_does_for_others_and_no_more(tmp_path: Path) -> None:
    """Check that the component `proxied` adds only the rights for checking the callers' permissions."""
    assert granted(install(tmp_path, "console", "proxied")) == documented("web/app.py") | documented("web/callers.py")


def test_the_consoles_pod_is_confined_and_reads_its_journal_from_a_secret(tmp_path: Path) -> None:
    """Check that the console's two pods are confined, spread over the nodes, and read the journal's URL from a Secret.

    A drain of one node then leaves one of the pods.
    """
    objects = install(tmp_path, "console")
    (deployment,) = of_kind(objects, "Deployment")
    (pod,) = pod_specs(objects).values()
    (container,) = pod["spec"]["containers"]
    (spread,) = pod["spec"]["topologySpreadConstraints"]
    (budget,) = of_kind(objects, "PodDisruptionBudget")

    assert deployment["spec"]["replicas"] == 2
    assert spread["topologyKey"] == "kubernetes.io/hostname"
    assert budget["spec"]["maxUnavailable"] == 1
    assert pod["metadata"]["labels"] == OURS
    assert pod["spec"]["serviceAccountName"] == "console"
    assert container["image"] == "nodemaintenance"
    assert container["command"][:4] == ["python", "-m", "console.cli", "console"]
    assert container["securityContext"] == CONFINED
    assert {mount["mountPath"] for mount in container["volumeMounts"]} == {"/tmp"}  # noqa: S108
    assert set(container["resources"]) == {"requests", "limits"}
    variables = {item["name"]: item for item in container["env"]}
    assert variables["DATABASE_URL"]["valueFrom"]["secretKeyRef"]["optional"]
    assert "CONSOLE_USER_HEADER" not in variables


def test_a_proxys_headers_are_believed_only_where_that_was_asked_for(tmp_path: Path) -> None:
    """Check that the component `proxied` sets the header variables and mounts the proxy's secret."""
    (pod,) = pod_specs(install(tmp_path, "console", "proxied")).values()

    (container,) = pod["spec"]["containers"]
    variables = {item["name"]: item.get("value") for item in container["env"]}
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
def test_to_act_as_others_is_a_component_of_its_own(tmp_path: Path) -> None:
    """Check that only the component `impersonating` grants impersonation, which amounts to all rights."""
    parts = ("console", "proxied", "impersonating")
    without, whole = (tmp_path / name for name in ("without", "whole"))
    for folder in (without, whole):
        folder.mkdir()

    more = granted(install(whole, *parts)) - granted(install(without, *parts[:-1]))

    assert {(right.group, right.resource, right.verb) for right in more} == {
        ("", "users", "impersonate"),
        ("", "groups", "impersonate"),
    }


def test_only_the_door_reaches_the_console_and_it_reaches_the_functions(tmp_path: Path) -> None:
    """Check that only labelled pods of its own namespace reach the console, and that it reaches the functions."""
    policies = {
        item["metadata"]["name"]: item["spec"] for item in of_kind(install(tmp_path, "console"), "NetworkPolicy")
    }

    (door,) = policies["to-console"]["ingress"]
    (replay,) = policies["from-console"]["ingress"]
    assert door["from"] == [{"podSelector": {"matchLabels": {"nodemaintenance.dev/door": "console"}}}]
    assert door["ports"] == [{"protocol": "TCP", "port": 8090}]
    assert replay["from"] == [{"podSelector": {"matchLabels": OURS}}]


@pytest.mark.slow
@pytest.mark.parametrize(
    "components", [("console",), ("console", "proxied"), ("console", "proxied", "impersonating")], ids="-".join
)
def test_a_real_api_server_takes_what_the_components_add(
    installed: LocalCluster, tmp_path: Path, components: tuple[str, ...]
) -> None:
    """NMO-24: a real API server accepts the objects of the components with strict validation."""
    objects = install(tmp_path, *components)

    done = installed.kubectl(
        "apply", "--dry-run=server", "--validate=strict", "-f", "-", input=yaml.safe_dump_all(objects), check=False
    )

    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr


@pytest.fixture
def console_door(knative: LocalCluster, receiver: Receiver) -> Iterator[Cluster]:
    """Yield the API client of the console's account, with its manifest's rights, a Broker and a Trigger."""
    admin, eventing = knative.door(), f"/apis/eventing.knative.dev/v1/namespaces/{NAMESPACE}"
    knative.apply([{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}])
    knative.kubectl("apply", "-f", RIGHTS)
    filters = {"attributes": {"type": events.NODE_CORDONED}}
    spec = {"broker": "default", "filter": filters, "subscriber": {"uri": receiver.url}}
    admin.create(f"{eventing}/triggers", {**_item("Trigger", "taint-on-node-cordoned"), "spec": spec})
    admin.create(f"{eventing}/brokers", _item("Broker", "default"))
    admin.patch(f"{eventing}/triggers/taint-on-node-cordoned/status", {"status": {"subscriberUri": receiver.url}})
    admin.patch(f"{eventing}/brokers/default/status", {"status": {"address": {"url": receiver.url}}})
    identity = kubeconfig(knative, NAMESPACE, "console")
    with closing(Cluster(str(identity))) as door:
        yield door
    identity.unlink()  # the next account of this name has another uid
    knative.kubectl("delete", "-f", RIGHTS)
    knative.kubectl("delete", "trigger/taint-on-node-cordoned", "broker/default", "-n", NAMESPACE)


def _item(kind: str, name: str) -> Manifest:
    return {"apiVersion": "eventing.knative.dev/v1", "kind": kind, "metadata": {"name": name}}


@pytest.mark.slow
def test_its_rights_are_enough_to_find_where_to_replay_and_where_to_redrive(
    knative: LocalCluster, console_door: Cluster, receiver: Receiver
) -> None:
    """Check that the account may list Triggers and Brokers in its namespace, and so finds functions and Broker."""
    about = events.Reference(MEDIK8S.api_version, "node-1", "uid-1")
    event = events.event(events.NODE_CORDONED, "cordon", about, "node-1")
    entry = Entry(1, datetime.now(timezone.utc), event)
    caller = console_door.api.bearing(knative.token())
    receiver.answers["/"] = lambda _: Answer(200, {"content-type": BATCH}, b"[]")

    shown = dry_run(entry, console_door, caller, "")

    assert [request.id for request in receiver.requests] == [event.get_id()]
    assert [each.now.function for each in shown.answers] == ["taint"]
    assert broker_address(console_door, NAMESPACE) == receiver.url
