"""Who may do what at the console, and what it refuses (OSV-7, OSV-8, OSV-14)."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import requests
from click.testing import CliRunner

from console.cli import commands
from console.web.serving import THREADS
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.processes import await_ready
from localcluster.readiness import is_ready
from localcluster.web_console import Console
from tests.chain.scene import Scene
from tests.console.web.callers import VIEWER, Form, act, bearer, look
from tests.console.web.site import Site
from tests.postgresql import PostgreSQL
from tests.proofs import proves

SHOWN = re.compile(r'name="uid" value="([^"]+)"')


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


@pytest.fixture(scope="module")
def node(site: Site) -> str:
    """A node that no test here puts into maintenance for good."""
    return site.scene.node("guarded-1")


@pytest.fixture
def form(site: Site) -> Iterator[Form]:
    with requests.Session() as session:
        yield Form(site, session)


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


@pytest.mark.slow
def test_what_the_journal_cannot_be_asked_is_400(site: Site, postgresql: PostgreSQL, tmp_path: Path) -> None:
    """X-6: PostgreSQL takes no NUL in a text."""
    Journal(url := postgresql.database()).close()
    kubeconfig = site.scene.cluster.kubeconfig

    with Console(site.scene.cluster, tmp_path, "--journal", url, "--kubeconfig", kubeconfig) as console:
        refused = look(Site(site.scene, console), "/events?node=%00")

    assert refused.status_code == 400
    assert "the journal cannot hold it: " in refused.text


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


@proves("OSV-8")
def test_an_old_stop_window_ends_no_maintenance_that_it_did_not_show(form: Form, scene: Scene) -> None:
    """OSV-8: the next one of the node, under the same name, goes on; a window that shows it ends it."""
    node = scene.node("windowed-1")
    path = scene.maintain(node, name=node)
    scene.reaches(path)
    old = shown(form, scene, path, node)
    scene.delete(path)
    scene.gone(path)
    scene.maintain(node, name=node)
    scene.reaches(path)

    refused = form.post("/stop", node, confirm="yes", uid=old)

    assert refused.status_code == 409
    assert f"{node} is in another maintenance since: load the page again" in refused.text
    assert not scene.admin.get(path)["metadata"].get("deletionTimestamp")
    new = shown(form, scene, path, node)
    assert form.post("/stop", node, confirm="yes", uid=new).status_code == 303
    scene.gone(path)


@proves("OSV-8")
def test_a_form_that_names_no_node_ends_nothing(form: Form, scene: Scene) -> None:
    """OSV-8: an empty name is no node's, and least of all that of every node; what the address says is no form."""
    node = scene.node("unnamed-1")
    path = scene.maintain(node)
    scene.reaches(path)

    forms = [(action, names) for action in ("/stop", "/start") for names in ([""], [node, ""])]
    answers = [form.post(action, *names, confirm="yes") for action, names in forms]

    addressed = [form.post(f"{action}?node={node}", confirm="yes") for action in ("/stop", "/start")]

    assert [answer.status_code for answer in (*answers, *addressed)] == [400] * 6
    assert all("node: one is without a name: nothing was changed" in answer.text for answer in answers)
    assert all("no node was chosen: nothing was changed" in answer.text for answer in addressed)
    assert not scene.admin.get(path)["metadata"].get("deletionTimestamp")
    scene.delete(path)


def shown(form: Form, scene: Scene, path: str, node: str) -> str:
    """The uid of the maintenance, once the window that would end it carries that."""
    uid = str(scene.admin.get(path)["metadata"]["uid"])
    await_ready("the window", lambda: SHOWN.findall(form.post("/stop", node).text) == [uid], [], 10)
    return uid


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
        {"Origin": "http://["},
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


@pytest.mark.parametrize("letter", ["", "x", "77", "9" * 5000])
def test_a_dead_letter_that_is_none_is_404(form: Form, letter: str) -> None:
    """X-1: whatever stands in the form in the place of its number."""
    refused = form.post("/dead-letters/redrive", letter=letter, confirm="yes")

    assert refused.status_code == 404
    assert "no such open dead letter" in refused.text


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


@pytest.mark.slow
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


def test_where_no_proxy_was_named_identity_headers_count_for_nothing(tokens: Site) -> None:
    """Off unless switched on."""
    forged = {"X-Forwarded-User": "admin", "X-Forwarded-Groups": "system:masters"}
    assert look(tokens, "/nodes", forged).status_code == 401


@pytest.mark.slow
def test_a_kubelet_may_ask_for_health_by_the_pods_address(site: Site, tmp_path: Path) -> None:
    """With names set, too: it knows no other. Nothing else is answered under a name that is not the console's."""
    with Console(site.scene.cluster, tmp_path, "--host", "console.example") as console:  # it is up: it was asked so
        named = Site(site.scene, console)
        assert look(named, "/health/liveness").status_code == 200
        for path in ("/nodes", "/static/console.js", "/no-such-page", "/health"):
            assert look(named, path).status_code == 400
        assert look(named, "/nodes", {"Host": "console.example"}).status_code == 200


HASTY = (
    "from console.web.serving import Worker; Worker.request_seconds = Worker.answer_seconds = 1.0; "
    "from console.cli import main; main()"
)
"""The console, with less patience than it has."""
HALF_FORM = b"POST /start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n"
HALF_FORM += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nn"


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"G", HALF_FORM], ids=["a line", "a form"])
def test_requests_that_never_end_hold_no_thread_for_ever(site: Site, tmp_path: Path, begun: bytes) -> None:
    """X-6: as many as there are threads, from whoever reaches it, and none says any more: it answers again."""
    console = Console(site.scene.cluster, tmp_path)
    console.server.command[:3] = [sys.executable, "-c", HASTY]
    with console, ExitStack() as stack:
        address = ("127.0.0.1", int(console.url.rpartition(":")[2]))
        for _ in range(THREADS):
            stack.enter_context(socket.create_connection(address)).sendall(begun)
        await_ready("the console again", lambda: is_ready(console.url), [console.server], 10)


@pytest.mark.slow
def test_a_form_of_one_replica_is_accepted_by_another(
    site: Site, form: Form, scene: Scene, node: str, tmp_path: Path
) -> None:
    """Two pods answer by one name; while a node is drained, what one of them wrote comes to the other."""
    with Console(scene.cluster, tmp_path) as second:
        form.site = Site(scene, second)
        assert form.post("/start", node, confirm="yes", at=node).status_code == 303
        form.site = site
        assert form.post("/stop", node, confirm="yes").status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")


def test_an_address_that_is_taken_is_one_line(site: Site) -> None:
    """X-6: before any address is told, and with what to do instead."""
    taken = site.console.url.removeprefix("http://")
    words = ["console", "--kubeconfig", str(site.scene.cluster.kubeconfig), "--listen", taken]

    result = CliRunner().invoke(commands, words)

    assert result.exit_code == 1
    assert result.output == f"Error: {taken}: Address already in use; name another address by --listen\n"
