"""One line for each action: who asked, for what, from where, and what became of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import requests

from kube.maintenance.groups import MEDIK8S
from localcluster import access
from localcluster.web_console import Console
from tests.chain.scene import Scene
from tests.console.web.callers import VIEWER, Form, act, audited, bearer
from tests.console.web.site import Site

USER, PROOF = "X-Forwarded-User", "X-Console-Secret"
SECRET = "only-the-proxy-knows"  # noqa: S105 - of the tests alone
MODES: dict[str, tuple[Callable[[Scene], dict[str, str]], Callable[[Scene], dict[str, str]]]] = {
    "token": (lambda scene: bearer(scene, access.ADMIN), lambda scene: bearer(scene, VIEWER)),
    "proxy": (
        lambda scene: {USER: "boss", PROOF: SECRET, "X-Forwarded-Groups": "staff,system:masters"},
        lambda scene: {USER: VIEWER, PROOF: SECRET},
    ),
}
"""Way to say who asks → headers of somebody who may, and of somebody who may only look."""
NAMES = {"token": "admin", "proxy": "boss"}


@pytest.fixture
def scene(site: Site) -> Scene:
    return site.scene


@pytest.fixture(scope="module", params=MODES)
def asked(
    request: pytest.FixtureRequest, site: Site, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, Site]]:
    """A way in which callers say who they are, and a console that knows it."""
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


def test_each_action_leaves_one_line(asked: tuple[str, Site], scene: Scene) -> None:
    """Done or refused: the user as the API server or the proxy names him, and the address that he came from."""
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
    """Several nodes are several lines, each with its own end; looking and asking first leave none."""
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


def test_a_forged_request_leaves_a_line_too(asked: tuple[str, Site]) -> None:
    """Whoever tries is told of, though a stranger not by name; what he sent cannot break the line."""
    _, strangers = asked
    forged = {"node": 'x"}\n{"logger": "audit"', "confirm": "yes"}

    requests.post(strangers.url("/start"), forged, timeout=10)

    (line,) = audited(strangers, 1, node=forged["node"])
    assert (line["user"], line["outcome"], line["status"]) == ("", "refused", 403)
