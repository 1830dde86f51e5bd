"""Tests for the console's audit log: one line per action, with user, object, client address and outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests
from cloudevents.core.v1.event import CloudEvent

from console.web.audit import ActionOutcome
from console.web.maintenance_views import act_on_nodes
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.journal.store import Journal, Query
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.http_receiver import Receiver, Response
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment
from tests.console.web.callers import (
    VIEWER,
    FormSession,
    build_auth_header,
    post_confirmed,
    wait_for_audit_lines,
    wait_for_node_page,
)
from tests.console.web.site import Site

USER_HEADER, SECRET_HEADER = "X-Forwarded-User", "X-Console-Secret"
SECRET = "only-the-proxy-knows"  # noqa: S105 - a fake secret for these tests
IDENTIFICATION_MODES: dict[
    str, tuple[Callable[[EventChainEnvironment], dict[str, str]], Callable[[EventChainEnvironment], dict[str, str]]]
] = {
    "token": (
        lambda environment: build_auth_header(environment, access.ADMIN),
        lambda environment: build_auth_header(environment, VIEWER),
    ),
    "proxy": (
        lambda environment: {USER_HEADER: "boss", SECRET_HEADER: SECRET, "X-Forwarded-Groups": "staff,system:masters"},
        lambda environment: {USER_HEADER: VIEWER, SECRET_HEADER: SECRET},
    ),
}
"""Map from identification mode to functions that build the headers of an authorized user, and of a read-only user."""
DIGEST_FIELD = re.compile(r'name="digest" value="([^"]+)"')
USER_NAMES = {"token": "admin", "proxy": "boss"}


@pytest.fixture
def environment(site: Site) -> EventChainEnvironment:
    return site.environment


@pytest.fixture(scope="module", params=IDENTIFICATION_MODES)
def mode_and_console(
    request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Site]]:
    """Yield each identification mode, and a console that uses this mode."""
    folder, cluster = tmp_path_factory.mktemp(request.param), site.environment.cluster
    secret = folder / "secret"
    secret.write_text(SECRET)
    if request.param == "token":
        console = WebConsole(cluster, folder, user=VIEWER, address="0.0.0.0")  # noqa: S104 - as in a cluster
    else:
        headers = ("--user-header", USER_HEADER, "--groups-header", "X-Forwarded-Groups")
        console = WebConsole(cluster, folder, *headers, "--proxy-secret", secret)
    with console:
        yield request.param, Site(site.environment, console)


@pytest.mark.slow
def test_each_action_is_logged_as_one_line(
    mode_and_console: tuple[str, Site], environment: EventChainEnvironment
) -> None:
    """Check that each action, whether allowed or denied, is logged in one line with user and client address."""
    mode, site = mode_and_console
    actor_headers, viewer_headers = (headers(environment) for headers in IDENTIFICATION_MODES[mode])
    node = environment.create_node(f"audited-{mode}")

    assert (
        post_confirmed(site, "/start", node, {**viewer_headers, "X-Forwarded-For": "192.0.2.7, 10.0.0.1"}).status_code
        == 403
    )
    assert post_confirmed(site, "/start", node, actor_headers).status_code == 303
    assert post_confirmed(site, "/stop", node, actor_headers).status_code == 303
    environment.wait_for_deletion(f"{MEDIK8S.path}/{node}")

    refused_line, start_line, stop_line = wait_for_audit_lines(site, 3, node=node)
    assert (refused_line["action"], refused_line["outcome"], refused_line["status"]) == ("start", "refused", 403)
    assert (refused_line["user"], refused_line["from"]) == (VIEWER, "127.0.0.1")
    assert refused_line["forwarded"] == "192.0.2.7, 10.0.0.1"
    assert "cannot" in refused_line["error"]
    assert [(line["action"], line["outcome"], line["user"]) for line in (start_line, stop_line)] == [
        ("start", "done", USER_NAMES[mode]),
        ("stop", "done", USER_NAMES[mode]),
    ]
    assert start_line.get("groups", []) == (["staff", "system:masters"] if mode == "proxy" else [])
    assert "error" not in start_line


def test_loopback_console_logs_kubeconfig_user(site: Site, environment: EventChainEnvironment) -> None:
    """Check that a loopback console logs actions with the kubeconfig's user, and does not log page views.

    A form with several nodes is logged in one line per node, each with its own outcome.
    """
    node = wait_for_node_page(site, environment.create_node("audited-here"))
    with requests.Session() as session:
        form_session = FormSession(site, session)
        form_session.post("/start", node)
        form_session.post("/start", node, "not-audited", confirm="yes")
        form_session.post("/stop", node, confirm="yes")
    environment.wait_for_deletion(f"{MEDIK8S.path}/{node}")

    assert [(line["action"], line["outcome"]) for line in wait_for_audit_lines(site, 2, node=node)] == [
        ("start", "done"),
        ("stop", "done"),
    ]
    (missing_node_line,) = wait_for_audit_lines(site, 1, node="not-audited")
    assert (missing_node_line["user"], missing_node_line["outcome"], missing_node_line["status"]) == (
        "admin",
        "refused",
        404,
    )
    assert missing_node_line["error"] == 'node "not-audited" not found'


@pytest.mark.slow
def test_redrive_is_logged_after_delivery(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    """Check that a redrive is logged after the delivery, with one line per dead letter.

    Each line contains the function's response, or the reason why no function was called.
    """
    url, file = f"{receiver.url}/cordon", tmp_path / "journal.db"
    responses = {"1": Response(400, body=b"no such thing"), "2": Response(500, body=b"away"), "3": Response(200)}
    receiver.answers["/cordon"] = lambda request: responses[request.id]
    with closing(Journal(file)) as store:
        for event_id, destination in (("1", url), ("2", url), ("3", url), ("4", f"{receiver.url}/unknown")):
            event = CloudEvent({"id": event_id, "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
            store.write_event(add_dead_letter_extensions(event, DeadLetter(destination, 503, "away")))
        numbers = [str(dead_letter.seq) for dead_letter in store.select(Query(dead_letters_only=True))]
    urls = {"functions_url": receiver.url, "broker_url": f"{receiver.url}/broker"}
    with (
        WebConsole(site.environment.cluster, tmp_path, "--journal", file, **urls) as console,
        requests.Session() as session,
    ):
        console_site = Site(site.environment, console)
        digests = DIGEST_FIELD.findall(session.get(console_site.build_url("/dead-letters"), timeout=10).text)
        form_fields = {
            "csrf": FormSession(console_site, session).token,
            "letter": numbers,
            "digest": digests,
            "confirm": "yes",
        }
        assert session.post(console_site.build_url("/dead-letters/redrive"), form_fields, timeout=10).status_code == 200
        lines = wait_for_audit_lines(console_site, 4, action="redrive")

    assert [line["letter"] for line in lines] == numbers
    assert [(line["outcome"], line["status"]) for line in lines] == [
        ("failed", 400),
        ("failed", 500),
        ("done", 200),
        ("failed", 409),
    ]
    assert {(line["user"], line["from"]) for line in lines} == {("admin", "127.0.0.1")}
    assert ["error" in line for line in lines] == [True, True, False, True]


def test_outcome_for_node_is_logged_while_actions_on_other_nodes_continue() -> None:
    """X-6: the outcome for a node is logged immediately, because the console may be killed during the other actions."""
    logged_names: list[str] = []

    async def act_on_two_nodes() -> None:
        quick_is_done = asyncio.Event()

        async def act_on_node(node: str) -> None:
            if node == "slow":
                await quick_is_done.wait()

        def record_outcome(outcome: ActionOutcome) -> None:
            logged_names.append(outcome.name)
            quick_is_done.set()

        await asyncio.wait_for(act_on_nodes(["slow", "quick"], act_on_node, record_outcome), 5)

    asyncio.run(act_on_two_nodes())

    assert logged_names == ["quick", "slow"]


def test_forged_request_is_logged(mode_and_console: tuple[str, Site]) -> None:
    """Check that a forged request is logged without a user name, and that its fields cannot inject log lines."""
    _, console_site = mode_and_console
    forged_fields = {"node": 'x"}\n{"logger": "audit"', "confirm": "yes"}

    requests.post(console_site.build_url("/start"), forged_fields, timeout=10)

    (line,) = wait_for_audit_lines(console_site, 1, node=forged_fields["node"])
    assert (line["user"], line["outcome"], line["status"]) == ("", "refused", 403)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "expected_status"), [(500, 403), (5000, 400)])
def test_rejected_request_with_many_nodes_causes_few_api_requests_and_log_lines(
    site: Site, environment: EventChainEnvironment, tmp_path: Path, count: int, expected_status: int
) -> None:
    """X-6: a rejected request with many node names causes a constant number of API requests and log lines."""

    def count_self_subject_reviews() -> int:
        entries = [
            entry for entry in environment.read_audit_log() if entry["objectRef"]["resource"] == "selfsubjectreviews"
        ]
        return sum(entry["user"]["username"] == VIEWER for entry in entries)

    with (
        WebConsole(environment.cluster, tmp_path, user=VIEWER, address="0.0.0.0") as console,  # noqa: S104
        requests.Session() as session,
    ):
        session.headers.update(build_auth_header(environment, VIEWER))
        form_session, reviews_before = FormSession(Site(environment, console), session), count_self_subject_reviews()
        response = form_session.post("/start", *(f"n{number}" for number in range(count)), confirm="yes")
        lines = wait_for_audit_lines(form_session.site, 1, action="start")

    assert response.status_code == expected_status
    assert len(response.content) < 10_000
    assert count_self_subject_reviews() - reviews_before < 5
    assert [line["status"] for line in lines] == [expected_status] * 10
    assert lines[-1]["more"] == count - 10
