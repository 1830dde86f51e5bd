"""Finds the mutants that mypy detects: it checks all mutated functions at once, in a copy of the tree."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

import mutmut

from tests.mutation.mutant_list import FOLDER, ROOT, Change

PACKAGES = ("kube", "eventing", "functions")
TREE = FOLDER / "typed"
SAID = re.compile(r"(?m)^(?P<file>[^:\n]+):(?P<line>\d+): error: (?P<text>.*)")
OUTER = re.compile(r"(?: {4})?(?:@|async def |def |class )")
HEAD = re.compile(r"\s*(?:async )?def (x[_ǁ]\w*__mutmut_(?:orig|\d+))\(")


def noticed(changes: Sequence[Change]) -> set[str]:
    """Return the names of the mutants with a type error that the original does not have."""
    _write()
    where = [word for package in PACKAGES for word in ("-p", package)]
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--no-pretty", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, "--no-warn-unused-ignores", *where]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, cwd=TREE, env=environment, capture_output=True, text=True, check=False)
    if done.returncode not in (0, 1):
        raise SystemExit(f"error: mypy cannot read what was changed: {done.stdout}{done.stderr}")
    errors = _errors(done.stdout)
    originals = {change.name: errors[f"{change.function}__mutmut_orig"] for change in changes}
    return {change.name for change in changes if errors[change.name] - originals[change.name]}


def _write() -> None:
    """Create the copy with the mutated modules and with the mutmut modules that they import."""
    shutil.rmtree(TREE, ignore_errors=True)
    shutil.copytree(Path(mutmut.__file__).parent, TREE / "mutmut")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, TREE / package, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (FOLDER / package).rglob("*.py"):
            shutil.copy(file, TREE / file.relative_to(FOLDER))


def _errors(said: str) -> defaultdict[str, set[str]]:
    """Return mutant or original → mypy's messages, without the function's name."""
    found, functions = defaultdict(set), {}
    for match in SAID.finditer(said):
        file = match["file"]
        if file not in functions:
            functions[file] = _functions(TREE / file)
        if name := functions[file].get(int(match["line"])):
            found[name].add(match["text"].replace(name.rpartition(".")[2], ""))
    return found


def _functions(file: Path) -> dict[int, str]:
    """Return line → the mutant or original that contains it."""
    found, name = {}, ""
    module = ".".join(file.relative_to(TREE).with_suffix("").parts)
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if OUTER.match(line) or "# mutmut generated" in line:
            head = HEAD.match(line)
            name = f"{module}.{head[1]}" if head else ""
        if name:
            found[number] = name
    return found
