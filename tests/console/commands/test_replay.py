"""Tests of `replay` against an HTTP receiver: which responses are results, and which end the replay."""

from __future__ import annotations

import json
from contextlib import closing
from datetime import datetime, timezone
from pathlib import Path

import pytest
from click.testing import CliRunner

from console.cli import commands
from eventing import events
from eventing.journal.entries import Attempt
from eventing.journal.store import Journal
from eventing.http_binding import BATCH
from tests.console.conftest import Run
from tests.receiver import Answer, Receiver

ABOUT = events.Reference("nodemaintenance.medik8s.io/v1beta1", "replayed", "uid-replayed")


@pytest.fixture
def journal(tmp_path: Path) -> str:
    """Return a journal of three events: `status` succeeded for one, failed for one, and has no attempt for one."""
    file, now = tmp_path / "journal.db", datetime.now(timezone.utc)
    with closing(Journal(file)) as book:
        for key, error in (("silent", ""), ("failed", "others keep writing"), ("unknown", None)):
            event = events.event(events.NODE_DRAINED, "evict", ABOUT, "replayed-1", seed=key)
            book.write(event)
            if error is not None:
                made = Attempt(event.get_source(), event.get_id(), "status", now, 0.1, 503 if error else 204, (), error)
                book.write_attempts([made])
    return str(file)


def events_of(journal: str) -> list[str]:
    with closing(Journal(journal)) as book:
        return [entry.event.get_id() for entry in book.select()]


def replayed(run: Run, receiver: Receiver, journal: str, *words: str) -> tuple[int, list[str], str]:
    """Run `replay`, and return its exit status, the result of each call, and its stderr."""
    base = ("--functions", receiver.url, "--function", "status", "--dry-run=server", "-o", "json")
    done = run("replay", "--journal", journal, *base, *words)
    rows = json.loads(done.stdout)["answers"] if done.stdout else []
    return done.exit_code, [row["result"] for row in rows], done.stderr


@pytest.mark.parametrize(
    ("words", "both"),
    [
        (("--in-process", "--functions=http://here"), "--in-process and --functions"),
        (("--in-process", "--url=http://here"), "--in-process and --url"),
        (("--url=http://here/status", "--functions=http://here"), "--url and --functions"),
    ],
)
def test_two_places_for_a_function_are_a_usage_error(words: tuple[str, ...], both: str) -> None:
    """X-6: Two options for the location of functions are a usage error, since one of them would have no effect."""
    result = CliRunner().invoke(commands, ["replay", "--id=1", *words])

    assert result.exit_code == 2
    assert f"Error: {both}: each says where functions run, leave out all but one" in result.stderr


def test_where_functions_are_for_all_commands_yields(
    run: Run, receiver: Receiver, journal: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that `--url` takes precedence over $FUNCTIONS, which `make env` sets."""
    monkeypatch.setenv("FUNCTIONS", "http://127.0.0.1:9")
    receiver.answers["/status"] = lambda _: Answer(200, {"content-type": BATCH}, b"[]")

    event, *_ = events_of(journal)
    done = run("replay", "--journal", journal, "--id", event, f"--url={receiver.url}/status", "--dry-run=server")

    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("answer", [Answer(302, {"location": "/login"}), Answer(202), Answer(204), Answer(200)])
def test_who_is_no_function_fails_and_gets_no_further_event(
    run: Run, receiver: Receiver, journal: str, answer: Answer
) -> None:
    """X-2: A response that is not a function's, as from a login page or a broker, fails and ends the replay."""
    receiver.answers["/status"] = lambda _: answer

    status, results, said = replayed(run, receiver, journal, "--maintenance", "uid-replayed")

    assert (status, results, len(receiver.requests)) == (2, ["fails"], 1)
    words = f"status answered {answer.status} and nothing, not {BATCH} as each function of ours"
    assert said.startswith(f"Error: {words}, so the replay ends 2 calls early: say by --functions or --url where ")


ANSWERS = {
    "silent": (Answer(200, {"content-type": BATCH}, b"[]"), 0, ["same", "differs", "not recorded"], 1),
    "failing as then": (Answer(503, {}, b"others keep writing\n"), 1, ["differs", "fails", "fails"], 2),
    "failing otherwise": (Answer(500, {}, b"no answer"), 1, ["differs", "differs", "fails"], 1),
}


@pytest.mark.parametrize(("answer", "silent", "results", "failed"), ANSWERS.values(), ids=ANSWERS)
def test_a_function_that_fails_now_is_never_exit_0(
    run: Run, receiver: Receiver, journal: str, answer: Answer, silent: int, results: list[str], failed: int
) -> None:
    """X-2: A replay with a failing function never exits with 0.

    The exit status is 1 if the recorded response differs, and 2 if it is the same failure or no response is recorded.
    """
    receiver.answers["/status"] = lambda _: answer

    assert replayed(run, receiver, journal, "--maintenance", "uid-replayed")[:2] == (1, results)
    for key, expected in zip(events_of(journal), (silent, failed, 2), strict=True):
        assert replayed(run, receiver, journal, "--id", key)[0] == expected
