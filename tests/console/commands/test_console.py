"""Tests for the warnings that `kubectl maintenance console` prints before it serves pages."""

from __future__ import annotations

from pathlib import Path

import pytest

from localcluster.http_receiver import Receiver
from localcluster.processes import reserve_port
from tests.console.conftest import RunCommand

UNREADABLE_JOURNALS = {
    "no file": ("{folder}/journal.db", "file does not exist yet: the function record creates it"),
    "no server": (f"postgresql://test@127.0.0.1:{reserve_port()}/journal", "Connection refused"),
}


@pytest.mark.parametrize(("journal", "reason"), UNREADABLE_JOURNALS.values(), ids=UNREADABLE_JOURNALS)
def test_console_warns_at_startup_if_journal_is_unreadable(
    run_command: RunCommand, receiver: Receiver, tmp_path: Path, journal: str, reason: str
) -> None:
    """X-6: `console` warns at startup about a journal that does not exist, because its name may be misspelled.

    The command then exits with an error, because the test's own server already listens on the address.
    """
    url = journal.format(folder=tmp_path)

    result = run_command("console", "--listen", f"127.0.0.1:{receiver.port}", "--journal", url)

    warning, *remaining_lines = result.stderr.splitlines()
    assert warning.startswith(f"Warning: journal {url}: ")
    assert reason in warning
    assert warning.endswith("; until then, the pages about events show this error")
    assert [
        line.startswith(f"Error: cannot listen on 127.0.0.1:{receiver.port}: Address already in use")
        for line in remaining_lines
    ] == [True]
