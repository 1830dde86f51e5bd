"""`kubectl maintenance must-gather`: writes the data that explains a maintenance into one archive (NMO-25)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console.operations.archive import Archive, Missing
from console.operations.archive_contents import gather, without_values
from console.terminal.connection import with_api
from console.terminal.errors import goes_on
from console.terminal.options import cluster_options, namespace_option, output_option
from console.terminal.journal import opened
from console.terminal.output import note, show_json
from eventing.journal.entries import Query
from eventing.journal.transfer import exported
from kube.client.api import Api
from kube.text_limits import counted

if TYPE_CHECKING:
    from eventing.journal.store import Journal

FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("must-gather")
@click.option("--file", type=click.Path(path_type=Path), help="Where to write.  [default: must-gather-TIME.tar.gz]")
@namespace_option
@click.option("--logs", type=FOLDER, help="A folder whose *.log files go in, for functions that run in no pods.")
@click.option(
    "--journal",
    default="",
    envvar=["DATABASE_URL", "JOURNAL"],
    help="The journal, whose events go in: a file, or postgresql://USER@HOST/DATABASE.  [env: DATABASE_URL, JOURNAL]",
)
@output_option
@cluster_options
def must_gather(file: Path | None, namespace: str, logs: Path | None, journal: str, output: str) -> None:
    """Write maintenances, runs, nodes, machines, budgets, events, pods and logs into one archive.

    The archive contains no Secrets, no values of environment variables and no startup data of virtual machines. If some
    data cannot be read, the command keeps the rest and names what is missing.

    \b
    Example:
      kubectl maintenance must-gather
      kubectl maintenance must-gather --file case-17.tar.gz --journal journal.db
    """
    wanted = file or Path(f"must-gather-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.tar.gz")
    index = _gather(wanted, namespace, logs, journal)
    note(f"{wanted}: {counted(len(index['files']), 'file')}", output)
    if not any(each["file"].startswith("logs/") for each in index["files"]):
        note("No logs are in it: name the folder that has those of functions that run in no pods by --logs.", output)
    if not journal:
        note("The recorded events are not in it: name their journal by --journal.", output)
    if output == "json":
        show_json({"file": str(wanted), **index})
    if faults := _faults(index):
        raise click.ClickException(f"{wanted} is not whole: {'; '.join(faults)}")


def _gather(file: Path, namespace: str, logs: Path | None, journal: str) -> dict[str, Any]:
    """Write the archive and return its index. Raises `NoResult` for an unreadable journal before it writes anything."""

    async def work(api: Api) -> dict[str, Any]:
        version = await api.get("/version")  # fails before the archive is created
        with Archive(file) as archive:
            goes_on(lambda: f"{file} holds what was read by then, and its index says what that is")
            archive.add_json("version.json", version, "get /version")
            await gather(api, archive, namespace)
            for log in sorted(logs.glob("*.log")) if logs else []:
                _add_log(archive, log)
            if book:
                _add_journal(archive, book)
            return archive.index()

    try:
        with opened(journal) if journal else nullcontext() as book:
            return with_api(work)
    except FileExistsError:
        raise click.ClickException(f"{file} is there already: name another --file") from None
    except OSError as error:
        raise click.ClickException(f"{file} cannot be written: {error.strerror}; name another --file") from None


def _add_log(archive: Archive, log: Path) -> None:
    """Add a log file; if it cannot be read, for example during its rotation, note that in the index."""
    try:
        lines = log.read_bytes()
    except OSError as error:
        archive.missing(Missing(str(log), error.strerror or str(error), denied=False))
        return
    archive.add(f"logs/{log.name}", lines, str(log))


def _add_journal(archive: Archive, book: Journal) -> None:
    """Add the recorded events; if the journal cannot be read completely, note that in the index instead."""
    from eventing.journal.store import JournalError  # imported only here: its libraries load slowly

    try:
        archive.add_lines("journal.jsonl", map(_line, exported(book, Query())), "the journal")
    except JournalError as error:
        archive.missing(Missing("the journal", str(error), denied=False))


def _line(line: bytes) -> bytes:
    """Remove from a journal line the values that the archive omits from all objects."""
    return json.dumps(without_values(json.loads(line))).encode() + b"\n"


def _faults(index: dict[str, Any]) -> list[str]:
    """Return one message for all missing permissions with the remedy, and one for each other failed read."""
    faults = []
    if denied := [item["permission"] for item in index["missingPermissions"]]:
        faults.append(f"ask an administrator for the rights to {', '.join(denied)}")
    faults += [f"{item['what']}: {' '.join(item['message'].split())}" for item in index["notRead"]]
    return faults
