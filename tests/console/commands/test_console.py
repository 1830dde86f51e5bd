"""Tests of `console` before it serves: the warnings about its options."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.processes import free_port
from tests.console.conftest import Run
from tests.receiver import Receiver

ABSENT = {
    "no file": ("{folder}/journal.db", "there is no such file yet: the function record makes it"),
    "no server": (f"postgresql://test@127.0.0.1:{free_port()}/journal", "Connection refused"),
}


@pytest.mark.parametrize(("journal", "why"), ABSENT.values(), ids=ABSENT)
def test_a_journal_that_cannot_be_read_yet_is_told_at_the_start(
    run: Run, receiver: Receiver, tmp_path: Path, journal: str, why: str
) -> None:
    """X-6: `console` warns at startup about a journal that does not exist yet, since its name may be misspelt.

    The command then exits with an error, because the receiver of this test already uses the address.
    """
    url = journal.format(folder=tmp_path)

    started = run("console", "--listen", f"127.0.0.1:{receiver.port}", "--journal", url)

    said, *ends = started.stderr.splitlines()
    assert said.startswith(f"Warning: journal {url}: ")
    assert why in said
    assert said.endswith("; the pages about events say so until it can be read")
    assert [line.startswith(f"Error: 127.0.0.1:{receiver.port}: Address already in use") for line in ends] == [True]
