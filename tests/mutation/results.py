"""The results of each mutant: sessions append one line for each to a file, so that a killed session loses nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Outcomes:
    """A file of results; each line is a JSON object with a key for its kind."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(self, **line: Any) -> None:
        """Append a line."""
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def lines(self, key: str) -> Iterator[dict[str, Any]]:
        """Yield the lines with this key."""
        if self.file.exists():
            yield from (line for line in map(json.loads, self.file.read_text().splitlines()) if key in line)

    def judged(self) -> dict[str, str]:
        """Return mutant → the test that killed it, "" for none."""
        return {line["judged"]: line["by"] for line in self.lines("judged")}

    def suspects(self) -> dict[str, list[str]]:
        """Return mutant → the tests that failed with it, and also without it afterwards."""
        found: dict[str, list[str]] = {}
        for line in self.lines("suspect"):
            found.setdefault(line["suspect"], []).append(line["by"])
        return found

    def under_way(self) -> str:
        """Return the mutant that was started last, if it has no result yet."""
        begun = [line["begun"] for line in self.lines("begun")]
        return begun[-1] if begun and begun[-1] not in self.judged() else ""

    def stalled(self) -> Counter[str]:
        """Return how often a session hung at each mutant."""
        return Counter(line["stalled"] for line in self.lines("stalled"))
