"""The .tar.gz that a must-gather writes, with an index of what is in it and what could not be read."""

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
"""The one folder in the archive."""
PRIVATE = 0o600
"""Names of pods and nodes are for the owner of the file alone."""


@dataclass(frozen=True)
class Missing:
    """What could not be read.

    Attributes:
        right: the permission that it takes, e.g. `list nodes`.
        message: the server's.
        denied: the account has not that permission; otherwise something else went wrong.
    """

    right: str
    message: str
    denied: bool


class Archive:
    """A .tar.gz under way. A context manager: the index goes in at the end, whatever happened before.

    Raises `OSError` when the file is there already or cannot be written.
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
        """Put a file in; `source` says where it is from, `items` how many objects it holds."""
        self._write(name, content)
        counted = {} if items is None else {"items": items}
        self.files.append({"file": name, "from": source, "bytes": len(content), **counted})

    def add_json(self, name: str, value: Any, source: str, items: int | None = None) -> None:
        """Put a value in as JSON."""
        self.add(name, _pretty(value), source, items)

    def add_lines(self, name: str, lines: Iterable[bytes], source: str) -> None:
        """Put lines in, however many: they go by a file of their own, since an archive wants the size first."""
        with TemporaryFile() as whole:
            count = sum(1 for line in lines if whole.write(line))
            size = whole.tell()
            whole.seek(0)
            self._tar.addfile(_entry(name, size), whole)
        self.files.append({"file": name, "from": source, "bytes": size, "items": count})

    def absent(self, right: str) -> None:
        """Note that a kind is not installed, which is no fault."""
        self.not_installed.append(right)

    def missing(self, missing: Missing) -> None:
        """Note what could not be read, once."""
        if missing.right not in {item.right for item in self.not_read}:
            self.not_read.append(missing)

    def index(self) -> dict[str, Any]:
        """What is in the archive, and what is not and why."""
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
