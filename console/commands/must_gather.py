"""`kubectl maintenance must-gather`: writes diagnostic data about maintenances into one archive (NMO-25)."""

from __future__ import annotations

import json
from contextlib import nullcontext
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from console.operations.archive import Archive, gather_cluster, redact_possible_secrets
from console.terminal.connection import run_with_api
from console.terminal.journal import open_journal
from console.terminal.options import cluster_options, namespace_option, output_option
from console.terminal.output import print_note, set_interrupt_note, show_json
from eventing.journal.entries import Query
from eventing.journal.transfer import export_lines
from kube.client.api import Api
from kube.text_limits import format_count

if TYPE_CHECKING:
    from eventing.journal.store import Journal

REVIEW_NOTE = (
    "Review it before you share it: it contains reasons, annotations, and the commands and arguments of containers "
    "as users wrote them."
)
DIRECTORY = click.Path(exists=True, file_okay=False, path_type=Path)


@click.command("must-gather")
@click.option("--file", type=click.Path(path_type=Path), help="File to write.  [default: must-gather-TIME.tar.gz]")
@namespace_option
@click.option("--logs", type=DIRECTORY, help="Directory with *.log files to add, if functions do not run in pods.")
@click.option(
    "--journal",
    default="",
    envvar=["DATABASE_URL", "JOURNAL"],
    help="Journal with events to add: a file, or postgresql://USER@HOST/DATABASE.  [env: DATABASE_URL, JOURNAL]",
)
@output_option
@cluster_options
def must_gather(file: Path | None, namespace: str, logs: Path | None, journal: str, output: str) -> None:
    """Write maintenances, runs, nodes, virtual machines, budgets, events, pods and logs into one archive.

    The archive contains no Secrets, no values of environment variables and no startup data of virtual machines. Review
    it before you share it: it contains reasons, annotations, and the commands and arguments of containers as users
    wrote them.

    If some data cannot be read, the command writes the other data and lists what is missing.

    \b
    Example:
      kubectl maintenance must-gather
      kubectl maintenance must-gather --file case-17.tar.gz --journal journal.db
    """
    path = file or Path(f"must-gather-{datetime.now(timezone.utc):%Y%m%d-%H%M%S}.tar.gz")
    index = _write_archive(path, namespace, logs, journal)
    print_note(f"{path}: {format_count(len(index['files']), 'file')}", output)
    print_note(REVIEW_NOTE, output)
    if not any(entry["file"].startswith("logs/") for entry in index["files"]):
        print_note(
            "The archive contains no logs: if functions do not run in pods, name the log directory with --logs.", output
        )
    if not journal:
        print_note("The archive contains no recorded events: name the journal with --journal.", output)
    show_json({"file": str(path), **index}, output)
    if problems := _list_problems(index):
        raise click.ClickException(f"{path} is incomplete: {'; '.join(problems)}")


def _write_archive(file: Path, namespace: str, logs: Path | None, journal: str) -> dict[str, Any]:
    """Write the archive and return its index.

    Raises `NoResult`, before it creates the file, if the journal is not readable.
    """

    async def gather_all(api: Api) -> dict[str, Any]:
        version = await api.get("/version")  # This request raises an error if the cluster is not accessible.
        with Archive(file) as archive:
            set_interrupt_note(lambda: f"{file} contains only the data read so far; its index.json lists it")
            archive.add_json("version.json", version, "get /version")
            await gather_cluster(api, archive, namespace)
            for log in sorted(logs.glob("*.log")) if logs else []:
                _add_log(archive, log)
            if opened_journal:
                _add_journal(archive, opened_journal)
            return archive.index

    try:
        with open_journal(journal) if journal else nullcontext() as opened_journal:
            return run_with_api(gather_all)
    except FileExistsError:
        raise click.ClickException(f"{file} already exists: name another --file") from None
    except OSError as error:
        raise click.ClickException(f"cannot write {file}: {error.strerror}; name another --file") from None


def _add_log(archive: Archive, log: Path) -> None:
    """Add a log file; if the file cannot be read, for example during its rotation, record that in the index."""
    try:
        lines = log.read_bytes()
    except OSError as error:
        archive.add_failed_read(str(log), error.strerror or str(error))
        return
    archive.add_file(f"logs/{log.name}", lines, str(log))


def _add_journal(archive: Archive, journal: Journal) -> None:
    """Add the recorded events; if the journal cannot be read completely, record that in the index instead."""
    from eventing.journal.store import JournalError  # This slow import is needed only with a journal.

    try:
        archive.add_lines("journal.jsonl", map(_redact_line, export_lines(journal, Query())), "the journal")
    except JournalError as error:
        archive.add_failed_read("the journal", str(error))


def _redact_line(line: bytes) -> bytes:
    """Remove possible secrets from the JSON in a journal line, as from the archived objects."""
    return json.dumps(redact_possible_secrets(json.loads(line))).encode() + b"\n"


def _list_problems(index: dict[str, Any]) -> list[str]:
    """Return one message for all missing permissions, and one message for each read that failed for another reason."""
    problems = []
    if denied := [entry["permission"] for entry in index["missingPermissions"]]:
        problems.append(f"ask an administrator for the rights to {', '.join(denied)}")
    problems += [f"{entry['what']}: {' '.join(entry['message'].split())}" for entry in index["notRead"]]
    return problems
