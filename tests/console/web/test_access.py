"""Tests of the permissions for actions in the console, and of the requests that it refuses (OSV-7, OSV-8, OSV-14)."""

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
from console.web.server import THREADS
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.processes import await_ready
from localcluster.readiness import is_ready
from localcluster.web_console import Console
from tests.chain.environment import Scene
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
    """Return a node that every test takes out of maintenance again."""
    return site.scene.node("guarded-1")


@pytest.fixture
def form(site: Site) -> Iterator[Form]:
    with requests.Session() as session:
        yield Form(site, session)


def in_maintenance(scene: Scene, node: str) -> bool:
    return bool(scene.admin.list(MEDIK8S.path, fields=f"spec.nodeName={node}")["items"])


@proves("OSV-7", "OSV-8")
def test_only_the_confirmation_changes_anything(site: Site, form: Form, scene: Scene, node: str) -> None:
    """OSV-7, OSV-8: A POST without confirmation only shows the dialog; a confirmed POST works without JavaScript."""
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
    """OSV-7, NMO-19: A form with an unknown node creates nothing, and its name is escaped in the page."""
    for path in ("/start", "/stop"):
        refused = form.post(path, "<b>no</b>", confirm=confirm)
        assert refused.status_code == 404
        assert "there is no node &lt;b&gt;no&lt;/b&gt;" in refused.text
    assert requests.get(site.url("/nodes/no-such-node"), timeout=10).status_code == 404


@pytest.mark.slow
def test_what_the_journal_cannot_be_asked_is_400(site: Site, postgresql: PostgreSQL, tmp_path: Path) -> None:
    """X-6: A filter value that the journal cannot hold is a 400 error; PostgreSQL accepts no NUL in text."""
    Journal(url := postgresql.database()).close()
    kubeconfig = site.scene.cluster.kubeconfig

    with Console(site.scene.cluster, tmp_path, "--journal", url, "--kubeconfig", kubeconfig) as console:
        refused = look(Site(site.scene, console), "/events?node=%00")

    assert refused.status_code == 400
    assert "the journal cannot hold it: " in refused.text


@proves("OSV-7")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_a_node_in_maintenance_is_409(site: Site, form: Form, scene: Scene, confirm: str) -> None:
    """OSV-7, NMO-22: Starting maintenance of a node that is already in maintenance is a 409 error."""
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
    """OSV-8: Stopping a node without a maintenance is a 409 error, and a cordon by hand stays."""
    node = scene.node(f"cordoned-{confirm or 'not'}")
    scene.cluster.kubectl("cordon", node)

    refused = form.post("/stop", node, confirm=confirm)

    assert refused.status_code == 409
    assert re.search("cordoned", refused.text, re.IGNORECASE)
    assert scene.spec(node)["unschedulable"]


@proves("OSV-8")
def test_an_old_stop_window_ends_no_maintenance_that_it_did_not_show(form: Form, scene: Scene) -> None:
    """OSV-8: An outdated stop dialog does not end a newer maintenance of the same name; a current dialog does."""
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
    """OSV-8: A form with an empty node name changes nothing, and the console ignores a node in the URL of a POST."""
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
    """Wait until the stop dialog contains the uid of the maintenance, and return the uid."""
    uid = str(scene.admin.get(path)["metadata"]["uid"])
    await_ready("the window", lambda: SHOWN.findall(form.post("/stop", node).text) == [uid], [], 10)
    return uid


def test_of_several_nodes_those_that_can_are_done_and_the_others_told(
    site: Site, form: Form, scene: Scene, node: str
) -> None:
    """OSV-7: A form with several nodes starts those that it can, and reports the others."""
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
    """OSV-7: A POST from another site is refused even if it carries the cookie and the token."""
    refused = form.post("/start", node, confirm="yes", headers=headers)

    assert refused.status_code == 403
    assert "nothing was changed" in refused.text
    assert not in_maintenance(scene, node)


@pytest.mark.parametrize("letter", ["", "x", "77", "9" * 5000])
def test_a_dead_letter_that_is_none_is_404(form: Form, letter: str) -> None:
    """X-1: An invalid dead letter number in the form is a 404 error, whatever its text."""
    refused = form.post("/dead-letters/redrive", letter=letter, confirm="yes")

    assert refused.status_code == 404
    assert "no such open dead letter" in refused.text


@pytest.mark.parametrize("token", ["", "guessed"])
def test_a_post_without_the_forms_token_is_403(site: Site, form: Form, scene: Scene, node: str, token: str) -> None:
    """OSV-7: A POST without the form's token is refused, with or without the cookie."""
    without_cookie = {"node": node, "confirm": "yes", "csrf": form.token}

    assert form.post("/start", node, confirm="yes", csrf=token).status_code == 403
    assert requests.post(site.url("/start"), without_cookie, timeout=10).status_code == 403
    assert not in_maintenance(scene, node)


def test_a_page_of_another_name_that_leads_here_gets_nothing(site: Site) -> None:
    """Check that the console refuses requests with another host name.

    On a loopback address, the console acts for every caller, so a DNS rebinding attack could otherwise use it.
    """
    assert requests.get(site.url("/nodes"), headers={"Host": "rebound.example"}, timeout=10).status_code == 400


def test_every_answer_carries_the_headers_that_browsers_obey(site: Site) -> None:
    """Check the security headers: only own scripts and styles, no frames, and a protected cookie."""
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
    """Yield a console as in a cluster: other hosts can reach it, and callers send tokens.

    The console's own ServiceAccount may only view.
    """
    cluster = site.scene.cluster
    with Console(cluster, tmp_path_factory.mktemp("tokens"), user=VIEWER, address="0.0.0.0") as console:  # noqa: S104
        yield Site(site.scene, console)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/nodes", "/nodes/guarded-1", "/live/nodes", "/live/nodes/guarded-1", "/start?node=x"]
)
def test_a_caller_who_may_not_look_sees_nothing(tokens: Site, scene: Scene, node: str, path: str) -> None:
    """OSV-7: A caller without permission to view gets an error that names the missing permission, and no data."""
    nobody, unprivileged = look(tokens, path), look(tokens, path, bearer(scene, UNPRIVILEGED))
    wrong = look(tokens, path, {"Authorization": "Bearer wrong"})

    assert (nobody.status_code, nobody.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert wrong.status_code == 401
    assert unprivileged.status_code == 403
    assert "User &#34;unprivileged&#34; cannot list resource &#34;nodes&#34;" in unprivileged.text
    assert node not in nobody.text + wrong.text + unprivileged.text.partition("<main")[2]


@proves("OSV-7", "OSV-14")
def test_a_caller_who_may_only_look_is_403(tokens: Site, scene: Scene, node: str) -> None:
    """OSV-7, OSV-14: A caller who may only view sees the page, and the API server refuses the action."""
    headers = bearer(scene, VIEWER)

    assert node in look(tokens, "/nodes", headers).text
    refused = act(tokens, "/start", node, headers)
    assert refused.status_code == 403
    assert "cannot create resource &#34;nodemaintenances&#34;" in refused.text
    assert not in_maintenance(scene, node)


def test_a_token_acts_as_its_owner(tokens: Site, scene: Scene) -> None:
    """Check that the API server's audit log names the owner of the token, not the console."""
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
    """Check that identity headers have no effect if no proxy is configured."""
    forged = {"X-Forwarded-User": "admin", "X-Forwarded-Groups": "system:masters"}
    assert look(tokens, "/nodes", forged).status_code == 401


@pytest.mark.slow
def test_a_kubelet_may_ask_for_health_by_the_pods_address(site: Site, tmp_path: Path) -> None:
    """Check that a console with `--host` answers health checks under any host name, and nothing else.

    A kubelet uses the pod's IP address.
    """
    with Console(site.scene.cluster, tmp_path, "--host", "console.example") as console:  # the startup check used the IP
        named = Site(site.scene, console)
        assert look(named, "/health/liveness").status_code == 200
        for path in ("/nodes", "/static/console.js", "/no-such-page", "/health"):
            assert look(named, path).status_code == 400
        assert look(named, "/nodes", {"Host": "console.example"}).status_code == 200


HASTY = (
    "from console.web.server import Worker; Worker.request_seconds = Worker.answer_seconds = 1.0; "
    "from console.cli import main; main()"
)
"""Program that runs the console with shorter time limits."""
HALF_FORM = b"POST /start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n"
HALF_FORM += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nn"


@pytest.mark.slow
@pytest.mark.parametrize("begun", [b"G", HALF_FORM], ids=["a line", "a form"])
def test_requests_that_never_end_hold_no_thread_for_ever(site: Site, tmp_path: Path, begun: bytes) -> None:
    """X-6: Unfinished requests, one for each thread, time out, and the console answers again."""
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
    """Check that one replica of the console accepts a form that another replica rendered.

    During a drain, two pods may serve the same address, so a form may reach the other pod.
    """
    with Console(scene.cluster, tmp_path) as second:
        form.site = Site(scene, second)
        assert form.post("/start", node, confirm="yes", at=node).status_code == 303
        form.site = site
        assert form.post("/stop", node, confirm="yes").status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")


def test_an_address_that_is_taken_is_one_line(site: Site) -> None:
    """X-6: An address in use is a one-line error with a remedy, and the command prints no URL before it."""
    taken = site.console.url.removeprefix("http://")
    words = ["console", "--kubeconfig", str(site.scene.cluster.kubeconfig), "--listen", taken]

    result = CliRunner().invoke(commands, words)

    assert result.exit_code == 1
    assert result.output == f"Error: {taken}: Address already in use; name another address by --listen\n"
