"""Tests of dead letters: they are listed with their reason, and redriven only to the function that rejected them."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from cloudevents.core.v1.event import CloudEvent

from eventing import events
from eventing.journal.entries import Entry
from eventing.journal.store import Journal, Query
from eventing.replay.function_client import post
from localcluster.processes import await_ready, free_port
from tests.chain.patched_functions import edited
from tests.chain.journal_reading import recording, run
from tests.chain.environment import Scene


def letters(scene: Scene, **query: object) -> list[Entry]:
    with closing(Journal(scene.journal)) as book:
        return book.select(Query(dead=True, **query))  # type: ignore[arg-type]


def listed(scene: Scene, *words: str) -> dict[str, dict[str, object]]:
    """Return the dead letters that the command lists, by event id."""
    found = run(scene, "deadletters", "-o", "json", *words)
    assert found.exit_code == 0, found.output
    return {letter["event"]: letter for letter in json.loads(found.stdout)["deadLetters"]}


def functions(scene: Scene) -> tuple[str, str]:
    """Return the option with the functions' URL, which the local delivery has in no Trigger."""
    return "--functions", scene.product.functions_url


@pytest.fixture
def refused(scene: Scene, tmp_path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield a maintenance whose event `taint` rejected, and that dead letter.

    A copy of `taint` that was changed by hand rejected it; the unchanged functions run again.
    """
    port = urlsplit(scene.product.functions_url).port or 0
    environment = {
        "JOURNAL": str(scene.product.journal),
        "RECORD": scene.product.function_url("record"),
        "K_SINK": scene.product.broker_url,
    }
    whole = "closed = close(event, cluster, _decide)"
    broken = f'from eventing.http_binding import BadEvent\n    raise BadEvent("by hand")\n    {whole}'
    node = scene.node()
    scene.pods(node, 2)
    scene.product.functions.stop()
    try:
        with edited(scene, tmp_path, "functions/maintenance/taint.py", whole, broken, port, **environment):
            path = scene.maintain(node)
            uid = scene.admin.get(path)["metadata"]["uid"]
            await_ready("the dead letter", lambda: bool(letters(scene, maintenance=uid)), [], 15)
    finally:
        scene.product.start_functions()
    yield path, letters(scene, maintenance=uid)[0]
    scene.delete(path)
    scene.gone(path)


def test_a_dead_letter_is_redriven_to_its_function_and_the_chain_goes_on(
    scene: Scene, refused: tuple[str, Entry]
) -> None:
    """X-6: redriving a listed dead letter calls only the function that rejected it, and the drain then succeeds."""
    path, letter = refused
    key = letter.event.get_id()
    before = listed(scene)[key]
    shown = run(scene, "deadletters").stdout

    done = run(scene, "redrive", key, "--yes", "--broker", scene.product.broker_url, *functions(scene))

    scene.reaches(path)
    with closing(Journal(scene.journal)) as book:
        await_ready("the answer", lambda: _caused(book, key) == [events.NODE_TAINTED], [], 5)
        (event,) = [entry for entry in book.select(Query(ids=(key,))) if not entry.dead_letter]
    assert (before["function"], before["code"], before["reason"]) == ("taint", 400, "by hand\n")
    assert {key, "node.cordoned", "taint", "400"} <= {*shown.split()}
    assert "400    by hand" in shown
    assert done.exit_code == 0, done.output
    assert "1 of 1 redriven" in done.stdout
    assert {attempt.function for attempt in event.attempts} == {"taint"}
    assert key not in listed(scene)
    assert listed(scene, "--all")[key]["open"] is False
    assert run(scene, "redrive", key, "--yes").exit_code == 2


def _caused(book: Journal, key: str) -> list[str]:
    """Return the types of the events that were emitted in reply to this one."""
    return [entry.event.get_type() for entry in book.select() if entry.cause == key]


def test_what_is_refused_again_stays_open(scene: Scene) -> None:
    """X-6: an event that is rejected again stays an open dead letter, and the command exits with 1 and the reason."""
    event = CloudEvent(
        {"id": "poison", "source": "/test", "type": events.NODE_CORDONED, "datacontenttype": "application/json"}, {}
    )
    assert post(event, scene.product.broker_url).status_code == 202
    await_ready("the dead letter", lambda: bool(letters(scene, ids=("poison",))), [], 10)

    done = run(scene, "redrive", "--all", "--yes", "--broker", scene.product.broker_url, *functions(scene))

    assert done.exit_code == 1
    assert "failed: 400 data.node is missing" in done.stdout
    assert listed(scene)["poison"]["open"] is True


@pytest.mark.slow
def test_an_answer_that_gets_nowhere_leaves_it_open(scene: Scene) -> None:
    """X-6: a dead letter stays open if the reply of its redrive could not be published, and can be redriven again."""
    node = scene.node()
    path = scene.maintain_with_pods(node, 1)
    uid = scene.admin.get(path)["metadata"]["uid"]
    event = next(e.event for e in recording(scene, uid) if e.event.get_type() == events.MAINTENANCE_BEGUN)
    why = {
        "knativeerrordest": scene.product.function_url("cordon"),
        "knativeerrorcode": "503",
        "knativeerrordata": base64.b64encode(b"the API server is away").decode(),
    }
    post(CloudEvent({**event.get_attributes(), **why}, event.get_data()), scene.product.function_url("record"))

    astray = run(
        scene, "redrive", event.get_id(), "--yes", "--broker", f"http://127.0.0.1:{free_port()}", *functions(scene)
    )
    first = listed(scene)[event.get_id()]
    again = run(scene, "redrive", event.get_id(), "--yes", "--broker", scene.product.broker_url, *functions(scene))

    assert astray.exit_code == 1
    assert "its answer got nowhere, redrive it again" in astray.stdout
    assert first["reason"] == "the API server is away"
    assert again.exit_code == 0, again.output
    assert event.get_id() not in listed(scene)
    scene.delete(path)
    scene.gone(path)


WRONG = {
    "nothing named": ([], "Error: name dead letters by their ids, or take --all"),
    "both": (["x", "--all"], "Error: name dead letters by their ids, or take --all"),
    "unknown": (["nope", "--yes"], "Error: no open dead letter nope"),
    "no broker": (["poison", "--yes"], "Error: no Broker in namespace node-maintenance says its address"),
}


@pytest.mark.parametrize(("words", "said"), WRONG.values(), ids=WRONG)
def test_a_wrong_redrive_is_one_line_and_exit_2(scene: Scene, words: list[str], said: str) -> None:
    """X-6: an invalid `redrive` command exits with 2 and one line that contains the remedy."""
    found = run(scene, "redrive", *words)

    assert found.exit_code == 2
    assert found.stderr.splitlines()[-1].startswith(said)
