"""Tests of the permissions for reading the journal's pages, replaying and redriving, with callers that send tokens."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests
from cloudevents.core.v1.event import CloudEvent

from console.web.redrive_views import digest
from eventing import events
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.entries import Query
from eventing.journal.store import Journal
from eventing.http_binding import BATCH
from kube.maintenance.groups import MEDIK8S
from kube.mutex.objects import RULE, RUN
from localcluster import access
from localcluster.access import UNPRIVILEGED
from localcluster.web_console import Console
from tests.chain.environment import Scene
from tests.console.web.callers import LOOKS, VIEWER, Form, account, audited, bearer, look, run_as
from tests.console.web.site import Site
from tests.proofs import proves
from tests.receiver import Answer, Receiver

READ = ("/events", "/events/1", "/events/2", "/timeline/told-1", "/dead-letters")
REPLAY, REDRIVE = "/events/1/replay", "/dead-letters/redrive"
NODE = "told-1"
SECRET = "secret-of-the-journal"  # noqa: S105 - a word that only the recorded event has


def recorded() -> CloudEvent:
    """Build an event that `cordon` consumes."""
    maintenance = {"apiVersion": MEDIK8S.api_version, "name": NODE, "uid": "uid-1"}
    attributes = {"id": "id-1", "source": "/test", "type": events.MAINTENANCE_BEGUN, "subject": NODE, "node": NODE}
    about = {"maintenance": "uid-1", "datacontenttype": "application/json"}
    return CloudEvent({**attributes, **about}, {"node": NODE, "maintenance": maintenance, "said": SECRET})


@pytest.fixture(scope="module")
def function() -> Iterator[Receiver]:
    """Yield a receiver that answers as every function and as the broker."""
    silent = Answer(200, {"content-type": BATCH}, b"[]")
    receiver = Receiver(otherwise=lambda request: silent if "ce-replay" in request.headers else Answer())
    yield receiver
    receiver.close()


@pytest.fixture(scope="module")
def journal(tmp_path_factory: pytest.TempPathFactory, function: Receiver) -> Path:
    """Return a journal with event 1, a dead letter of the same event as 2, and upgrade mutex objects as 3 and 4."""
    file = tmp_path_factory.mktemp("rights") / "journal.db"
    with closing(Journal(file)) as book:
        book.write(recorded())
        book.write(as_dead_letter(recorded(), DeadLetter(f"{function.url}/cordon", 503, SECRET)))
        for kind in (RULE, RUN):
            about = {"id": kind, "source": "/apis", "type": events.RESOURCE_ADDED, "kind": kind}
            book.write(CloudEvent(about, {"metadata": {"name": "disks", "uid": kind}, "spec": {"said": SECRET}}))
    return file


@pytest.fixture(scope="module")
def tokens(site: Site, journal: Path, function: Receiver) -> Iterator[Site]:
    """Yield a console as in a cluster: other hosts can reach it, and callers send tokens.

    The console's own ServiceAccount may only view.
    """
    where = {"functions": function.url, "broker": f"{function.url}/broker", "address": "0.0.0.0"}  # noqa: S104
    own = run_as(site.scene, journal.parent, "looking", [*LOOKS, "list triggers", "list brokers"])
    with Console(site.scene.cluster, journal.parent, "--journal", journal, *own, **where) as console:
        yield Site(site.scene, console)


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


def form(site: Site, headers: dict[str, str], path: str, *, looks: dict[str, str], **fields: str) -> requests.Response:
    """Post a form with a valid token: `looks` are the headers that fetch it, `headers` those that post it."""
    with requests.Session() as session:
        session.headers.update(looks)
        filled = Form(site, session)
        session.headers.pop("Authorization")
        return filled.post(path, headers=headers, **fields)


@pytest.mark.parametrize("path", READ)
def test_who_may_not_look_reads_nothing_of_the_journal(tokens: Site, scene: Scene, path: str) -> None:
    """Check that journal pages need a token and view permissions, since events name pods, nodes and users."""
    nobody, wrong = look(tokens, path), look(tokens, path, {"Authorization": "Bearer wrong"})
    unprivileged = look(tokens, path, bearer(scene, UNPRIVILEGED))

    assert (nobody.status_code, wrong.status_code, unprivileged.status_code) == (401, 401, 403)
    assert "User &#34;unprivileged&#34; cannot list resource &#34;nodes&#34;" in unprivileged.text
    assert SECRET not in nobody.text + wrong.text + unprivileged.text


@pytest.mark.parametrize("path", READ)
def test_who_may_look_reads_the_journal(tokens: Site, scene: Scene, path: str) -> None:
    """Check that journal pages need the same permissions as the pages about nodes."""
    assert look(tokens, path, bearer(scene, VIEWER)).status_code == 200


@pytest.mark.parametrize(("page", "right"), [("/events/3", "get mutexrules"), ("/events/4", "list mutexrunconfigs")])
def test_an_object_of_the_upgrade_mutex_is_shown_to_who_may_read_it(
    tokens: Site, scene: Scene, page: str, right: str
) -> None:
    """Check that an event about a mutex object needs the permission to read that kind.

    Rules contain images and scripts. The pages about runs need the same permission.
    """
    allowed = account(scene, right.replace(" ", "-"), [*LOOKS, right])

    refused, shown = look(tokens, page, bearer(scene, VIEWER)), look(tokens, page, allowed)

    assert (refused.status_code, shown.status_code) == (403, 200)
    assert (SECRET in refused.text, SECRET in shown.text) == (False, True)


def test_what_is_not_there_is_nobodys_to_know_without_the_right_to_look(tokens: Site, scene: Scene) -> None:
    """Check that a caller without view permissions cannot find out which event numbers exist."""
    assert look(tokens, "/events/77", bearer(scene, UNPRIVILEGED)).status_code == 403
    assert look(tokens, "/events/77", bearer(scene, VIEWER)).status_code == 404


@proves("OSV-14")
@pytest.mark.parametrize(("path", "confirm"), [(REPLAY, ""), (REDRIVE, ""), (REDRIVE, "yes")])
@pytest.mark.parametrize("user", ["", UNPRIVILEGED, VIEWER])
def test_who_may_only_look_replays_and_redrives_nothing(
    tokens: Site, scene: Scene, journal: Path, function: Receiver, path: str, confirm: str, user: str
) -> None:
    """Check that replay and redrive need the permission to start a maintenance, and otherwise call no function."""
    headers = bearer(scene, user) if user else {}

    refused = form(tokens, headers, path, looks=bearer(scene, VIEWER), letter="2", confirm=confirm)

    assert refused.status_code == (403 if user else 401)
    assert "cannot" in refused.text or not user
    assert function.requests == []
    assert attempts(journal) == []


TO_SEE = ("list nodes", "get nodes", "get pods", "get poddisruptionbudgets")
TO_REPLAY = (*TO_SEE, *(f"{verb} nodemaintenances" for verb in ("get", "list", "create")))


@pytest.mark.parametrize("lacking", ["get pods", "get poddisruptionbudgets", "create nodemaintenances"])
def test_a_replay_needs_the_rights_to_start_and_to_see_pods(
    tokens: Site, scene: Scene, function: Receiver, lacking: str
) -> None:
    """Check that a replay also needs permission to read pods and budgets, since it shows their changes."""
    rules = [rule for rule in TO_REPLAY if rule != lacking]
    headers = account(scene, f"without-{lacking.replace(' ', '-')}", rules)

    refused = form(tokens, headers, REPLAY, looks=headers)

    assert refused.status_code == 403
    verb, resource = lacking.split()
    assert f"cannot {verb} resource &#34;{resource}&#34;" in refused.text
    assert function.requests == []


def test_who_may_start_replays_and_redrives(tokens: Site, scene: Scene, journal: Path, function: Receiver) -> None:
    """Check that a caller with the permission to start a maintenance may replay and redrive."""
    headers = bearer(scene, access.ADMIN)

    assert form(tokens, headers, REPLAY, looks=headers).status_code == 200
    assert [request.headers["ce-replay"] != "" for request in function.at("/cordon")] == [True]
    with closing(Journal(journal)) as book:
        (letter,) = book.select(Query(dead=True))
    chosen = {"letter": "2", "digest": digest(letter), "confirm": "yes"}
    assert form(tokens, headers, REDRIVE, looks=headers, **chosen).status_code == 200
    assert "ce-replay" not in function.wait_for("/cordon", 2)[1].headers
    for about in ({"action": "replay", "event": "1"}, {"action": "redrive", "letter": "2"}):
        line = audited(tokens, 1, **about)[-1]
        assert (line["user"], line["outcome"], line["from"]) == ("admin", "done", "127.0.0.1")


def test_who_was_refused_is_written_down(tokens: Site, scene: Scene) -> None:
    """Check that a refused replay or redrive is in the audit log, with its object."""
    for path in (REPLAY, REDRIVE):
        form(tokens, bearer(scene, VIEWER), path, looks=bearer(scene, VIEWER), letter="77", confirm="yes")

    (redriven,) = audited(tokens, 1, action="redrive", letter="77")
    replayed = audited(tokens, 1, action="replay", user=VIEWER)[-1]
    assert (redriven["user"], redriven["outcome"], redriven["status"]) == (VIEWER, "refused", 403)
    assert (replayed["event"], replayed["outcome"]) == ("1", "refused")
    assert "cannot create" in redriven["error"]


def attempts(journal: Path) -> list[object]:
    with closing(Journal(journal)) as book:
        return [attempt for entry in book.select(Query()) for attempt in entry.attempts]
