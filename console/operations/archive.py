"""The .tar.gz archive of a must-gather, with an index of its contents and of everything that could not be read."""

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

from kube.times import timestamp

ROOT = "must-gather"
"""The only top-level directory of the archive."""
PRIVATE = 0o600
"""File mode: only the file's owner may read the names of pods and nodes."""


@dataclass(frozen=True)
class Missing:
    """A read that failed.

    Attributes:
        right: The permission that the read requires, e.g. `list nodes`, or the name of the unreadable source.
        message: The error message of the server or the operating system.
        denied: Whether the account lacks the permission; otherwise the read failed for another reason.
    """

    right: str
    message: str
    denied: bool


class Archive:
    """A .tar.gz that is being written; as a context manager, it adds the index on exit, even after an error.

    Raises `OSError` if the file already exists or cannot be written.
    """

    def __init__(self, file: Path) -> None:
        self.file = file
        self.files: list[dict[str, Any]] = []
        self.not_installed: list[str] = []
        self.not_read: list[Missing] = []
        self._gathered = timestamp(datetime.now(timezone.utc))
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, PRIVATE)
        self._out = os.fdopen(descriptor, "wb")
        self._tar = tarfile.open(fileobj=self._out, mode="w:gz")  # noqa: SIM115 - closed at exit

    def __enter__(self) -> Archive:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._write("index.json", _pretty(self.index()))
        self._tar.close()
        self._out.close()

    def add(self, name: str, content: bytes, source: str, items: int | None = None) -> None:
        """Add a file; `source` names the origin of the content, `items` is the number of objects in it."""
        self._write(name, content)
        counted = {} if items is None else {"items": items}
        self.files.append({"file": name, "from": source, "bytes": len(content), **counted})

    def add_json(self, name: str, value: Any, source: str, items: int | None = None) -> None:
        """Add a value as JSON."""
        self.add(name, _pretty(value), source, items)

    def add_lines(self, name: str, lines: Iterable[bytes], source: str) -> None:
        """Add any number of lines, through a temporary file: tar needs the size before the content."""
        with TemporaryFile() as whole:
            count = sum(1 for line in lines if whole.write(line))
            size = whole.tell()
            whole.seek(0)
            self._tar.addfile(_entry(name, size), whole)
        self.files.append({"file": name, "from": source, "bytes": size, "items": count})

    def absent(self, right: str) -> None:
        """Record that a kind is not installed, which is not an error."""
        self.not_installed.append(right)

    def missing(self, missing: Missing) -> None:
        """Record a failed read, once per permission."""
        if missing.right not in {item.right for item in self.not_read}:
            self.not_read.append(missing)

    def index(self) -> dict[str, Any]:
        """Return the index: the archive's files, and what is missing from it and why."""
        return {
            "gathered": self._gathered,
            "files": self.files,
            "notInstalled": self.not_installed,
            "missingPermissions": [_fields(item) for item in self.not_read if item.denied],
            "notRead": [_fields(item) for item in self.not_read if not item.denied],
        }

    def _write(self, name: str, content: bytes) -> None:
        self._tar.addfile(_entry(name, len(content)), io.BytesIO(content))


def _entry(name: str, size: int) -> tarfile.TarInfo:
    entry = tarfile.TarInfo(f"{ROOT}/{name}")
    entry.size, entry.mtime, entry.mode = size, int(time.time()), PRIVATE
    return entry


def _fields(item: Missing) -> dict[str, str]:
    return {"permission" if item.denied else "what": item.right, "message": item.message}


def _pretty(value: Any) -> bytes:
    return json.dumps(value, indent=1).encode()
