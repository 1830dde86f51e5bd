"""Tests for the console behind an authenticating proxy: identification, permissions, and the user of its writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import cli
from console.operations import maintenance_actions
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from localcluster.processes import wait_until_ready
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment
from tests.console.permissions import grant_permissions, has_permission
from tests.console.web.callers import VIEW_PERMISSIONS, VIEWER, create_account_option, get_page, post_confirmed
from tests.console.web.site import Site
from tests.proofs import proves

USER_HEADER, GROUPS_HEADER, SECRET_HEADER = "X-Forwarded-User", "X-Forwarded-Groups", "X-Console-Secret"
SECRET = "only-the-proxy-knows"  # noqa: S105 - a fake secret for these tests
MAINTENANCE_PERMISSIONS = tuple(f"{verb} nodemaintenances" for verb in ("get", "list", "create", "delete"))
CONSOLE_PERMISSIONS = (
    *VIEW_PERMISSIONS,
    "create subjectaccessreviews",
    "get nodes",
    "get pods",
    *MAINTENANCE_PERMISSIONS,
)
"""Permissions that the component `proxied` grants."""


@pytest.fixture
def environment(site: Site) -> EventChainEnvironment:
    return site.environment


@pytest.fixture(scope="module")
def proxied_node(site: Site) -> str:
    """Return a node that all tests share; each test must end the maintenances that it starts."""
    return site.environment.create_node("proxied-1")


def write_secret(directory: Path, text: str = SECRET) -> Path:
    secret_file = directory / "secret"
    secret_file.write_text(f"{text}\n")
    return secret_file


def build_proxy_options(directory: Path) -> tuple[str | Path, ...]:
    return ("--user-header", USER_HEADER, "--groups-header", GROUPS_HEADER, "--proxy-secret", write_secret(directory))


@pytest.fixture(scope="module")
def proxied_console(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a console that trusts a proxy on this machine, which sends the user in headers."""
    folder = tmp_path_factory.mktemp("proxied")
    account_option = create_account_option(site.environment, folder, "reviewing", CONSOLE_PERMISSIONS)
    with WebConsole(site.environment.cluster, folder, *build_proxy_options(folder), *account_option) as console:
        yield Site(site.environment, console)


@pytest.fixture(scope="module")
def maintainer(site: Site) -> str:
    """Return a user who may start and stop maintenances."""
    subject = {"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}
    grant_permissions(
        site.environment.client, "eve", ["list nodes", "get nodes", *MAINTENANCE_PERMISSIONS], subject, "eve"
    )
    return "eve"


def build_proxy_headers(user: str, groups: str = "") -> dict[str, str]:
    """Return the headers that the proxy sends for this user."""
    return {SECRET_HEADER: SECRET, USER_HEADER: user, **({GROUPS_HEADER: groups} if groups else {})}


def get_writers(environment: EventChainEnvironment, node: str) -> dict[str, tuple[str, str]]:
    """Return the client by verb (create, delete) that changed the node's maintenance, according to the audit log.

    A client is a pair of the authenticated ServiceAccount and the impersonated user.
    """
    entries = [entry for entry in environment.read_audit_log() if entry["objectRef"].get("name") == node]
    maintenance_writes = [entry for entry in entries if entry["objectRef"]["resource"] == "nodemaintenances"]
    return {
        entry["verb"]: (entry["user"]["username"], entry.get("impersonatedUser", {}).get("username", ""))
        for entry in maintenance_writes
        if entry["verb"] in ("create", "delete")
    }


def test_proxied_user_may_do_what_access_review_allows(
    proxied_console: Site, environment: EventChainEnvironment, proxied_node: str
) -> None:
    """Check that a SubjectAccessReview authorizes each action, and that the maintenance names the proxied user."""
    viewer_headers, admin_headers = build_proxy_headers(VIEWER), build_proxy_headers("mallory", "staff, system:masters")

    assert get_page(proxied_console, "/nodes", build_proxy_headers("mallory")).status_code == 403
    assert get_page(proxied_console, "/nodes", viewer_headers).status_code == 200
    response = post_confirmed(proxied_console, "/start", proxied_node, viewer_headers)
    assert response.status_code == 403
    assert not environment.client.list(MEDIK8S.path, field_selector=f"spec.nodeName={proxied_node}")["items"]

    assert post_confirmed(proxied_console, "/start", proxied_node, admin_headers).status_code == 303
    maintenance = environment.client.get(f"{MEDIK8S.path}/{proxied_node}")
    assert maintenance["metadata"]["annotations"]["nodemaintenance.dev/requested-by"] == "mallory"
    assert post_confirmed(proxied_console, "/stop", proxied_node, viewer_headers).status_code == 403
    assert post_confirmed(proxied_console, "/stop", proxied_node, admin_headers).status_code == 303
    environment.wait_for_deletion(f"{MEDIK8S.path}/{proxied_node}")


@pytest.mark.parametrize(
    "secret_headers",
    [{}, {SECRET_HEADER: ""}, {SECRET_HEADER: "guessed"}, {SECRET_HEADER: SECRET[:-1]}, {SECRET_HEADER: f"{SECRET}x"}],
)
def test_identity_headers_without_valid_secret_are_rejected(
    proxied_console: Site, proxied_node: str, environment: EventChainEnvironment, secret_headers: dict[str, str]
) -> None:
    """Check that identity headers without the correct secret are rejected, even from 127.0.0.1.

    Connections of clients that may use port forwarding to the pod also come from 127.0.0.1.
    """
    forged_headers = {USER_HEADER: "admin", GROUPS_HEADER: "system:masters", **secret_headers}

    assert get_page(proxied_console, "/nodes", forged_headers).status_code == 401
    assert get_page(proxied_console, f"/start?node={proxied_node}", forged_headers).status_code == 401
    assert get_page(proxied_console, "/nodes", {**forged_headers, SECRET_HEADER: SECRET}).status_code == 200


@pytest.mark.slow
def test_identity_headers_from_other_address_are_rejected(site: Site, proxied_console: Site, tmp_path: Path) -> None:
    """Check that identity headers with the secret are rejected if another address than the proxy's sends them."""
    assert get_page(proxied_console, "/nodes", {SECRET_HEADER: SECRET}).status_code == 401
    proxy_options = (*build_proxy_options(tmp_path), "--proxy", "10.0.0.7")
    with WebConsole(site.environment.cluster, tmp_path, *proxy_options) as console:
        assert (
            get_page(
                Site(site.environment, console), "/nodes", build_proxy_headers("admin", "system:masters")
            ).status_code
            == 401
        )


@pytest.mark.parametrize(
    ("secret", "message"),
    [(None, "requires --proxy-secret"), ("", "does not contain a secret"), ("short", "does not contain a secret")],
)
def test_console_with_proxy_requires_secret(tmp_path: Path, secret: str | None, message: str) -> None:
    """Check that the console with a configured proxy does not start without a valid secret."""
    secret_option = [] if secret is None else ["--proxy-secret", str(write_secret(tmp_path, secret))]

    result = CliRunner().invoke(cli, ["console", "--user-header", USER_HEADER, *secret_option])

    assert result.exit_code == 2
    assert message in result.stderr


def test_proxied_users_have_group_authenticated(proxied_console: Site, environment: EventChainEnvironment) -> None:
    """Check that the permissions of the group `system:authenticated` apply to every proxied user."""
    group = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
    with revoke_role_afterwards(environment, "everybody", "mallory", "list", "nodes"):
        grant_permissions(environment.client, "everybody", ["list nodes", "list nodemaintenances"], group, "mallory")
        assert get_page(proxied_console, "/nodes", build_proxy_headers("mallory")).status_code == 200
    assert get_page(proxied_console, "/nodes", build_proxy_headers("mallory")).status_code == 403


@contextmanager
def revoke_role_afterwards(environment: EventChainEnvironment, name: str, *permission: str) -> Iterator[None]:
    """Delete the role at the end of the `with` block, and wait until this permission is revoked."""
    yield
    environment.cluster.kubectl("delete", "clusterrolebinding,clusterrole", name)
    wait_until_ready("the revocation", lambda: not has_permission(environment.client, *permission), [], 10)


@pytest.mark.slow
def test_console_impersonates_user_if_allowed(
    site: Site, environment: EventChainEnvironment, maintainer: str, tmp_path: Path
) -> None:
    """Check that the audit log contains the proxied user if the console has the permission to impersonate users."""
    node = environment.create_node("impersonated-1")
    account_option = create_account_option(
        environment, tmp_path, "acting", [*CONSOLE_PERMISSIONS, "impersonate users", "impersonate groups"]
    )
    with WebConsole(environment.cluster, tmp_path, *build_proxy_options(tmp_path), *account_option) as console:
        impersonating_site = Site(environment, console)
        assert (
            post_confirmed(impersonating_site, "/start", node, build_proxy_headers(maintainer, "staff")).status_code
            == 303
        )
        assert (
            post_confirmed(impersonating_site, "/stop", node, build_proxy_headers(maintainer, "staff")).status_code
            == 303
        )
        assert post_confirmed(impersonating_site, "/start", node, build_proxy_headers(VIEWER)).status_code == 403
    environment.wait_for_deletion(f"{MEDIK8S.path}/{node}")

    account = "system:serviceaccount:default:acting"
    assert get_writers(environment, node) == {"create": (account, maintainer), "delete": (account, maintainer)}


def test_console_uses_its_own_account_without_impersonate_permission(
    proxied_console: Site, environment: EventChainEnvironment, maintainer: str
) -> None:
    """Check that without this permission, the console acts as its own account after a SubjectAccessReview."""
    node = environment.create_node("judged-1")

    assert post_confirmed(proxied_console, "/start", node, build_proxy_headers(maintainer)).status_code == 303
    assert post_confirmed(proxied_console, "/stop", node, build_proxy_headers(maintainer)).status_code == 303
    environment.wait_for_deletion(f"{MEDIK8S.path}/{node}")

    account = "system:serviceaccount:default:reviewing"
    assert get_writers(environment, node) == {"create": (account, ""), "delete": (account, "")}


@proves("OSV-8")
def test_maintenance_created_after_permission_check_is_not_deleted(
    site: Site, environment: EventChainEnvironment
) -> None:
    """OSV-8: a stop deletes only the maintenances whose deletion was authorized, not those created later."""
    node = environment.create_node("checked-1")
    path = environment.create_maintenance(node)
    checked_maintenances = environment.client.run(
        maintenance_actions.list_maintenances_to_end(environment.client.api, node)
    )
    later_path = environment.create_maintenance(node, name="checked-later", api_version=KUBEVIRT.api_version)

    environment.client.run(maintenance_actions.delete_maintenances(environment.client.api, checked_maintenances, ""))

    environment.wait_for_deletion(path)
    assert not environment.client.get(later_path)["metadata"].get("deletionTimestamp")
    environment.request_deletion(later_path)
    environment.wait_for_deletion(later_path)
