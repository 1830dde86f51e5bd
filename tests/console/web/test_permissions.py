"""Tests for the permissions to view the journal's pages, to replay and to redrive, with bearer tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests
from cloudevents.core.v1.event import CloudEvent

from console.web.redrive_views import compute_digest
from eventing import events
from eventing.dead_letters import DeadLetter, add_dead_letter_extensions
from eventing.http_binding import BATCH_CONTENT_TYPE
from eventing.journal.entries import Query
from eventing.journal.store import Journal
from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import RULE_KIND, RUN_KIND
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.http_receiver import Receiver, Response
from localcluster.processes import wait_until_ready
from localcluster.web_console import WebConsole
from tests.chain.environment import EventChainEnvironment
from tests.console.web.callers import (
    VIEW_PERMISSIONS,
    VIEWER,
    FormSession,
    build_auth_header,
    create_account_header,
    create_account_option,
    create_role_header,
    get_page,
    wait_for_audit_lines,
    wait_for_node_page,
)
from tests.console.web.site import Site
from tests.proofs import proves

JOURNAL_PATHS = (
    *("/events", "/events/tail", "/events/1", "/events/1?tab=json", "/events/2", "/timeline/recorded-1"),
    "/dead-letters",
)
REPLAY_PATH, REDRIVE_PATH, DISCARD_PATH = "/events/1/replay", "/dead-letters/redrive", "/dead-letters/discard"
NODE_NAME = "recorded-1"
SECRET = "secret-of-the-journal"  # noqa: S105 - a value that only the recorded event contains


def build_event() -> CloudEvent:
    """Build an event that `cordon` consumes."""
    maintenance = {"apiVersion": MEDIK8S.api_version, "name": NODE_NAME, "uid": "uid-1"}
    attributes = {
        "id": "id-1",
        "source": "/test",
        "type": events.MAINTENANCE_BEGUN,
        "subject": NODE_NAME,
        "node": NODE_NAME,
    }
    base_attributes = {"maintenance": "uid-1", "datacontenttype": "application/json"}
    return CloudEvent(
        {**attributes, **base_attributes}, {"node": NODE_NAME, "maintenance": maintenance, "note": SECRET}
    )


@pytest.fixture(scope="module")
def function_receiver() -> Iterator[Receiver]:
    """Yield a receiver that acts as every function and as the broker."""
    empty_response = Response(200, {"content-type": BATCH_CONTENT_TYPE}, b"[]")
    receiver = Receiver(default_answer=lambda request: empty_response if "ce-replay" in request.headers else Response())
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def journal_file(tmp_path_factory: pytest.TempPathFactory, function_receiver: Receiver) -> Path:
    """Create a journal: entry 1 is an event, 2 its dead letter, and 3 and 4 contain MutexRules and MutexRunConfigs."""
    file = tmp_path_factory.mktemp("rights") / "journal.db"
    with closing(Journal(file)) as journal:
        journal.write_event(build_event())
        dead_letter = DeadLetter(f"{function_receiver.url}/cordon", 503, SECRET)
        journal.write_event(add_dead_letter_extensions(build_event(), dead_letter))
        for kind in (RULE_KIND, RUN_KIND):
            attributes = {"id": kind, "source": "/apis", "type": events.RESOURCE_ADDED, "kind": kind}
            journal.write_event(
                CloudEvent(attributes, {"metadata": {"name": "disks", "uid": kind}, "spec": {"note": SECRET}})
            )
    return file


@pytest.fixture(scope="module")
def token_console(site: Site, journal_file: Path, function_receiver: Receiver) -> Iterator[Site]:
    """Yield a console configured as in a cluster: it listens on all addresses, and callers send bearer tokens.

    The console's own ServiceAccount may only view nodes and maintenances.
    """
    options = {
        "functions_url": function_receiver.url,
        "broker_url": f"{function_receiver.url}/broker",
        "address": "0.0.0.0",  # noqa: S104 - as in a cluster
    }
    account_option = create_account_option(
        site.environment, journal_file.parent, "viewing", [*VIEW_PERMISSIONS, "list triggers", "list brokers"]
    )
    with WebConsole(
        site.environment.cluster, journal_file.parent, "--journal", journal_file, *account_option, **options
    ) as console:
        yield Site(site.environment, console)


@pytest.fixture
def environment(site: Site) -> EventChainEnvironment:
    return site.environment


def post_form(
    site: Site, headers: dict[str, str], path: str, *, viewer_headers: dict[str, str], **fields: str
) -> requests.Response:
    """Fetch a CSRF token with `viewer_headers`, post the form with `headers`, and return the response."""
    with requests.Session() as session:
        session.headers.update(viewer_headers)
        form_session = FormSession(site, session)
        session.headers.pop("Authorization")
        return form_session.post(path, headers=headers, **fields)


@pytest.mark.parametrize("path", JOURNAL_PATHS)
def test_journal_pages_require_view_permissions(
    token_console: Site, environment: EventChainEnvironment, path: str
) -> None:
    """Check that journal pages require a token and view permissions, because events contain pods, nodes and users."""
    anonymous, wrong_token = (
        get_page(token_console, path),
        get_page(token_console, path, {"Authorization": "Bearer wrong"}),
    )
    unprivileged = get_page(token_console, path, build_auth_header(environment, UNPRIVILEGED))

    assert (anonymous.status_code, wrong_token.status_code, unprivileged.status_code) == (401, 401, 403)
    assert "User &#34;unprivileged&#34; cannot list resource &#34;nodes&#34;" in unprivileged.text
    assert SECRET not in anonymous.text + wrong_token.text + unprivileged.text


@pytest.mark.parametrize("path", JOURNAL_PATHS)
def test_viewer_may_read_journal_pages(token_console: Site, environment: EventChainEnvironment, path: str) -> None:
    """Check that the journal pages require no more permissions than the pages about nodes."""
    assert get_page(token_console, path, build_auth_header(environment, VIEWER)).status_code == 200


@pytest.mark.parametrize(
    ("page", "permission"), [("/events/3", "get mutexrules"), ("/events/4", "list mutexrunconfigs")]
)
def test_events_about_mutex_objects_require_permission_for_their_kind(
    token_console: Site, environment: EventChainEnvironment, page: str, permission: str
) -> None:
    """Check that viewing an event about a mutex object requires the permission to read objects of this kind.

    Such objects contain images and scripts. The pages about upgrade runs require the same permission.
    """
    allowed_headers = create_account_header(environment, permission.replace(" ", "-"), [*VIEW_PERMISSIONS, permission])

    summary_response, denied_response, accepted_response = (
        get_page(token_console, page, build_auth_header(environment, VIEWER)),
        get_page(token_console, f"{page}?tab=json", build_auth_header(environment, VIEWER)),
        get_page(token_console, f"{page}?tab=json", allowed_headers),
    )

    assert summary_response.status_code == 403
    assert (denied_response.status_code, accepted_response.status_code) == (403, 200)
    assert (SECRET in denied_response.text, SECRET in accepted_response.text) == (False, True)


def test_unknown_event_gets_403_without_view_permissions(
    token_console: Site, environment: EventChainEnvironment
) -> None:
    """Check that a caller without view permissions cannot find out which event numbers exist."""
    assert get_page(token_console, "/events/77", build_auth_header(environment, UNPRIVILEGED)).status_code == 403
    assert get_page(token_console, "/events/77", build_auth_header(environment, VIEWER)).status_code == 404


@proves("OSV-14")
@pytest.mark.parametrize(
    ("path", "confirm"), [(REPLAY_PATH, ""), (REDRIVE_PATH, ""), (REDRIVE_PATH, "yes"), (DISCARD_PATH, "yes")]
)
@pytest.mark.parametrize("user", ["", UNPRIVILEGED, VIEWER])
def test_viewer_may_not_replay_or_redrive(
    token_console: Site,
    environment: EventChainEnvironment,
    journal_file: Path,
    function_receiver: Receiver,
    path: str,
    confirm: str,
    user: str,
) -> None:
    """Check that replay, redrive and discard are denied to a caller who may not start a maintenance."""
    headers = build_auth_header(environment, user) if user else {}

    response = post_form(
        token_console, headers, path, viewer_headers=build_auth_header(environment, VIEWER), letter="2", confirm=confirm
    )

    assert response.status_code == (403 if user else 401)
    assert "cannot" in response.text or not user
    assert function_receiver.requests == []
    assert list_attempts(journal_file) == []


def test_commands_that_scale_up_require_permission_to_read_workloads(
    token_console: Site, environment: EventChainEnvironment
) -> None:
    """Check that a node's page has the command for a blocked workload only if the caller may read the workload."""
    node, namespace = environment.create_node(), environment.create_namespace()
    environment.create_deployment(namespace, node, 1)
    environment.create_budget(namespace, {"app": "web"}, name="web", disruptions_allowed=0, minAvailable=1)
    path = environment.create_maintenance(node)
    command = f"kubectl scale deployment/web -n {namespace} --replicas=2"
    admin_headers, viewer_headers = (build_auth_header(environment, user) for user in (access.ADMIN, VIEWER))

    for page_path in (f"/nodes/{node}/scale-commands", f"/nodes/{node}"):
        wait_until_ready(
            "the command",
            lambda page_path=page_path: command in get_page(token_console, page_path, admin_headers).text,  # type: ignore[misc]
            [],
        )
        viewer_page = get_page(token_console, page_path, viewer_headers)
        assert (viewer_page.status_code, "kubectl scale" in viewer_page.text) == (200, False)
    environment.request_deletion(path)


ACTION_PATTERN = re.compile(
    r"<(?:a|button)\b([^>]*)>(?:Start Maintenance|Stop Maintenance|Redrive|Redrive all|Replay \(dry run\))<"
)
"""Matches the attributes of a link or button for an action."""


@pytest.fixture(scope="module")
def viewer_header(site: Site) -> dict[str, str]:
    """Return the Authorization header of a user with the ClusterRole `maintenance-viewer`."""
    return create_role_header(site.environment, "maintenance-viewer")


@pytest.fixture(scope="module")
def operator_header(site: Site) -> dict[str, str]:
    """Return the Authorization header of a user with the ClusterRole `maintenance-operator`."""
    return create_role_header(site.environment, "maintenance-operator")


@pytest.fixture(scope="module")
def offered_node(site: Site) -> str:
    """Return a node that the console shows."""
    return wait_for_node_page(site, site.environment.create_node("offered-1"))


@pytest.mark.parametrize(
    ("path", "action_count"),
    [
        ("/nodes/offered-1", 1),
        ("/start?node=offered-1", 1),
        ("/live/nodes/offered-1?version=0", 1),
        ("/dead-letters", 1),
        ("/events/1?tab=replay", 1),
        ("/events/3?tab=replay", 1),
    ],
)
def test_page_enables_only_permitted_actions(
    token_console: Site,
    offered_node: str,
    viewer_header: dict[str, str],
    operator_header: dict[str, str],
    path: str,
    action_count: int,
) -> None:
    """Check that a page disables each action for a viewer, with the missing permission as title, but no other user."""
    denied, permitted = (
        find_actions(token_console, path, header, action_count) for header in (viewer_header, operator_header)
    )

    assert len(denied) == len(permitted) == action_count
    for attributes in denied:
        assert "disabled" in attributes
        assert 'title="You cannot create resource &#34;nodemaintenances&#34; in API group' in attributes
    assert not any("disabled" in attributes for attributes in permitted)


@pytest.mark.parametrize("path", ["/nodes", "/live/nodes?version=0"])
def test_list_of_nodes_enables_only_permitted_actions(
    token_console: Site, offered_node: str, viewer_header: dict[str, str], operator_header: dict[str, str], path: str
) -> None:
    """Check the menus of all rows and the buttons below the list, also in live updates of the same state."""
    denied, permitted = (find_actions(token_console, path, header, 1) for header in (viewer_header, operator_header))

    assert denied
    assert all("disabled" in attributes and 'title="You cannot ' in attributes for attributes in denied)
    assert permitted
    assert not any("disabled" in attributes for attributes in permitted)


def test_live_update_of_row_disables_actions_of_viewer(
    token_console: Site, environment: EventChainEnvironment, viewer_header: dict[str, str]
) -> None:
    """Check that a row that a live update adds or changes disables the actions like the page."""
    with requests.get(
        token_console.build_url("/live/nodes"), headers=viewer_header, stream=True, timeout=20
    ) as response:
        lines = response.iter_lines(decode_unicode=True)
        next(line for line in lines if line == "event: rows")  # All rows, because the request names no version.
        node = environment.create_node("appearing-1")
        next(line for line in lines if f'value="{node}"' in line)
        new_action = next(line for line in lines if "Start Maintenance" in line)
        path = environment.create_maintenance(node)
        changed_action = next(line for line in lines if "Stop Maintenance" in line)
    environment.wait_for_state(path)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)

    assert 'aria-disabled="true"' in new_action
    assert "You cannot create resource" in new_action
    assert 'aria-disabled="true"' in changed_action
    assert "You cannot delete resource" in changed_action


def find_actions(site: Site, path: str, headers: dict[str, str], min_count: int) -> list[str]:
    """Return the attributes of each action in a page, or in the beginning of a stream with at least `min_count`."""
    with requests.get(site.build_url(path), headers=headers, stream=True, timeout=10) as response:
        assert response.status_code == 200, response.text
        text = ""
        for chunk in response.iter_content(None):
            text += chunk.decode()
            if path.startswith("/live/") and len(actions := ACTION_PATTERN.findall(text)) >= min_count:
                return actions
    return ACTION_PATTERN.findall(text)


CURRENT_STATE_PERMISSIONS = ("list nodes", "get nodes", "get pods", "get poddisruptionbudgets")
REPLAY_PERMISSIONS = (*CURRENT_STATE_PERMISSIONS, *(f"{verb} nodemaintenances" for verb in ("get", "list", "create")))


@pytest.mark.parametrize("missing_permission", ["get pods", "get poddisruptionbudgets", "create nodemaintenances"])
def test_replay_requires_permissions_to_start_maintenance_and_to_read_pods(
    token_console: Site, environment: EventChainEnvironment, function_receiver: Receiver, missing_permission: str
) -> None:
    """Check that a replay requires the permissions to start maintenances and to read pods and PDBs.

    A replay shows how pods and PodDisruptionBudgets have changed since the recording.
    """
    permissions = [rule for rule in REPLAY_PERMISSIONS if rule != missing_permission]
    headers = create_account_header(environment, f"without-{missing_permission.replace(' ', '-')}", permissions)

    response = post_form(token_console, headers, REPLAY_PATH, viewer_headers=headers)

    assert response.status_code == 403
    verb, resource = missing_permission.split()
    assert f"cannot {verb} resource &#34;{resource}&#34;" in response.text
    assert function_receiver.requests == []


def test_maintainer_may_replay_and_redrive(
    token_console: Site, environment: EventChainEnvironment, journal_file: Path, function_receiver: Receiver
) -> None:
    """Check that a caller who may start maintenances may also replay and redrive."""
    headers = build_auth_header(environment, access.ADMIN)

    assert post_form(token_console, headers, REPLAY_PATH, viewer_headers=headers).status_code == 200
    assert [request.headers["ce-replay"] != "" for request in function_receiver.list_requests("/cordon")] == [True]
    with closing(Journal(journal_file)) as journal:
        (dead_letter,) = journal.select(Query(dead_letters_only=True))
    fields = {"letter": "2", "digest": compute_digest(dead_letter), "confirm": "yes"}
    assert post_form(token_console, headers, REDRIVE_PATH, viewer_headers=headers, **fields).status_code == 200
    assert "ce-replay" not in function_receiver.wait_for_requests("/cordon", 2)[1].headers
    for audit_fields in ({"action": "replay", "event": "1"}, {"action": "redrive", "letter": "2"}):
        line = wait_for_audit_lines(token_console, 1, **audit_fields)[-1]
        assert (line["user"], line["outcome"], line["from"]) == ("admin", "done", "127.0.0.1")


def test_denied_replay_and_redrive_are_in_audit_log(token_console: Site, environment: EventChainEnvironment) -> None:
    """Check that the audit log contains each denied replay and redrive, with the number of the event or dead letter."""
    for path in (REPLAY_PATH, REDRIVE_PATH):
        post_form(
            token_console,
            build_auth_header(environment, VIEWER),
            path,
            viewer_headers=build_auth_header(environment, VIEWER),
            letter="77",
            confirm="yes",
        )

    (redrive_line,) = wait_for_audit_lines(token_console, 1, action="redrive", letter="77")
    replay_line = wait_for_audit_lines(token_console, 1, action="replay", user=VIEWER)[-1]
    assert (redrive_line["user"], redrive_line["outcome"], redrive_line["status"]) == (VIEWER, "refused", 403)
    assert (replay_line["event"], replay_line["outcome"]) == ("1", "refused")
    assert "cannot create" in redrive_line["error"]


def list_attempts(journal: Path) -> list[object]:
    with closing(Journal(journal)) as store:
        return [attempt for entry in store.select(Query()) for attempt in entry.attempts]
