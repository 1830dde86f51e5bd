"""HTTP clients that use the console without a browser, with forms, bearer tokens and confirmed actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import requests
import yaml

from kube.client.access_reviews import Permission
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.processes import wait_until_ready
from tests.chain.environment import EventChainEnvironment
from tests.console.permissions import create_user, grant_permissions, make_username, wait_for_permission
from tests.console.web.site import Site

VIEWER = access.make_username("sources")
"""User name of a ServiceAccount that may only list and watch nodes and maintenances."""
VIEW_PERMISSIONS = tuple(
    f"{verb} {resource}" for verb in ("list", "watch") for resource in ("nodes", "nodemaintenances")
)
"""Cluster-wide permissions that the component `console` grants."""
CSRF_FIELD = re.compile(r'name="csrf" value="([^"]+)"')


class FormSession:
    """An HTTP session that posts forms like a browser: it keeps the cookie and sends the form's CSRF token."""

    def __init__(self, site: Site, session: requests.Session) -> None:
        self.site, self.session = site, session
        self.token = parse_csrf_token(self.session.get(site.build_url("/nodes"), timeout=10).text)

    def post(self, path: str, *nodes: str, headers: dict[str, str] | None = None, **fields: str) -> requests.Response:
        """Post a form for these nodes with these fields, and return the response."""
        data = {"node": list(nodes), "csrf": self.token, **fields}
        return self.session.post(self.site.build_url(path), data, headers=headers, timeout=10, allow_redirects=False)


def parse_csrf_token(page: str) -> str:
    """Return the CSRF token in a page's forms."""
    (token, *_) = CSRF_FIELD.findall(page)
    return str(token)


def get_page(site: Site, path: str, headers: dict[str, str] | None = None) -> requests.Response:
    """Request the page with these headers, and return the response."""
    return requests.get(site.build_url(path), headers=headers, timeout=10)


def wait_for_node_page(site: Site, node: str, text: str = "") -> str:
    """Wait until the console's page of the node exists and contains `text`, and return the node's name.

    The console's state follows the API server's with a short delay, and its dialogs use this state.
    """

    def is_shown() -> bool:
        response = get_page(site, f"/nodes/{node}")
        return response.ok and text in response.text

    wait_until_ready(f"the page of {node}", is_shown, [])
    return node


def post_confirmed(site: Site, path: str, node: str, headers: dict[str, str]) -> requests.Response:
    """Post a confirmed form with these headers, whose user must be able to view pages, and return the response."""
    with requests.Session() as session:
        session.headers.update(headers)
        return FormSession(site, session).post(path, node, confirm="yes")


def build_auth_header(environment: EventChainEnvironment, user: str) -> dict[str, str]:
    """Return an Authorization header with the user's token."""
    return {"Authorization": f"Bearer {environment.cluster.get_token(user)}"}


def wait_for_audit_lines(site: Site, count: int, **fields: str) -> list[dict[str, Any]]:
    """Wait until the console's audit log has `count` lines with these fields, and return these lines."""
    audit_lines: list[dict[str, Any]] = []

    def has_all_lines() -> bool:
        lines = [json.loads(line) for line in site.console.server.log.read_text().splitlines() if line[:1] == "{"]
        audit_lines[:] = [line for line in lines if line["logger"] == "audit" and fields.items() <= line.items()]
        return len(audit_lines) >= count

    wait_until_ready(f"{count} lines about {fields}", has_all_lines, [], 5)
    return audit_lines


def create_account_header(environment: EventChainEnvironment, name: str, permissions: Iterable[str]) -> dict[str, str]:
    """Create a ServiceAccount with these permissions, such as "list nodes", and return its Authorization header."""
    accounts_path = "/api/v1/namespaces/default/serviceaccounts"
    environment.client.create(accounts_path, {"metadata": {"name": name}})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    grant_permissions(environment.client, name, permissions, subject, f"system:serviceaccount:default:{name}")
    token = environment.client.create(f"{accounts_path}/{name}/token", {"spec": {}})["status"]["token"]
    return {"Authorization": f"Bearer {token}"}


def create_role_header(environment: EventChainEnvironment, role: str) -> dict[str, str]:
    """Create a user who has only this ClusterRole, and return the user's Authorization header."""
    kubeconfig = create_user(environment.cluster, f"has-{role}", role)
    group = MEDIK8S.api_version.partition("/")[0]
    wait_for_permission(environment.client, make_username(f"has-{role}"), Permission("list", "nodemaintenances", group))
    (user,) = yaml.safe_load(kubeconfig.read_text())["users"]
    return {"Authorization": f"Bearer {user['user']['token']}"}


def create_account_option(
    environment: EventChainEnvironment, directory: Path, name: str, permissions: Iterable[str]
) -> tuple[str, Path]:
    """Create a ServiceAccount with only these permissions, and return the `--kubeconfig` option for it."""
    kubeconfig, cluster = directory / f"{name}.kubeconfig", environment.cluster
    token = create_account_header(environment, name, permissions)["Authorization"].split()[1]
    access.write_kubeconfig(kubeconfig, cluster.url, cluster.certificate, name, token)
    return "--kubeconfig", kubeconfig
