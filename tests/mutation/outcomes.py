"""What came of each change: a file to which a session appends a line for each, so that a killed one loses nothing."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any


class Outcomes:
    """In: a file, there or not yet. Each line is an object with the one thing that it tells of."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def add(self, **line: Any) -> None:
        """Append a line."""
        with self.file.open("a") as out:
            out.write(json.dumps(line) + "\n")

    def lines(self, key: str) -> Iterator[dict[str, Any]]:
        """Those that tell of it."""
        if self.file.exists():
            yield from (line for line in map(json.loads, self.file.read_text().splitlines()) if key in line)

    def judged(self) -> dict[str, str]:
        """Change → the test that noticed it, "" for none."""
        return {line["judged"]: line["by"] for line in self.lines("judged")}

    def suspects(self) -> dict[str, list[str]]:
        """Change → the tests that failed under it, and after it as well."""
        found: dict[str, list[str]] = {}
        for line in self.lines("suspect"):
            found.setdefault(line["suspect"], []).append(line["by"])
        return found

    def under_way(self) -> str:
        """The change that was begun last, if it was not judged."""
        begun = [line["begun"] for line in self.lines("begun")]
        return begun[-1] if begun and begun[-1] not in self.judged() else ""

    def stalled(self) -> Counter[str]:
        """How often a session stood still at a change."""
        return Counter(line["stalled"] for line in self.lines("stalled"))
