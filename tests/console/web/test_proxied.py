"""Tests of the console behind an authenticating proxy: identification, permissions, and the identity of its writes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import commands
from console.operations import maintenance_actions
from kube.maintenance.groups import KUBEVIRT, MEDIK8S
from localcluster.processes import await_ready
from localcluster.web_console import Console
from tests.chain.environment import Scene
from tests.console.permissions import allow, may
from tests.console.web.callers import LOOKS, VIEWER, act, look, run_as
from tests.console.web.site import Site
from tests.proofs import proves

USER, GROUPS, PROOF = "X-Forwarded-User", "X-Forwarded-Groups", "X-Console-Secret"
SECRET = "only-the-proxy-knows"  # noqa: S105 - of the tests alone
MAINTENANCES = tuple(f"{verb} nodemaintenances" for verb in ("get", "list", "create", "delete"))
OWN = (*LOOKS, "create subjectaccessreviews", "get nodes", "get pods", *MAINTENANCES)
"""Permissions that the component `proxied` grants."""


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


@pytest.fixture(scope="module")
def node(site: Site) -> str:
    """Return a node that every test takes out of maintenance again."""
    return site.scene.node("proxied-1")


def secret_in(folder: Path, text: str = SECRET) -> Path:
    file = folder / "secret"
    file.write_text(f"{text}\n")
    return file


def options(folder: Path) -> tuple[str | Path, ...]:
    return ("--user-header", USER, "--groups-header", GROUPS, "--proxy-secret", secret_in(folder))


@pytest.fixture(scope="module")
def proxied(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a console behind a proxy on this machine that names the user in headers."""
    folder = tmp_path_factory.mktemp("proxied")
    own = run_as(site.scene, folder, "judging", OWN)
    with Console(site.scene.cluster, folder, *options(folder), *own) as console:
        yield Site(site.scene, console)


@pytest.fixture(scope="module")
def eve(site: Site) -> str:
    """Return a user that the API server allows to start and stop maintenances."""
    subject = {"kind": "User", "name": "eve", "apiGroup": "rbac.authorization.k8s.io"}
    allow(site.scene.admin, "eve", ["list nodes", "get nodes", *MAINTENANCES], subject, "eve")
    return "eve"


def of(user: str, groups: str = "") -> dict[str, str]:
    """Return the headers that the proxy sends for this user."""
    return {PROOF: SECRET, USER: user, **({GROUPS: groups} if groups else {})}


def writers(scene: Scene, node: str) -> dict[str, tuple[str, str]]:
    """Return the writers of the node's maintenance from the API server's audit log, by verb.

    Each writer is the authenticated account and the impersonated user.
    """
    entries = [entry for entry in scene.audit() if entry["objectRef"].get("name") == node]
    made = [entry for entry in entries if entry["objectRef"]["resource"] == "nodemaintenances"]
    return {
        entry["verb"]: (entry["user"]["username"], entry.get("impersonatedUser", {}).get("username", ""))
        for entry in made
        if entry["verb"] in ("create", "delete")
    }


def test_a_user_whom_the_proxy_names_may_do_what_his_rights_say(proxied: Site, scene: Scene, node: str) -> None:
    """Check that a SubjectAccessReview decides about each action, and that the object names the proxied user."""
    looks, rules = of(VIEWER), of("mallory", "staff, system:masters")

    assert look(proxied, "/nodes", of("mallory")).status_code == 403
    assert look(proxied, "/nodes", looks).status_code == 200
    refused = act(proxied, "/start", node, looks)
    assert refused.status_code == 403
    assert not scene.admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"]

    assert act(proxied, "/start", node, rules).status_code == 303
    made = scene.admin.get(f"{MEDIK8S.path}/{node}")
    assert made["metadata"]["annotations"]["nodemaintenance.dev/requested-by"] == "mallory"
    assert act(proxied, "/stop", node, looks).status_code == 403
    assert act(proxied, "/stop", node, rules).status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")


@pytest.mark.parametrize("proof", [{}, {PROOF: ""}, {PROOF: "guessed"}, {PROOF: SECRET[:-1]}, {PROOF: f"{SECRET}x"}])
def test_this_machine_alone_is_not_the_proxy(proxied: Site, node: str, scene: Scene, proof: dict[str, str]) -> None:
    """Check that identity headers without the right secret are refused, even from 127.0.0.1.

    Any client that may forward a port of the pod also connects from 127.0.0.1.
    """
    forged = {USER: "admin", GROUPS: "system:masters", **proof}

    assert look(proxied, "/nodes", forged).status_code == 401
    assert look(proxied, f"/start?node={node}", forged).status_code == 401
    assert look(proxied, "/nodes", {**forged, PROOF: SECRET}).status_code == 200


@pytest.mark.slow
def test_an_identity_header_from_anybody_else_counts_for_nothing(site: Site, proxied: Site, tmp_path: Path) -> None:
    """Check that identity headers with the secret are refused from another address than that of the proxy."""
    assert look(proxied, "/nodes", {PROOF: SECRET}).status_code == 401
    with Console(site.scene.cluster, tmp_path, *options(tmp_path), "--proxy", "10.0.0.7") as console:
        assert look(Site(site.scene, console), "/nodes", of("admin", "system:masters")).status_code == 401


@pytest.mark.parametrize(
    ("secret", "said"),
    [(None, "needs --proxy-secret, too"), ("", "holds no secret"), ("short", "holds no secret")],
)
def test_without_a_secret_no_proxy_is_believed(tmp_path: Path, secret: str | None, said: str) -> None:
    """Check that the console does not start if a proxy is configured without a valid secret."""
    file = [] if secret is None else ["--proxy-secret", str(secret_in(tmp_path, secret))]

    result = CliRunner().invoke(commands, ["console", "--user-header", USER, *file])

    assert result.exit_code == 2
    assert said in result.stderr


def test_everybody_whom_the_proxy_names_is_authenticated(proxied: Site, scene: Scene) -> None:
    """Check that permissions of the group `system:authenticated` apply to every proxied user, as on the API server."""
    group = {"kind": "Group", "name": "system:authenticated", "apiGroup": "rbac.authorization.k8s.io"}
    with given_back(scene, "everybody", "mallory", "list", "nodes"):
        allow(scene.admin, "everybody", ["list nodes", "list nodemaintenances"], group, "mallory")
        assert look(proxied, "/nodes", of("mallory")).status_code == 200
    assert look(proxied, "/nodes", of("mallory")).status_code == 403


@contextmanager
def given_back(scene: Scene, name: str, *asked: str) -> Iterator[None]:
    """Delete the role at the end of the block, and wait until the API server has revoked its permission."""
    yield
    scene.cluster.kubectl("delete", "clusterrolebinding,clusterrole", name)
    await_ready("no right", lambda: not may(scene.admin, *asked), [], 10)


@pytest.mark.slow
def test_where_it_may_impersonate_the_api_server_judges_and_knows_the_user(
    site: Site, scene: Scene, eve: str, tmp_path: Path
) -> None:
    """Check that the API server's audit log names the impersonated user if the console may impersonate."""
    node = scene.node("impersonated-1")
    own = run_as(scene, tmp_path, "acting", [*OWN, "impersonate users", "impersonate groups"])
    with Console(scene.cluster, tmp_path, *options(tmp_path), *own) as console:
        acting = Site(scene, console)
        assert act(acting, "/start", node, of(eve, "staff")).status_code == 303
        assert act(acting, "/stop", node, of(eve, "staff")).status_code == 303
        assert act(acting, "/start", node, of(VIEWER)).status_code == 403
    scene.gone(f"{MEDIK8S.path}/{node}")

    account = "system:serviceaccount:default:acting"
    assert writers(scene, node) == {"create": (account, eve), "delete": (account, eve)}


def test_where_it_may_not_it_acts_under_its_own_account(proxied: Site, scene: Scene, eve: str) -> None:
    """Check that the console acts with its own account, after the same review, if it may not impersonate."""
    node = scene.node("judged-1")

    assert act(proxied, "/start", node, of(eve)).status_code == 303
    assert act(proxied, "/stop", node, of(eve)).status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")

    account = "system:serviceaccount:default:judging"
    assert writers(scene, node) == {"create": (account, ""), "delete": (account, "")}


@proves("OSV-8")
def test_what_is_deleted_is_what_was_checked(site: Site, scene: Scene) -> None:
    """OSV-8: A stop deletes only maintenances that were checked, not one created later in another API group."""
    node = scene.node("checked-1")
    path = scene.maintain(node)
    found = scene.admin.run(maintenance_actions.to_end(scene.admin.api, node))
    other = scene.maintain(node, name="checked-later", group=KUBEVIRT.api_version)

    scene.admin.run(maintenance_actions.delete(scene.admin.api, found))

    scene.gone(path)
    assert not scene.admin.get(other)["metadata"].get("deletionTimestamp")
    scene.delete(other)
    scene.gone(other)
