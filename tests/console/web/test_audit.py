"""Tests of the console's audit log: one line per action, with user, object, origin and outcome."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import requests
from cloudevents.core.v1.event import CloudEvent

from console.web.maintenance_views import carried_out
from console.web.audit import Ended
from eventing import events
from eventing.dead_letters import DeadLetter, as_dead_letter
from eventing.journal.store import Journal, Query
from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.web_console import Console
from tests.chain.environment import Scene
from tests.console.web.callers import VIEWER, Form, act, audited, bearer
from tests.console.web.site import Site
from tests.receiver import Answer, Receiver

USER, PROOF = "X-Forwarded-User", "X-Console-Secret"
SECRET = "only-the-proxy-knows"  # noqa: S105 - of the tests alone
MODES: dict[str, tuple[Callable[[Scene], dict[str, str]], Callable[[Scene], dict[str, str]]]] = {
    "token": (lambda scene: bearer(scene, access.ADMIN), lambda scene: bearer(scene, VIEWER)),
    "proxy": (
        lambda scene: {USER: "boss", PROOF: SECRET, "X-Forwarded-Groups": "staff,system:masters"},
        lambda scene: {USER: VIEWER, PROOF: SECRET},
    ),
}
"""Identification mode → functions that return headers of a user who may act, and of one who may only view."""
DIGEST = re.compile(r'name="digest" value="([^"]+)"')
NAMES = {"token": "admin", "proxy": "boss"}


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


@pytest.fixture(scope="module", params=MODES)
def asked(
    request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Site]]:
    """Yield an identification mode and a console that uses it."""
    folder, cluster = tmp_path_factory.mktemp(request.param), site.scene.cluster
    secret = folder / "secret"
    secret.write_text(SECRET)
    if request.param == "token":
        console = Console(cluster, folder, user=VIEWER, address="0.0.0.0")  # noqa: S104 - as in a cluster
    else:
        headers = ("--user-header", USER, "--groups-header", "X-Forwarded-Groups")
        console = Console(cluster, folder, *headers, "--proxy-secret", secret)
    with console:
        yield request.param, Site(site.scene, console)


@pytest.mark.slow
def test_each_action_leaves_one_line(asked: tuple[str, Site], scene: Scene) -> None:
    """Check that each action, done or refused, is one line with the authenticated user and the client's address."""
    mode, site = asked
    may, may_not = (headers(scene) for headers in MODES[mode])
    node = scene.node(f"audited-{mode}")

    assert act(site, "/start", node, {**may_not, "X-Forwarded-For": "192.0.2.7, 10.0.0.1"}).status_code == 403
    assert act(site, "/start", node, may).status_code == 303
    assert act(site, "/stop", node, may).status_code == 303
    scene.gone(f"{MEDIK8S.path}/{node}")

    refused, started, stopped = audited(site, 3, node=node)
    assert (refused["action"], refused["outcome"], refused["status"]) == ("start", "refused", 403)
    assert (refused["user"], refused["from"]) == (VIEWER, "127.0.0.1")
    assert refused["forwarded"] == "192.0.2.7, 10.0.0.1"
    assert "cannot" in refused["error"]
    assert [(line["action"], line["outcome"], line["user"]) for line in (started, stopped)] == [
        ("start", "done", NAMES[mode]),
        ("stop", "done", NAMES[mode]),
    ]
    assert started.get("groups", []) == (["staff", "system:masters"] if mode == "proxy" else [])
    assert "error" not in started


def test_on_this_machine_alone_the_line_names_the_kubeconfigs_user(site: Site, scene: Scene) -> None:
    """Check that the line names the kubeconfig's user on a loopback console, and that viewing is not logged.

    A form with several nodes is logged as one line per node, each with its own outcome.
    """
    node = scene.node("audited-here")
    with requests.Session() as session:
        form = Form(site, session)
        form.post("/start", node)
        form.post("/start", node, "not-audited", confirm="yes")
        form.post("/stop", node, confirm="yes")
    scene.gone(f"{MEDIK8S.path}/{node}")

    assert [(line["action"], line["outcome"]) for line in audited(site, 2, node=node)] == [
        ("start", "done"),
        ("stop", "done"),
    ]
    (missing,) = audited(site, 1, node="not-audited")
    assert (missing["user"], missing["outcome"], missing["status"]) == ("admin", "refused", 404)
    assert missing["error"] == "there is no node not-audited"


@pytest.mark.slow
def test_a_redrive_is_done_when_it_was_delivered(site: Site, receiver: Receiver, tmp_path: Path) -> None:
    """Check that a redrive is logged after its delivery, with one line per dead letter.

    Each line has the function's response, or the reason why no function was called.
    """
    url, file = f"{receiver.url}/cordon", tmp_path / "journal.db"
    answers = {"1": Answer(400, body=b"no such thing"), "2": Answer(500, body=b"away"), "3": Answer(200)}
    receiver.answers["/cordon"] = lambda request: answers[request.id]
    with closing(Journal(file)) as book:
        for key, destination in (("1", url), ("2", url), ("3", url), ("4", f"{receiver.url}/nobody")):
            event = CloudEvent({"id": key, "source": "/s", "type": events.MAINTENANCE_BEGUN}, {})
            book.write(as_dead_letter(event, DeadLetter(destination, 503, "away")))
        letters = [str(letter.seq) for letter in book.select(Query(dead=True))]
    where = {"functions": receiver.url, "broker": f"{receiver.url}/broker"}
    with Console(site.scene.cluster, tmp_path, "--journal", file, **where) as console, requests.Session() as session:
        here = Site(site.scene, console)
        digests = DIGEST.findall(session.get(here.url("/dead-letters"), timeout=10).text)
        asked = {"csrf": Form(here, session).token, "letter": letters, "digest": digests, "confirm": "yes"}
        assert session.post(here.url("/dead-letters/redrive"), asked, timeout=10).status_code == 200
        lines = audited(here, 4, action="redrive")

    assert [line["letter"] for line in lines] == letters
    assert [(line["outcome"], line["status"]) for line in lines] == [
        ("failed", 400),
        ("failed", 500),
        ("done", 200),
        ("failed", 409),
    ]
    assert {(line["user"], line["from"]) for line in lines} == {("admin", "127.0.0.1")}
    assert ["error" in line for line in lines] == [True, True, False, True]


def test_what_became_of_a_node_is_told_before_the_others_are_done() -> None:
    """X-6: Each node's outcome is logged as soon as it is known, so that a killed console loses no finished action."""
    told: list[str] = []

    async def act_on_both() -> None:
        first = asyncio.Event()

        async def work(node: str) -> None:
            if node == "slow":
                await first.wait()

        def tell(ended: Ended) -> None:
            told.append(ended.name)
            first.set()

        await asyncio.wait_for(carried_out(["slow", "quick"], work, tell), 5)

    asyncio.run(act_on_both())

    assert told == ["quick", "slow"]


def test_a_forged_request_leaves_a_line_too(asked: tuple[str, Site]) -> None:
    """Check that a forged request is logged without a user name, and that its fields cannot break the line."""
    _, strangers = asked
    forged = {"node": 'x"}\n{"logger": "audit"', "confirm": "yes"}

    requests.post(strangers.url("/start"), forged, timeout=10)

    (line,) = audited(strangers, 1, node=forged["node"])
    assert (line["user"], line["outcome"], line["status"]) == ("", "refused", 403)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "status"), [(500, 403), (5000, 400)])
def test_a_refused_request_with_many_names_costs_as_much_as_one(
    site: Site, scene: Scene, tmp_path: Path, count: int, status: int
) -> None:
    """X-6: A refused request with many names costs a constant number of requests and log lines."""

    def whoamis() -> int:
        asked = [entry for entry in scene.audit() if entry["objectRef"]["resource"] == "selfsubjectreviews"]
        return sum(entry["user"]["username"] == VIEWER for entry in asked)

    with (
        Console(scene.cluster, tmp_path, user=VIEWER, address="0.0.0.0") as console,  # noqa: S104 - as in a cluster
        requests.Session() as session,
    ):
        session.headers.update(bearer(scene, VIEWER))
        form, before = Form(Site(scene, console), session), whoamis()
        refused = form.post("/start", *(f"n{number}" for number in range(count)), confirm="yes")
        lines = audited(form.site, 1, action="start")

    assert refused.status_code == status
    assert len(refused.content) < 10_000
    assert whoamis() - before < 5
    assert [line["status"] for line in lines] == [status] * 10
    assert lines[-1]["more"] == count - 10
