"""HTTP clients of the console without a browser: forms, bearer tokens and confirmed actions."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import requests

from localcluster import access
from localcluster.processes import await_ready
from tests.chain.environment import Scene
from tests.console.permissions import allow
from tests.console.web.site import Site

VIEWER = access.service_account("sources")
"""ServiceAccount that may only list nodes and maintenances."""
LOOKS = tuple(f"{verb} {kind}" for verb in ("list", "watch") for kind in ("nodes", "nodemaintenances"))
"""Cluster-wide permissions that the component `console` grants."""
HIDDEN = re.compile(r'name="csrf" value="([^"]+)"')


class Form:
    """An HTTP session that posts forms as a browser does: it keeps the cookie and sends the form's token."""

    def __init__(self, site: Site, session: requests.Session) -> None:
        self.site, self.session = site, session
        self.token = token_of(self.session.get(site.url("/nodes"), timeout=10).text)

    def post(self, path: str, *nodes: str, headers: dict[str, str] | None = None, **fields: str) -> requests.Response:
        """Post the form, filled in for these nodes, and return the response."""
        data = {"node": list(nodes), "csrf": self.token, **fields}
        return self.session.post(self.site.url(path), data, headers=headers, timeout=10, allow_redirects=False)


def token_of(page: str) -> str:
    """Return the token of the page's forms."""
    (token, *_) = HIDDEN.findall(page)
    return str(token)


def look(site: Site, path: str, headers: dict[str, str] | None = None) -> requests.Response:
    """Return the response to a GET request for the page with these headers."""
    return requests.get(site.url(path), headers=headers, timeout=10)


def act(site: Site, path: str, node: str, headers: dict[str, str]) -> requests.Response:
    """Post a confirmed form as a caller who may view the pages, and return the response."""
    with requests.Session() as session:
        session.headers.update(headers)
        return Form(site, session).post(path, node, confirm="yes")


def bearer(scene: Scene, user: str) -> dict[str, str]:
    """Return the Authorization header of the user."""
    return {"Authorization": f"Bearer {scene.cluster.token(user)}"}


def audited(site: Site, count: int, **about: str) -> list[dict[str, Any]]:
    """Wait until the audit log has `count` lines about an action or object, and return these lines."""
    known: list[dict[str, Any]] = []

    def written() -> bool:
        lines = [json.loads(line) for line in site.console.server.log.read_text().splitlines() if line[:1] == "{"]
        known[:] = [line for line in lines if line["logger"] == "audit" and about.items() <= line.items()]
        return len(known) >= count

    await_ready(f"{count} lines about {about}", written, [], 5)
    return known


def account(scene: Scene, name: str, rules: Iterable[str]) -> dict[str, str]:
    """Create a ServiceAccount with these permissions, such as "list nodes", and return its Authorization header."""
    accounts = "/api/v1/namespaces/default/serviceaccounts"
    scene.admin.create(accounts, {"metadata": {"name": name}})
    subject = {"kind": "ServiceAccount", "name": name, "namespace": "default"}
    allow(scene.admin, name, rules, subject, f"system:serviceaccount:default:{name}")
    return {
        "Authorization": f"Bearer {scene.admin.create(f'{accounts}/{name}/token', {'spec': {}})['status']['token']}"
    }


def run_as(scene: Scene, folder: Path, name: str, rules: Iterable[str]) -> tuple[str, Path]:
    """Create a ServiceAccount with only these permissions, and return the option that makes a command use it."""
    file, cluster = folder / f"{name}.kubeconfig", scene.cluster
    token = account(scene, name, rules)["Authorization"].split()[1]
    access.write_kubeconfig(file, cluster.url, cluster.certificate, name, token)
    return "--kubeconfig", file
