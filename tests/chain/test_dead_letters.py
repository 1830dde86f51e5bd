"""Tests for dead letters: their list shows the reason, and a redrive calls only the function that rejected it."""

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
from eventing.replay.function_client import post_event
from localcluster.processes import reserve_port, wait_until_ready
from tests.chain.environment import EventChainEnvironment
from tests.chain.journal_reading import run_command, wait_for_recorded_events
from tests.chain.patched_functions import serve_patched_functions


def find_dead_letters(environment: EventChainEnvironment, **query: object) -> list[Entry]:
    with closing(Journal(environment.journal)) as journal:
        return journal.select(Query(dead_letters_only=True, **query))  # type: ignore[arg-type]


def list_dead_letters(environment: EventChainEnvironment, *arguments: str) -> dict[str, dict[str, object]]:
    """Return the dead letters that the command lists, as a dictionary by event id."""
    result = run_command(environment, "deadletters", "-o", "json", *arguments)
    assert result.exit_code == 0, result.output
    return {dead_letter["event"]: dead_letter for dead_letter in json.loads(result.stdout)["deadLetters"]}


def build_functions_option(environment: EventChainEnvironment) -> tuple[str, str]:
    """Return the command-line option for the functions' URL, because the local delivery's Triggers contain no URL."""
    return "--functions", environment.product.functions_url


@pytest.fixture
def rejected_event(environment: EventChainEnvironment, tmp_path: Path) -> Iterator[tuple[str, Entry]]:
    """Yield the API path of a maintenance of which `taint` has rejected an event, and the resulting dead letter.

    A modified copy of `taint` rejected the event; afterwards, the unmodified functions run again.
    """
    port = urlsplit(environment.product.functions_url).port or 0
    variables = {
        "JOURNAL": str(environment.product.journal),
        "RECORD": environment.product.get_function_url("record"),
        "K_SINK": environment.product.broker_url,
    }
    original_text = "result = patch_node_of_active_maintenance(event, client, _build_patch)"
    failing_text = (
        f'from eventing.http_binding import BadEvent\n    raise BadEvent("forced failure")\n    {original_text}'
    )
    node = environment.create_node()
    environment.create_pods(node, 2)
    environment.product.functions.stop()
    try:
        with serve_patched_functions(
            environment, tmp_path, "functions/maintenance/taint.py", original_text, failing_text, port, **variables
        ):
            path = environment.create_maintenance(node)
            uid = environment.client.get(path)["metadata"]["uid"]
            wait_until_ready("the dead letter", lambda: bool(find_dead_letters(environment, maintenance=uid)), [], 15)
    finally:
        environment.product.start_functions()
    yield path, find_dead_letters(environment, maintenance=uid)[0]
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


def test_redrive_calls_only_rejecting_function_and_drain_succeeds(
    environment: EventChainEnvironment, rejected_event: tuple[str, Entry]
) -> None:
    """X-6: redriving a listed dead letter calls only the function that rejected it, and the drain then succeeds."""
    path, dead_letter = rejected_event
    event_id = dead_letter.event.get_id()
    open_dead_letter = list_dead_letters(environment)[event_id]
    table = run_command(environment, "deadletters").stdout

    result = run_command(
        environment,
        "redrive",
        event_id,
        "--yes",
        "--broker",
        environment.product.broker_url,
        *build_functions_option(environment),
    )

    environment.wait_for_state(path)
    with closing(Journal(environment.journal)) as journal:
        wait_until_ready("the reply", lambda: _list_reply_types(journal, event_id) == [events.NODE_TAINTED], [], 5)
        (event,) = [entry for entry in journal.select(Query(ids=(event_id,))) if not entry.dead_letter]
    assert (open_dead_letter["function"], open_dead_letter["code"]) == ("taint", 400)
    # The broker and the function publish the same dead letter; only that of the broker ends in a newline.
    assert str(open_dead_letter["reason"]).rstrip() == "forced failure"
    assert {event_id, "taint", "400"} <= {*table.split()}
    assert f"  node.cordoned of {open_dead_letter['node']}: forced failure\n" in table
    assert result.exit_code == 0, result.output
    assert "1 of 1 redriven" in result.stdout
    assert {attempt.function for attempt in event.attempts} == {"taint"}
    assert event_id not in list_dead_letters(environment)
    assert list_dead_letters(environment, "--all")[event_id]["open"] is False
    assert run_command(environment, "redrive", event_id, "--yes").exit_code == 2


def _list_reply_types(journal: Journal, event_id: str) -> list[str]:
    """Return the types of the events that functions emitted in reply to the event."""
    return [entry.event.get_type() for entry in journal.select() if entry.cause == event_id]


def test_dead_letter_rejected_again_remains_open(environment: EventChainEnvironment) -> None:
    """X-6: a dead letter that is rejected again stays open, and the command prints the reason and exits with 1."""
    event = CloudEvent(
        {"id": "poison", "source": "/test", "type": events.NODE_CORDONED, "datacontenttype": "application/json"}, {}
    )
    assert post_event(event, environment.product.broker_url).status_code == 202
    wait_until_ready("the dead letter", lambda: bool(find_dead_letters(environment, ids=("poison",))), [], 10)

    result = run_command(
        environment,
        "redrive",
        "--all",
        "--yes",
        "--broker",
        environment.product.broker_url,
        *build_functions_option(environment),
    )

    assert result.exit_code == 1
    assert "failed: 400 data.node is missing" in result.stdout
    assert list_dead_letters(environment)["poison"]["open"] is True


@pytest.mark.slow
def test_dead_letter_remains_open_if_reply_is_not_published(environment: EventChainEnvironment) -> None:
    """X-6: if the reply to a redrive cannot be published, the dead letter stays open and can be redriven again."""
    node = environment.create_node()
    path = environment.drain_node_with_pods(node, 1)
    uid = environment.client.get(path)["metadata"]["uid"]
    event = next(
        entry.event
        for entry in wait_for_recorded_events(environment, uid)
        if entry.event.get_type() == events.MAINTENANCE_BEGUN
    )
    failure_extensions = {
        "knativeerrordest": environment.product.get_function_url("cordon"),
        "knativeerrorcode": "503",
        "knativeerrordata": base64.b64encode(b"the API server is unavailable").decode(),
    }
    post_event(
        CloudEvent({**event.get_attributes(), **failure_extensions}, event.get_data()),
        environment.product.get_function_url("record"),
    )

    failed_redrive = run_command(
        environment,
        "redrive",
        event.get_id(),
        "--yes",
        "--broker",
        f"http://127.0.0.1:{reserve_port()}",
        *build_functions_option(environment),
    )
    open_dead_letter = list_dead_letters(environment)[event.get_id()]
    second_redrive = run_command(
        environment,
        "redrive",
        event.get_id(),
        "--yes",
        "--broker",
        environment.product.broker_url,
        *build_functions_option(environment),
    )

    assert failed_redrive.exit_code == 1
    assert "the reply did not reach the broker" in failed_redrive.stdout
    assert open_dead_letter["reason"] == "the API server is unavailable"
    assert second_redrive.exit_code == 0, second_redrive.output
    assert event.get_id() not in list_dead_letters(environment)
    environment.request_deletion(path)
    environment.wait_for_deletion(path)


INVALID_COMMANDS = {
    "no ids": ([], "Error: name the ids of dead letters, or use --all"),
    "ids and --all": (["x", "--all"], "Error: name the ids of dead letters, or use --all"),
    "unknown id": (["nope", "--yes"], "Error: open dead letter nope not found"),
    "no broker": (["poison", "--yes"], "Error: no Broker in namespace node-maintenance has an address"),
}


@pytest.mark.parametrize(("arguments", "expected_message"), INVALID_COMMANDS.values(), ids=INVALID_COMMANDS)
def test_invalid_redrive_command_exits_with_2_and_remedy(
    environment: EventChainEnvironment, arguments: list[str], expected_message: str
) -> None:
    """X-6: an invalid `redrive` command exits with 2 and prints one line with the remedy."""
    result = run_command(environment, "redrive", *arguments)

    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1].startswith(expected_message)
