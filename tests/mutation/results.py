"""Results file: sessions append one line per result, so that a killed session loses no results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ResultsFile:
    """A file of JSON objects, one per line; an object's first key is the kind of the result."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def append(self, **line: Any) -> None:
        """Append a result as one line."""
        with self.file.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def read_lines(self, key: str) -> Iterator[dict[str, Any]]:
        """Yield the results of the kind `key`."""
        if self.file.exists():
            yield from (line for line in map(json.loads, self.file.read_text().splitlines()) if key in line)

    def read_results(self) -> dict[str, str]:
        """Return a map from mutant to the test that killed it, or "" if the mutant survived."""
        return {line["tested"]: line["by"] for line in self.read_lines("tested")}

    def read_suspects(self) -> dict[str, list[str]]:
        """Return a map from mutant to tests that failed with the mutant, and afterwards also without any mutant."""
        tests_by_mutant: dict[str, list[str]] = {}
        for line in self.read_lines("suspect"):
            tests_by_mutant.setdefault(line["suspect"], []).append(line["by"])
        return tests_by_mutant

    def find_unfinished(self) -> str:
        """Return the mutant that was started last if it has no result yet, otherwise ""."""
        started = [line["started"] for line in self.read_lines("started")]
        return started[-1] if started and started[-1] not in self.read_results() else ""

    def count_hangs(self) -> Counter[str]:
        """Return a map from mutant to number of times that a session hung while it tested the mutant."""
        return Counter(line["stalled"] for line in self.read_lines("stalled"))
