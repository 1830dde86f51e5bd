"""Tests that each of the product's ClusterRoles for users permits exactly its commands, on a real API server."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from console.cli import cli
from kube.client.access_reviews import Permission, is_allowed
from kube.maintenance.groups import MEDIK8S
from localcluster.cluster import LocalCluster
from localcluster.product import Product
from tests.console.commands.workload_objects import build_budget, build_controller, create_and_wait, is_cordoned
from tests.console.conftest import ROOT, RunCommand
from tests.console.permissions import create_user, make_username, wait_for_permission
from tests.manifests.documented_rights import NAMESPACES, OWN_NAMESPACE, Right, list_allowed_rights

VIEWER, OPERATOR, ADMIN = "maintenance-viewer", "maintenance-operator", "maintenance-admin"
KUBERNETES_ROLES = ("view", "edit", "admin")
READ_VERBS = {"get", "list", "watch"}
GROUP = MEDIK8S.api_version.partition("/")[0]
MUTEX_GROUP = "openshift-optional.skrzypek.io"
LIST_MAINTENANCES = Permission("list", "nodemaintenances", GROUP)
ROLES_DIR = ROOT / "manifests" / "base" / "users"
RunAs = Callable[..., Result]


@pytest.fixture(scope="module")
def kubeconfigs(served_cluster: LocalCluster) -> dict[str, Path]:
    """Return a map from ClusterRole name to kubeconfig of a user who has only this ClusterRole."""
    client, files = served_cluster.get_client(), {}
    for role in (VIEWER, OPERATOR, ADMIN, *KUBERNETES_ROLES):
        files[role] = create_user(served_cluster, f"user-{role}", role)
        wait_for_permission(client, make_username(f"user-{role}"), LIST_MAINTENANCES)
    return files


@pytest.fixture
def run_as(kubeconfigs: dict[str, Path]) -> RunAs:
    """Return a function that runs a command as the user with a ClusterRole."""

    def run(role: str, *args: str) -> Result:
        return CliRunner().invoke(cli, ["--kubeconfig", str(kubeconfigs[role]), *args], prog_name="kubectl maintenance")

    return run


@pytest.fixture
def maintained_node(product: Product, node_name: str, run_command: RunCommand) -> Iterator[str]:
    """Yield the name of a node while the functions run, and delete its maintenance after the test."""
    yield node_name
    run_command("stop", node_name)


def load_rules(role: str) -> set[tuple[str, str, str, str]]:
    """Return the API group, resource, verb and resource name ("" for all) of each rule of this role's file."""
    manifests = yaml.safe_load_all((ROLES_DIR / f"{role}.yaml").read_text())
    return {
        (group, resource, verb, name)
        for manifest in manifests
        for rule in manifest["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        for name in rule.get("resourceNames", [""])
    }


def may_request_token(cluster: LocalCluster, service_account: str) -> bool:
    """Return whether a viewer may request a token for this ServiceAccount in the product's namespace."""
    user = make_username(f"user-{VIEWER}")
    arguments = (
        "create",
        f"serviceaccounts/{service_account}",
        "--subresource=token",
        "-n",
        OWN_NAMESPACE,
        f"--as={user}",
    )
    return cluster.kubectl("auth", "can-i", *arguments, check=False).stdout == "yes\n"


def has_permission(cluster: LocalCluster, role: str, permission: Permission) -> bool:
    client = cluster.get_client()
    api = client.api.with_impersonation(make_username(f"user-{role}"))
    return client.run(is_allowed(api, permission))


@pytest.mark.parametrize("role", [VIEWER, OPERATOR, ADMIN])
def test_every_role_may_preview_and_follow_drain(
    installed_cluster: LocalCluster, run_command: RunCommand, run_as: RunAs, maintained_node: str, role: str
) -> None:
    """Check that each role permits all requests of `preview` and `status`: no output names a missing permission."""
    create_and_wait(
        installed_cluster,
        build_controller("ReplicaSet", maintained_node),
        build_controller("DaemonSet", maintained_node),
        build_budget(f"web-{maintained_node}", maintained_node, {"by": "replicaset"}, minAvailable=1),
    )

    preview = run_as(role, "preview", maintained_node, "--verbose")
    run_command("start", maintained_node)
    results = [run_as(role, *arguments) for arguments in (["status"], ["status", maintained_node], ["version"])]

    assert preview.exit_code == 3, preview.output
    assert f"web-{maintained_node}" in preview.output
    assert [result.exit_code for result in results] == [0, 0, 0], [result.output for result in results]
    for result in (preview, *results):
        assert not re.search("cannot (?:get|list|read|show|check)|may not|forbidden", result.output), result.output
    assert maintained_node in results[0].stdout


@pytest.mark.parametrize("role", [OPERATOR, ADMIN])
def test_operator_and_admin_may_start_and_stop(
    installed_cluster: LocalCluster, run_as: RunAs, maintained_node: str, role: str
) -> None:
    start = run_as(role, "start", maintained_node, "--reason", "new disk", "--wait", "--timeout=30s", "-o", "json")
    is_drained = is_cordoned(installed_cluster, maintained_node)
    stop = run_as(role, "stop", maintained_node)

    assert start.exit_code == 0, start.output
    created = json.loads(start.stdout)
    assert created["metadata"]["annotations"]["nodemaintenance.dev/requested-by"] == make_username(f"user-{role}")
    assert (is_drained, is_cordoned(installed_cluster, maintained_node)) == (True, False)
    assert stop.exit_code == 0, stop.output


def test_viewer_may_neither_start_nor_stop_nor_cordon(
    installed_cluster: LocalCluster, run_command: RunCommand, run_as: RunAs, maintained_node: str
) -> None:
    start, cordon = (run_as(VIEWER, command, maintained_node) for command in ("start", "cordon"))
    run_command("start", maintained_node, "--wait", "--timeout=30s")
    stop = run_as(VIEWER, "stop", maintained_node)

    assert [result.exit_code for result in (start, stop, cordon)] == [1, 1, 1]
    assert 'cannot create resource "nodemaintenances"' in start.output
    assert 'cannot delete resource "nodemaintenances"' in stop.output
    assert 'cannot patch resource "nodes"' in cordon.output
    assert is_cordoned(installed_cluster, maintained_node)


def test_only_admin_may_cordon_node_without_maintenance(
    installed_cluster: LocalCluster, run_as: RunAs, node_name: str
) -> None:
    refused, accepted = run_as(OPERATOR, "cordon", node_name), run_as(ADMIN, "cordon", node_name)

    assert (refused.exit_code, accepted.exit_code) == (1, 0), refused.output + accepted.output
    assert 'cannot patch resource "nodes"' in refused.output
    assert is_cordoned(installed_cluster, node_name)


@pytest.mark.usefixtures("kubeconfigs")
@pytest.mark.parametrize("namespace", NAMESPACES)
def test_viewer_has_only_read_permissions(installed_cluster: LocalCluster, namespace: str) -> None:
    """Check that a viewer may only read, and request the token for the journal, which stores nothing."""
    client = installed_cluster.get_client()
    viewer, nobody = (
        client.run(list_allowed_rights(client.api.with_impersonation(make_username(name)), namespace))
        for name in (f"user-{VIEWER}", "nobody")
    )

    writes = {right for right in viewer - nobody if right.verb not in READ_VERBS}
    assert writes == {Right("", "serviceaccounts/token", "create", namespace)}
    assert {rule[3] for rule in load_rules("viewer") if rule[1] in ("serviceaccounts/token", "services/proxy")} == {
        "node-maintenance-journal"
    }
    assert not may_request_token(installed_cluster, "evict")
    assert may_request_token(installed_cluster, "node-maintenance-journal")


def test_each_role_includes_permissions_of_lesser_roles() -> None:
    """Check that an operator has all permissions of a viewer, and an administrator all permissions of an operator."""
    view, viewer, operator, admin = map(load_rules, ("view", "viewer", "operator", "admin"))

    assert view < viewer < operator < admin
    assert {rule[1] for rule in operator - viewer} == {"nodemaintenances"}
    assert {resource for _, resource, _, _ in admin if "/" in resource} == {
        "services/proxy",
        "serviceaccounts/token",
        "pods/eviction",
    }


@pytest.mark.usefixtures("kubeconfigs")
@pytest.mark.parametrize("role", KUBERNETES_ROLES)
def test_kubernetes_roles_may_read_but_not_write_maintenances(installed_cluster: LocalCluster, role: str) -> None:
    """Check that Kubernetes' roles `view`, `edit` and `admin` permit reading maintenances, but not writing them.

    Otherwise, a user who may edit the objects of all namespaces could drain nodes unintentionally.
    """
    assert has_permission(installed_cluster, role, LIST_MAINTENANCES)
    for verb in ("create", "update", "patch", "delete"):
        assert not has_permission(installed_cluster, role, Permission(verb, "nodemaintenances", GROUP)), verb
    assert not has_permission(installed_cluster, role, Permission("list", "nodes"))
    assert has_permission(installed_cluster, role, Permission("list", "mutexrunconfigs", MUTEX_GROUP))
    assert not has_permission(installed_cluster, role, Permission("create", "mutexrules", MUTEX_GROUP))


@pytest.mark.usefixtures("kubeconfigs")
@pytest.mark.parametrize(("role", "may_read"), [("view", False), ("edit", True), ("admin", True)])
def test_view_hides_environment_variables_of_rules(installed_cluster: LocalCluster, role: str, may_read: bool) -> None:
    """Check that the role `view` cannot read MutexRules, whose environment variables may contain passwords."""
    list_rules = Permission("list", "mutexrules", MUTEX_GROUP)
    if may_read:
        wait_for_permission(installed_cluster.get_client(), make_username(f"user-{role}"), list_rules)

    assert has_permission(installed_cluster, role, list_rules) == may_read


@pytest.mark.usefixtures("kubeconfigs")
@pytest.mark.parametrize("role", [VIEWER, OPERATOR, ADMIN])
def test_no_role_reads_virtual_machines(installed_cluster: LocalCluster, role: str) -> None:
    """Check that no role can read virtual machines, whose cloud-init data may contain passwords."""
    for kind in ("virtualmachines", "virtualmachineinstances"):
        assert not has_permission(installed_cluster, role, Permission("get", kind, "kubevirt.io"))


def test_documented_commands_grant_and_check_access(
    served_cluster: LocalCluster, plugin_environment: dict[str, str]
) -> None:
    """Check that the page's first three commands grant a user the viewer's permissions, and show the result."""
    page = (ROOT / "docs" / "access.md").read_text()
    block = re.search(r"```console\n(.*?)```", page, re.DOTALL)
    assert block
    grant, view, check = (shlex.split(line[2:]) for line in block[1].splitlines() if line.startswith("$ "))

    def run(command: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=plugin_environment, capture_output=True, text=True, check=False)

    try:
        granted = run(grant)
        wait_for_permission(served_cluster.get_client(), "jane@example.com", LIST_MAINTENANCES)
        viewed, checked = run(view), run(check)
    finally:
        served_cluster.kubectl("delete", "clusterrolebinding", "jane-views-maintenances", "--ignore-not-found")

    assert granted.returncode == 0, granted.stderr
    assert viewed.returncode == 0, viewed.stderr
    assert checked.returncode == 1
    assert block[1].endswith(f"\n{checked.stderr}{checked.stdout}")
    assert checked.stdout == "no\n"
