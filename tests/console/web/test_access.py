"""Who may do what at the console, and what it refuses (OSV-7, OSV-8, OSV-14)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from console.cli import commands
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.console import Console
from tests.chain.scene import Scene
from tests.console.web.site import Site
from tests.proofs import proves

USER, GROUPS = "X-Forwarded-User", "X-Forwarded-Groups"
VIEWER = access.service_account("sources")
"""May list nodes and maintenances, and nothing else."""
HIDDEN = re.compile(r'name="csrf" value="([^"]+)"')


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


@pytest.fixture(scope="module")
def node(site: Site) -> str:
    """A node that no test here puts into maintenance for good."""
    return site.scene.node("guarded-1")


def token_of(page: str) -> str:
    (token, *_) = HIDDEN.findall(page)
    return str(token)


@pytest.fixture
def form(site: Site) -> Iterator[Form]:
    with requests.Session() as session:
        yield Form(site, session)


class Form:
    """A browser that fills in forms: keeps its cookie, sends the form's token."""

    def __init__(self, site: Site, session: requests.Session) -> None:
        self.site, self.session = site, session
        self.token = token_of(self.session.get(site.url("/nodes"), timeout=10).text)

    def post(self, path: str, *nodes: str, headers: dict[str, str] | None = None, **fields: str) -> requests.Response:
        data = {"node": list(nodes), "csrf": self.token, **fields}
        return self.session.post(self.site.url(path), data, headers=headers, timeout=10, allow_redirects=False)


def in_maintenance(scene: Scene, node: str) -> bool:
    return bool(scene.admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"])


@proves("OSV-7", "OSV-8")
def test_only_the_confirmation_changes_anything(site: Site, form: Form, scene: Scene, node: str) -> None:
    """OSV-7, OSV-8: a POST without it shows the window, and no more; with it, all works without any script."""
    asked = form.post("/start", node, reason="new disk")
    assert (asked.status_code, in_maintenance(scene, node)) == (200, False)
    assert "Take <strong>guarded-1</strong> out of service?" in asked.text

    done = form.post("/start", node, reason="new disk", confirm="yes", at=node)
    assert (done.status_code, done.headers["Location"]) == (303, f"/nodes/{node}")
    assert "Maintenance of guarded-1 begins." in form.session.get(site.url(f"/nodes/{node}"), timeout=10).text
    assert form.post("/stop", node).status_code == 200
    assert in_maintenance(scene, node)
    assert form.post("/stop", node, confirm="yes").status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")


@proves("OSV-7")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_an_unknown_node_is_404(site: Site, form: Form, confirm: str) -> None:
    """OSV-7, NMO-19: nothing is created for it, and its name is shown as text."""
    for path in ("/start", "/stop"):
        refused = form.post(path, "<b>no</b>", confirm=confirm)
        assert refused.status_code == 404
        assert "there is no node &lt;b&gt;no&lt;/b&gt;" in refused.text
    assert requests.get(site.url("/nodes/no-such-node"), timeout=10).status_code == 404


@proves("OSV-7")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_a_node_in_maintenance_is_409(site: Site, form: Form, scene: Scene, confirm: str) -> None:
    """OSV-7, NMO-22."""
    node = scene.node(f"taken-{confirm or 'not'}")
    path = scene.maintain(node)
    scene.reaches(path)

    refused = form.post("/start", node, confirm=confirm)

    assert refused.status_code == 409
    assert f"{node} is in maintenance already" in refused.text


@proves("OSV-8")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_stop_of_a_node_that_is_not_in_maintenance_is_409_and_changes_nothing(
    form: Form, scene: Scene, confirm: str
) -> None:
    """OSV-8: one that was cordoned by hand stays so."""
    node = scene.node(f"cordoned-{confirm or 'not'}")
    scene.cluster.kubectl("cordon", node)

    refused = form.post("/stop", node, confirm=confirm)

    assert refused.status_code == 409
    assert re.search("cordoned", refused.text, re.IGNORECASE)
    assert scene.spec(node)["unschedulable"]


def test_of_several_nodes_those_that_can_are_done_and_the_others_told(
    site: Site, form: Form, scene: Scene, node: str
) -> None:
    """OSV-7: one refusal does not stop the others."""
    answer = form.post("/start", node, "nowhere", confirm="yes")

    assert answer.status_code == 200
    assert "Maintenance of guarded-1 begins." in answer.text
    assert "there is no node nowhere" in answer.text
    assert form.post("/stop", node, confirm="yes").status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")


@proves("OSV-7")
@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
    ],
    ids=lambda headers: " ".join(*headers.items()),
)
def test_a_post_from_another_site_is_403_even_with_cookie_and_token(
    form: Form, scene: Scene, node: str, headers: dict[str, str]
) -> None:
    """OSV-7."""
    refused = form.post("/start", node, confirm="yes", headers=headers)

    assert refused.status_code == 403
    assert "nothing was changed" in refused.text
    assert not in_maintenance(scene, node)


@pytest.mark.parametrize("token", ["", "guessed"])
def test_a_post_without_the_forms_token_is_403(site: Site, form: Form, scene: Scene, node: str, token: str) -> None:
    """OSV-7: with or without the cookie."""
    without_cookie = {"node": node, "confirm": "yes", "csrf": form.token}

    assert form.post("/start", node, confirm="yes", csrf=token).status_code == 403
    assert requests.post(site.url("/start"), without_cookie, timeout=10).status_code == 403
    assert not in_maintenance(scene, node)


def test_a_page_of_another_name_that_leads_here_gets_nothing(site: Site) -> None:
    """On this machine the console acts for whoever asks; a name in somebody else's DNS must not be enough to ask."""
    assert requests.get(site.url("/nodes"), headers={"Host": "rebound.example"}, timeout=10).status_code == 400


def test_every_answer_carries_the_headers_that_browsers_obey(site: Site) -> None:
    """No script or style but our own files, no frame around us, nothing kept."""
    for path in ("/nodes", "/events", "/nodes/none", "/static/console.js"):
        headers = requests.get(site.url(path), timeout=10).headers
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
    cookie = requests.get(site.url("/nodes"), timeout=10).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.fixture(scope="module")
def tokens(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The console as in a cluster: others can reach it, its own account may look, and callers bring tokens."""
    cluster = site.scene.cluster
    with Console(cluster, tmp_path_factory.mktemp("tokens"), user=VIEWER, address="0.0.0.0") as console:  # noqa: S104
        yield Site(site.scene, console)


@pytest.fixture(scope="module")
def proxied(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The console behind a proxy on this machine that says who the user is."""
    options = ("--user-header", USER, "--groups-header", GROUPS)
    with Console(site.scene.cluster, tmp_path_factory.mktemp("proxied"), *options) as console:
        yield Site(site.scene, console)


def look(site: Site, path: str, headers: dict[str, str] | None = None) -> requests.Response:
    return requests.get(site.url(path), headers=headers, timeout=10)


def act(site: Site, path: str, node: str, headers: dict[str, str]) -> requests.Response:
    """A confirmed form of a caller who may look."""
    with requests.Session() as session:
        session.headers.update(headers)
        return Form(site, session).post(path, node, confirm="yes")


def bearer(scene: Scene, user: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {scene.cluster.token(user)}"}


@pytest.mark.parametrize(
    "path", ["/nodes", "/nodes/guarded-1", "/live/nodes", "/live/nodes/guarded-1", "/start?node=x"]
)
def test_a_caller_who_may_not_look_sees_nothing(tokens: Site, scene: Scene, node: str, path: str) -> None:
    """OSV-7: reading is the caller's right, too; the refusal names what is missing."""
    nobody, unprivileged = look(tokens, path), look(tokens, path, bearer(scene, UNPRIVILEGED))
    wrong = look(tokens, path, {"Authorization": "Bearer wrong"})

    assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert wrong.status_code == 401
    assert unprivileged.status_code == 403
    assert "User &#34;unprivileged&#34; cannot list resource &#34;nodes&#34;" in unprivileged.text
    assert node not in nobody.text + wrong.text + unprivileged.text.partition("<main")[2]


@proves("OSV-7", "OSV-14")
def test_a_caller_who_may_only_look_is_403(tokens: Site, scene: Scene, node: str) -> None:
    """OSV-7, OSV-14: the page is there, the action is refused by the API server."""
    headers = bearer(scene, VIEWER)

    assert node in look(tokens, "/nodes", headers).text
    refused = act(tokens, "/start", node, headers)
    assert refused.status_code == 403
    assert "cannot create resource &#34;nodemaintenances&#34;" in refused.text
    assert not in_maintenance(scene, node)


def test_a_token_acts_as_its_owner(tokens: Site, scene: Scene) -> None:
    """The audit log names the caller, not the console."""
    node = scene.node("bearer-1")

    assert act(tokens, "/start", node, bearer(scene, access.ADMIN)).status_code == 303
    scene.reaches(f"{MEDIK8S.path}/{node}")
    assert act(tokens, "/stop", node, bearer(scene, VIEWER)).status_code == 403
    assert act(tokens, "/stop", node, bearer(scene, access.ADMIN)).status_code == 303

    writes = [entry for entry in scene.audit() if entry["objectRef"].get("name") == node]
    made = [entry for entry in writes if entry["objectRef"]["resource"] == "nodemaintenances"]
    by = {entry["verb"]: entry["user"]["username"] for entry in made if entry["verb"] in ("create", "delete")}
    assert by == {"create": access.ADMIN, "delete": access.ADMIN}


def test_a_user_whom_the_proxy_names_may_do_what_his_rights_say(proxied: Site, scene: Scene, node: str) -> None:
    """Asked by SubjectAccessReview before each action; the console then acts, and writes down for whom."""
    looks = {USER: VIEWER}
    rules = {USER: "eve", GROUPS: "staff, system:masters"}

    assert look(proxied, "/nodes", {USER: "eve"}).status_code == 403
    assert look(proxied, "/nodes", looks).status_code == 200
    refused = act(proxied, "/start", node, looks)
    assert refused.status_code == 403
    assert not in_maintenance(scene, node)

    assert act(proxied, "/start", node, rules).status_code == 303
    made = scene.admin.get(f"{MEDIK8S.path}/{node}")
    assert made["metadata"]["annotations"]["nodemaintenance.dev/requested-by"] == "eve"
    assert act(proxied, "/stop", node, looks).status_code == 403
    assert act(proxied, "/stop", node, rules).status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")


def test_an_identity_header_from_anybody_else_counts_for_nothing(site: Site, proxied: Site, tmp_path: Path) -> None:
    """Who can reach the console must not be able to say who he is."""
    forged = {USER: "admin", GROUPS: "system:masters"}

    assert look(proxied, "/nodes").status_code == 401
    with Console(site.scene.cluster, tmp_path, "--user-header", USER, "--proxy", "10.0.0.7") as console:
        assert look(Site(site.scene, console), "/nodes", forged).status_code == 401


def test_where_no_proxy_was_named_identity_headers_count_for_nothing(tokens: Site) -> None:
    """Off unless switched on."""
    assert look(tokens, "/nodes", {USER: "admin", GROUPS: "system:masters"}).status_code == 401


def test_an_address_that_is_taken_is_one_line(site: Site) -> None:
    """X-6: before any address is told, and with what to do instead."""
    taken = site.console.url.removeprefix("http://")
    words = ["console", "--kubeconfig", str(site.scene.cluster.kubeconfig), "--listen", taken]

    result = CliRunner().invoke(commands, words)

    assert result.exit_code == 1
    assert result.output == f"Error: {taken}: Address already in use; name another address by --listen\n"
