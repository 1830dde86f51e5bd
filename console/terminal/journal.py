"""Opens the journal (the event store) for a command."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from console.operations.errors import NoResult

if TYPE_CHECKING:
    from eventing.journal.store import Journal

Decorated = TypeVar("Decorated", bound=Callable[..., Any])
DEFAULT_JOURNAL = "journal.db"


def journal_option(command: Decorated) -> Decorated:
    """Add `--journal` to a command."""
    return click.option(
        "--journal",
        default=lambda: os.environ.get("DATABASE_URL") or os.environ.get("JOURNAL") or DEFAULT_JOURNAL,
        show_default="$DATABASE_URL, $JOURNAL, journal.db",
        help="The journal: a file, or postgresql://USER@HOST/DATABASE.",
    )(command)


def find_missing_file(journal_url: str) -> Path | None:
    """Return the journal file's path if that file does not exist.

    Returns None if the file exists, or if the journal is in a database server.
    """
    name = journal_url.removeprefix("sqlite:///")
    return None if "://" in name or Path(name).is_file() else Path(name)


@contextmanager
def open_journal(journal_url: str, *, create: bool = False) -> Iterator[Journal]:
    """Yield the opened journal, which must exist unless `create` is set.

    Raises `NoResult` if the journal cannot be opened, or if using it in the block fails.
    """
    from eventing.journal.store import (  # slow import: about 150 ms
        Journal,
        JournalError,
        UnstorableData,
    )

    if not create and (file := find_missing_file(journal_url)):
        raise NoResult(f"journal {file} not found: name it with --journal or $JOURNAL")
    try:
        with closing(Journal(journal_url, create=create)) as journal:
            yield journal
    except (JournalError, UnstorableData) as error:
        raise NoResult(str(error)) from None
