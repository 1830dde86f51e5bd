"""Changes of the product's code, as mutmut makes them: a changed module holds each function with all of its changes.

The one in force is chosen while it runs, so that many can be judged in one process.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType

from mutmut.mutation.file_mutation import mutate_file_contents

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "mutants"
"""Where changed modules are, and what comes of them; no code that is used."""
LIST = FOLDER / "changes.json"
IMPURE = ("kube/maintenance/lookup.py",)
"""Asks the API server, though it is among the rules."""


@dataclass(frozen=True)
class Change:
    """One change of a function.

    Attributes:
        name: module and number, such as `kube.nodes.x_is_closed__mutmut_3`.
        said: the lines that go, and those that come instead.
        line: where the first of them is in the changed module, in the original function.
        first, last: the lines of that function.
    """

    name: str
    said: str
    line: int
    first: int
    last: int

    @property
    def module(self) -> str:
        """The dotted name of its module."""
        return self.name.rpartition(".")[0]

    @property
    def function(self) -> str:
        """The name that all changes of its function begin with."""
        return function_of(self.name)


def function_of(name: str) -> str:
    """The function of a change, or of the original of one."""
    return name.partition("__mutmut_")[0]


def module_of(file: str) -> str:
    """The dotted name of a changed module."""
    return ".".join(Path(file).relative_to(FOLDER).with_suffix("").parts)


def rules() -> list[Path]:
    """The pure rules, relative to the root."""
    found = [*(ROOT / "kube").glob("*.py"), *(ROOT / "kube" / "maintenance").glob("*.py")]
    return [path for path in sorted(each.relative_to(ROOT) for each in found) if path.as_posix() not in IMPURE]


def steps() -> list[Path]:
    """The steps of a maintenance, and what they share."""
    return sorted(path.relative_to(ROOT) for path in (ROOT / "functions" / "maintenance").glob("*.py"))


def write(paths: Sequence[Path]) -> list[Change]:
    """Write these modules changed below `FOLDER`; returns the changes, which are listed there, too."""
    changes = [change for path in paths for change in _write(path)]
    LIST.write_text(json.dumps([asdict(change) for change in changes], indent=1))
    return changes


def listed() -> list[Change]:
    """The changes that were written."""
    return [Change(**change) for change in json.loads(LIST.read_text())]


def _write(path: Path) -> list[Change]:
    file = FOLDER / path
    module = module_of(str(file))
    made = mutate_file_contents(str(path), (ROOT / path).read_text())
    if not made.mutant_names:
        return []
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(made.code)
    lines = made.code.splitlines()
    text = {
        name: [line.replace(name, function_of(name)) for line in lines[span.start - 1 : span.end]]
        for name, span in made.line_span_by_function_name.items()
    }
    found = []
    for name in made.mutant_names:
        original = f"{function_of(name)}__mutmut_orig"
        place, said = _difference(text[original], text[name])
        span = made.line_span_by_function_name[original]
        found.append(Change(f"{module}.{name}", said, span.start + place, span.start, span.end))
    return found


def _difference(before: Sequence[str], after: Sequence[str]) -> tuple[int, str]:
    """Which line is the first that differs, and all from there to the last that does."""
    start = next((n for n, (was, now) in enumerate(zip(before, after, strict=False)) if was != now), 0)
    before, after = before[start:], after[start:]
    while before and after and before[-1] == after[-1]:
        before, after = before[:-1], after[:-1]
    was, now = (" ".join(line.strip() for line in part) for part in (before, after))
    return start, f"- {was}\n+ {now}"


class Finder(MetaPathFinder):
    """Imports the changed module where there is one."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """The changed file; None leaves it to others."""
        file = FOLDER.joinpath(*name.split(".")).with_suffix(".py")
        return spec_from_file_location(name, file, loader=Loader(name, str(file))) if file.exists() else None


class Loader(SourceFileLoader):
    """Compiles it anew in each process: these files are made and gone within minutes."""

    def get_code(self, fullname: str) -> CodeType | None:
        """What is to be run."""
        path = self.get_filename(fullname)
        return compile(self.get_data(path), path, "exec", dont_inherit=True)


def install() -> None:
    """Have changed modules imported from now on."""
    sys.meta_path.insert(0, Finder())
