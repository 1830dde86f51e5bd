"""Results files: sessions append one line per result to a file, so that a killed session loses no results."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class ResultsFile:
    """A results file; each line is a JSON object whose first key is the kind of the result."""

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
        """Return the test that killed each mutant, or "" if the mutant survived."""
        return {line["tested"]: line["by"] for line in self.read_lines("tested")}

    def read_suspects(self) -> dict[str, list[str]]:
        """Return for each mutant the tests that failed first with the mutant and then also without any mutant."""
        tests_by_mutant: dict[str, list[str]] = {}
        for line in self.read_lines("suspect"):
            tests_by_mutant.setdefault(line["suspect"], []).append(line["by"])
        return tests_by_mutant

    def find_unfinished(self) -> str:
        """Return the mutant that was started last if it has no result yet, otherwise ""."""
        started = [line["started"] for line in self.read_lines("started")]
        return started[-1] if started and started[-1] not in self.read_results() else ""

    def count_hangs(self) -> Counter[str]:
        """Return how often a session hung while it tested each mutant."""
        return Counter(line["stalled"] for line in self.read_lines("stalled"))
