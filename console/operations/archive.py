"""Writes a must-gather's .tar.gz archive, with an index of its contents and of everything that could not be read."""

from __future__ import annotations

import io
import json
import os
import tarfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from tempfile import TemporaryFile
from types import TracebackType
from typing import Any

from kube.times import format_time

ROOT_DIRECTORY = "must-gather"
"""The only top-level directory of the archive."""
FILE_MODE = 0o600
"""File mode: only the file's owner may read the names of pods and nodes."""


@dataclass(frozen=True)
class FailedRead:
    """A read that failed.

    Attributes:
        permission: The permission that the read requires, e.g. `list nodes`, or the name of the unreadable source.
        message: The error message of the server or the operating system.
        is_denied: Whether the account lacks the permission; otherwise the read failed for another reason.
    """

    permission: str
    message: str
    is_denied: bool


class Archive:
    """A .tar.gz archive being written. As a context manager, it adds the index on exit, even after an error.

    Raises `OSError` if the file already exists or cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.files: list[dict[str, Any]] = []
        self.not_installed: list[str] = []
        self.unread: list[FailedRead] = []
        self._gathered_at = format_time(datetime.now(timezone.utc))
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, FILE_MODE)
        self._output_file = os.fdopen(descriptor, "wb")
        self._tar = tarfile.open(fileobj=self._output_file, mode="w:gz")  # noqa: SIM115 - closed at exit

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, error_type: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._write_file("index.json", _encode_json(self.build_index()))
        self._tar.close()
        self._output_file.close()

    def add_file(self, name: str, content: bytes, source: str, item_count: int | None = None) -> None:
        """Add a file; `source` is the origin of the content, and `item_count` the number of objects in it."""
        self._write_file(name, content)
        count_field = {} if item_count is None else {"items": item_count}
        self.files.append({"file": name, "from": source, "bytes": len(content), **count_field})

    def add_json(self, name: str, value: Any, source: str, item_count: int | None = None) -> None:
        """Add a file that contains the value as JSON."""
        self.add_file(name, _encode_json(value), source, item_count)

    def add_lines(self, name: str, lines: Iterable[bytes], source: str) -> None:
        """Add a file of lines, buffered in a temporary file because tar needs the size before the content."""
        with TemporaryFile() as buffer:
            count = sum(1 for line in lines if buffer.write(line))
            size = buffer.tell()
            buffer.seek(0)
            self._tar.addfile(_build_tar_info(name, size), buffer)
        self.files.append({"file": name, "from": source, "bytes": size, "items": count})

    def add_missing_kind(self, permission: str) -> None:
        """Record that the kind to which the permission applies is not installed, which is not an error."""
        self.not_installed.append(permission)

    def add_failed_read(self, failed_read: FailedRead) -> None:
        """Record a failed read, once per permission."""
        if failed_read.permission not in {item.permission for item in self.unread}:
            self.unread.append(failed_read)

    def build_index(self) -> dict[str, Any]:
        """Return the index: the archive's files, and what is missing from it and why."""
        return {
            "gathered": self._gathered_at,
            "files": self.files,
            "notInstalled": self.not_installed,
            "missingPermissions": [_build_failed_read_fields(item) for item in self.unread if item.is_denied],
            "notRead": [_build_failed_read_fields(item) for item in self.unread if not item.is_denied],
        }

    def _write_file(self, name: str, content: bytes) -> None:
        self._tar.addfile(_build_tar_info(name, len(content)), io.BytesIO(content))


def _build_tar_info(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"{ROOT_DIRECTORY}/{name}")
    entry.size, entry.mtime, entry.mode = size, int(time.time()), FILE_MODE
    return entry


def _build_failed_read_fields(failed_read: FailedRead) -> dict[str, str]:
    return {
        "permission" if failed_read.is_denied else "what": failed_read.permission,
        "message": failed_read.message,
    }


def _encode_json(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
