"""Tests for the permissions of console actions, and for rejected requests (OSV-7, OSV-8, OSV-14)."""

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

from console.cli import cli
from console.web.server import THREADS
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.processes import wait_until_ready
from localcluster.readiness import is_ready
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment
from tests.console.web.callers import (
    VIEWER,
    FormSession,
    build_auth_header,
    get_page,
    post_confirmed,
    wait_for_node_page,
)
from tests.console.web.site import Site
from tests.postgresql import PostgreSQL
from tests.proofs import proves

UID_FIELD = re.compile(r'name="uid" value="([^"]+)"')


@pytest.fixture
def environment(site: Site) -> EventChainEnvironment:
    return site.environment


@pytest.fixture(scope="module")
def shared_node(site: Site) -> str:
    """Return a node that all tests share; each test must end the maintenances that it starts."""
    return wait_for_node_page(site, site.environment.create_node("guarded-1"))


@pytest.fixture
def form_session(site: Site) -> Iterator[FormSession]:
    with requests.Session() as session:
        yield FormSession(site, session)


def is_in_maintenance(environment: EventChainEnvironment, node: str) -> bool:
    return bool(environment.client.list(MEDIK8S.path, field_selector=f"spec.nodeName={node}")["items"])


@proves("OSV-7", "OSV-8")
def test_only_confirmed_form_starts_or_stops_maintenance(
    site: Site, form_session: FormSession, environment: EventChainEnvironment, shared_node: str
) -> None:
    """OSV-7, OSV-8: a POST without confirmation returns only the dialog; a confirmed POST works without JavaScript."""
    dialog = form_session.post("/start", shared_node, reason="new disk")
    assert (dialog.status_code, is_in_maintenance(environment, shared_node)) == (200, False)
    assert "Take <strong>guarded-1</strong> out of service?" in dialog.text

    response = form_session.post("/start", shared_node, reason="new disk", confirm="yes", at=shared_node)
    assert (response.status_code, response.headers["Location"]) == (303, f"/nodes/{shared_node}")
    assert (
        "Maintenance of guarded-1 begins."
        in form_session.session.get(site.build_url(f"/nodes/{shared_node}"), timeout=10).text
    )
    assert form_session.post("/stop", shared_node).status_code == 200
    assert is_in_maintenance(environment, shared_node)
    assert form_session.post("/stop", shared_node, confirm="yes").status_code == 303
    environment.wait_for_deletion(f"{MEDIK8S.path}/{shared_node}")


@proves("OSV-7")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_form_with_unknown_node_gets_404(site: Site, form_session: FormSession, confirm: str) -> None:
    """OSV-7, NMO-19: a form with an unknown node creates nothing, and the response escapes the node name."""
    for path in ("/start", "/stop"):
        response = form_session.post(path, "<b>no</b>", confirm=confirm)
        assert response.status_code == 404
        assert "node &#34;&lt;b&gt;no&lt;/b&gt;&#34; not found" in response.text
    assert requests.get(site.build_url("/nodes/no-such-node"), timeout=10).status_code == 404


@pytest.mark.slow
def test_filter_value_that_journal_cannot_store_gets_400(site: Site, postgresql: PostgreSQL, tmp_path: Path) -> None:
    """X-6: a filter value that the journal cannot store gets status 400, such as text with NUL in PostgreSQL."""
    Journal(url := postgresql.create_database()).close()
    kubeconfig = site.environment.cluster.kubeconfig

    with WebConsole(site.environment.cluster, tmp_path, "--journal", url, "--kubeconfig", kubeconfig) as console:
        response = get_page(Site(site.environment, console), "/events?node=%00")

    assert response.status_code == 400
    assert "the journal cannot store the value: " in response.text


@proves("OSV-7")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_start_of_node_under_maintenance_gets_409(
    site: Site, form_session: FormSession, environment: EventChainEnvironment, confirm: str
) -> None:
    """OSV-7, NMO-22: starting a maintenance of a node that already has a maintenance gets status 409."""
    node = environment.create_node(f"taken-{confirm or 'not'}")
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)
    wait_for_node_page(site, node, text=path.rpartition("/")[2])

    response = form_session.post("/start", node, confirm=confirm)

    assert response.status_code == 409
    assert f"node &#34;{node}&#34; is already in maintenance" in response.text


@proves("OSV-8")
@pytest.mark.parametrize("confirm", ["", "yes"])
def test_stop_of_node_without_maintenance_gets_409(
    site: Site, form_session: FormSession, environment: EventChainEnvironment, confirm: str
) -> None:
    """OSV-8: stopping a maintenance of a node without a maintenance gets status 409; a manual cordon is kept."""
    node = environment.create_node(f"cordoned-{confirm or 'not'}")
    environment.cluster.kubectl("cordon", node)
    wait_for_node_page(site, node, text="Cordoned without a maintenance")

    response = form_session.post("/stop", node, confirm=confirm)

    assert response.status_code == 409
    assert re.search("cordoned", response.text, re.IGNORECASE)
    assert environment.get_node_spec(node)["unschedulable"]


@proves("OSV-8")
def test_outdated_stop_dialog_does_not_end_newer_maintenance(
    form_session: FormSession, environment: EventChainEnvironment
) -> None:
    """OSV-8: an outdated stop dialog does not end a newer maintenance with the same name."""
    node = environment.create_node("windowed-1")
    path = environment.create_maintenance(node, name=node)
    environment.wait_for_state(path)
    old_uid = wait_for_maintenance_uid_in_dialog(form_session, environment, path, node)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)
    environment.create_maintenance(node, name=node)
    environment.wait_for_state(path)

    response = form_session.post("/stop", node, confirm="yes", uid=old_uid)

    assert response.status_code == 409
    assert f"node &#34;{node}&#34; has a new maintenance now: load the page again" in response.text
    assert not environment.client.get(path)["metadata"].get("deletionTimestamp")
    new_uid = wait_for_maintenance_uid_in_dialog(form_session, environment, path, node)
    assert form_session.post("/stop", node, confirm="yes", uid=new_uid).status_code == 303
    environment.wait_for_deletion(path)


@proves("OSV-8")
def test_form_with_empty_node_name_changes_nothing(
    form_session: FormSession, environment: EventChainEnvironment
) -> None:
    """OSV-8: a form with an empty node name changes nothing, and node names in the URL of a POST are ignored."""
    node = environment.create_node("unnamed-1")
    path = environment.create_maintenance(node)
    environment.wait_for_state(path)

    forms = [(action, names) for action in ("/stop", "/start") for names in ([""], [node, ""])]
    responses = [form_session.post(action, *names, confirm="yes") for action, names in forms]

    responses_with_query = [form_session.post(f"{action}?node={node}", confirm="yes") for action in ("/stop", "/start")]

    assert [response.status_code for response in (*responses, *responses_with_query)] == [400] * 6
    assert all("a value of node is empty, nothing was changed" in response.text for response in responses)
    assert all("no node selected, nothing was changed" in response.text for response in responses_with_query)
    assert not environment.client.get(path)["metadata"].get("deletionTimestamp")
    environment.request_deletion(path)


def wait_for_maintenance_uid_in_dialog(
    form_session: FormSession, environment: EventChainEnvironment, path: str, node: str
) -> str:
    """Wait until the stop dialog contains the maintenance's uid, and return this uid."""
    uid = str(environment.client.get(path)["metadata"]["uid"])
    wait_until_ready(
        "the stop dialog", lambda: UID_FIELD.findall(form_session.post("/stop", node).text) == [uid], [], 10
    )
    return uid


def test_start_of_several_nodes_reports_each_failure(
    site: Site, form_session: FormSession, environment: EventChainEnvironment, shared_node: str
) -> None:
    """OSV-7: a form with several nodes starts a maintenance of each existing node, and reports the unknown nodes."""
    response = form_session.post("/start", shared_node, "nowhere", confirm="yes")

    assert response.status_code == 200
    assert "Maintenance of guarded-1 begins." in response.text
    assert "node &#34;nowhere&#34; not found" in response.text
    assert form_session.post("/stop", shared_node, confirm="yes").status_code == 303
    environment.wait_for_deletion(f"{MEDIK8S.path}/{shared_node}")


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
def test_post_from_another_site_gets_403(
    form_session: FormSession, environment: EventChainEnvironment, shared_node: str, headers: dict[str, str]
) -> None:
    """OSV-7: a POST from another site is rejected even if it contains the cookie and the CSRF token."""
    response = form_session.post("/start", shared_node, confirm="yes", headers=headers)

    assert response.status_code == 403
    assert "nothing was changed" in response.text
    assert not is_in_maintenance(environment, shared_node)


@pytest.mark.parametrize("dead_letter_number", ["", "x", "77", "9" * 5000])
def test_invalid_dead_letter_number_gets_404(form_session: FormSession, dead_letter_number: str) -> None:
    """X-1: a form with an invalid number of a dead letter gets status 404."""
    response = form_session.post("/dead-letters/redrive", letter=dead_letter_number, confirm="yes")

    assert response.status_code == 404
    assert "open dead letter not found" in response.text


@pytest.mark.parametrize("token", ["", "guessed"])
def test_post_without_csrf_token_gets_403(
    site: Site, form_session: FormSession, environment: EventChainEnvironment, shared_node: str, token: str
) -> None:
    """OSV-7: a POST without the form's CSRF token or without the cookie is rejected."""
    form_fields = {"node": shared_node, "confirm": "yes", "csrf": form_session.token}

    assert form_session.post("/start", shared_node, confirm="yes", csrf=token).status_code == 403
    assert requests.post(site.build_url("/start"), form_fields, timeout=10).status_code == 403
    assert not is_in_maintenance(environment, shared_node)


def test_unknown_host_name_gets_400(site: Site) -> None:
    """Check that the console rejects requests with an unknown host name.

    On a loopback address, the console acts for every caller, which a DNS rebinding attack could otherwise exploit.
    """
    assert requests.get(site.build_url("/nodes"), headers={"Host": "rebound.example"}, timeout=10).status_code == 400


def test_every_response_has_security_headers(site: Site) -> None:
    """Check the security headers: no third-party scripts or styles, no frames, and a protected cookie."""
    for path in ("/nodes", "/events", "/nodes/none", "/static/console.js"):
        headers = requests.get(site.build_url(path), timeout=10).headers
        assert "default-src 'none'; script-src 'self'; style-src 'self';" in headers["Content-Security-Policy"]
        assert "unsafe" not in headers["Content-Security-Policy"]
        assert headers["X-Content-Type-Options"] == "nosniff"
        assert headers["X-Frame-Options"] == "DENY"
    cookie = requests.get(site.build_url("/nodes"), timeout=10).headers["Set-Cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie


@pytest.fixture(scope="module")
def token_console(site: Site, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """Yield a console configured as in a cluster: it listens on all addresses, and callers send bearer tokens.

    The console's own ServiceAccount may only view nodes and maintenances.
    """
    cluster, folder = site.environment.cluster, tmp_path_factory.mktemp("tokens")
    with WebConsole(cluster, folder, user=VIEWER, address="0.0.0.0") as console:  # noqa: S104 - as in a cluster
        yield Site(site.environment, console)


@pytest.mark.slow
@pytest.mark.parametrize(
    "path", ["/", "/nodes", "/nodes/guarded-1", "/live/home", "/live/nodes", "/live/nodes/guarded-1", "/start?node=x"]
)
def test_caller_without_view_permission_gets_error_and_no_data(
    token_console: Site, environment: EventChainEnvironment, shared_node: str, path: str
) -> None:
    """OSV-7: a caller without view permissions gets no data, and the error names the missing permission."""
    anonymous, unprivileged = (
        get_page(token_console, path),
        get_page(token_console, path, build_auth_header(environment, UNPRIVILEGED)),
    )
    wrong_token = get_page(token_console, path, {"Authorization": "Bearer wrong"})

    assert (anonymous.status_code, anonymous.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert wrong_token.status_code == 401
    assert unprivileged.status_code == 403
    assert "User &#34;unprivileged&#34; cannot list resource &#34;nodes&#34;" in unprivileged.text
    assert shared_node not in anonymous.text + wrong_token.text + unprivileged.text.partition("<main")[2]


@proves("OSV-7", "OSV-14")
def test_viewer_cannot_start_maintenance(
    token_console: Site, environment: EventChainEnvironment, shared_node: str
) -> None:
    """OSV-7, OSV-14: a caller who may only view sees the page, but the API server denies the action."""
    headers = build_auth_header(environment, VIEWER)

    assert shared_node in get_page(token_console, "/nodes", headers).text
    response = post_confirmed(token_console, "/start", shared_node, headers)
    assert response.status_code == 403
    assert "cannot create resource &#34;nodemaintenances&#34;" in response.text
    assert not is_in_maintenance(environment, shared_node)


def test_actions_use_identity_of_token(token_console: Site, environment: EventChainEnvironment) -> None:
    """Check that the API server's audit log contains the user of the token, not the console's ServiceAccount."""
    node = environment.create_node("bearer-1")

    assert (
        post_confirmed(token_console, "/start", node, build_auth_header(environment, access.ADMIN)).status_code == 303
    )
    environment.wait_for_state(f"{MEDIK8S.path}/{node}")
    assert post_confirmed(token_console, "/stop", node, build_auth_header(environment, VIEWER)).status_code == 403
    assert post_confirmed(token_console, "/stop", node, build_auth_header(environment, access.ADMIN)).status_code == 303

    writes = [entry for entry in environment.read_audit_log() if entry["objectRef"].get("name") == node]
    maintenance_writes = [entry for entry in writes if entry["objectRef"]["resource"] == "nodemaintenances"]
    users_by_verb = {
        entry["verb"]: entry["user"]["username"]
        for entry in maintenance_writes
        if entry["verb"] in ("create", "delete")
    }
    assert users_by_verb == {"create": access.ADMIN, "delete": access.ADMIN}


def test_identity_headers_are_ignored_if_no_proxy_is_configured(token_console: Site) -> None:
    """Check that identity headers have no effect if no proxy is configured."""
    forged_headers = {"X-Forwarded-User": "admin", "X-Forwarded-Groups": "system:masters"}
    assert get_page(token_console, "/nodes", forged_headers).status_code == 401


@pytest.mark.slow
def test_health_endpoints_accept_any_host_name(site: Site, tmp_path: Path) -> None:
    """Check that health checks accept any host name, but other requests only the configured ones.

    Kubelets use the pod's IP address.
    """
    # `WebConsole` waits for a successful readiness check, which also uses the IP address.
    with WebConsole(site.environment.cluster, tmp_path, "--host", "console.example") as console:
        named_site = Site(site.environment, console)
        assert get_page(named_site, "/health/liveness").status_code == 200
        for path in ("/nodes", "/static/console.js", "/no-such-page", "/health"):
            assert get_page(named_site, path).status_code == 400
        assert get_page(named_site, "/nodes", {"Host": "console.example"}).status_code == 200


FAST_TIMEOUT_PROGRAM = (
    "from console.web.server import ConsoleWorker as Worker; "
    "Worker.request_timeout_seconds = Worker.response_timeout_seconds = 1.0; "
    "from console.cli import main; main()"
)
"""Python script that runs the console with shorter timeouts."""
PARTIAL_FORM_REQUEST = b"POST /start HTTP/1.1\r\nHost: localhost\r\nContent-Length: 200000\r\n"
PARTIAL_FORM_REQUEST += b"Content-Type: application/x-www-form-urlencoded\r\n\r\nn"


@pytest.mark.slow
@pytest.mark.parametrize("partial_request", [b"G", PARTIAL_FORM_REQUEST], ids=["request line", "form"])
def test_incomplete_requests_time_out(site: Site, tmp_path: Path, partial_request: bytes) -> None:
    """X-6: incomplete requests that occupy all threads time out, after which the console responds again."""
    console = WebConsole(site.environment.cluster, tmp_path)
    console.server.command[:3] = [sys.executable, "-c", FAST_TIMEOUT_PROGRAM]
    with console, ExitStack() as exit_stack:
        address = ("127.0.0.1", int(console.url.rpartition(":")[2]))
        for _ in range(THREADS):
            exit_stack.enter_context(socket.create_connection(address)).sendall(partial_request)
        wait_until_ready("the console again", lambda: is_ready(console.url), [console.server], 10)


@pytest.mark.slow
def test_replica_accepts_form_of_another_replica(
    site: Site, form_session: FormSession, environment: EventChainEnvironment, shared_node: str, tmp_path: Path
) -> None:
    """Check that one replica of the console accepts a form that another replica has rendered.

    During a drain, a Service may route the form to the other replica.
    """
    with WebConsole(environment.cluster, tmp_path) as second_console:
        form_session.site = Site(environment, second_console)
        assert form_session.post("/start", shared_node, confirm="yes", at=shared_node).status_code == 303
        form_session.site = site
        assert form_session.post("/stop", shared_node, confirm="yes").status_code == 303
    environment.wait_for_deletion(f"{MEDIK8S.path}/{shared_node}")


def test_address_in_use_is_one_line_error(site: Site) -> None:
    """X-6: if the address is already in use, the command prints one line with a remedy instead of a URL."""
    address = site.console.url.removeprefix("http://")
    arguments = ["console", "--kubeconfig", str(site.environment.cluster.kubeconfig), "--listen", address]

    result = CliRunner().invoke(cli, arguments)

    assert result.exit_code == 1
    message = f"cannot listen on {address}: Address already in use"
    assert result.output == f"Error: {message}; name another address with --listen\n"
