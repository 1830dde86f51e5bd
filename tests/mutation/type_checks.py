"""Type checks of mutants: a single mypy run checks all mutated functions, in a copy of the source tree."""

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

from tests.mutation.mutant_list import MUTANTS_DIR, ROOT, Mutant

PACKAGES = ("kube", "eventing", "functions")
COPY_DIR = MUTANTS_DIR / "typed"
MYPY_ERROR_PATTERN = re.compile(r"(?m)^(?P<file>[^:\n]+):(?P<line>\d+): error: (?P<text>.*)")
TOP_LEVEL_PATTERN = re.compile(r"(?: {4})?(?:@|async def |def |class )")
MUTANT_HEAD_PATTERN = re.compile(r"\s*(?:async )?def (x[_ǁ]\w*__mutmut_(?:orig|\d+))\(")


def find_detected_mutants(mutants: Sequence[Mutant]) -> set[str]:
    """Return the names of the mutants with a type error that their original function does not have."""
    _write_copy()
    package_options = [option for package in PACKAGES for option in ("-p", package)]
    options = ["--config-file", str(ROOT / "pyproject.toml"), "--no-pretty", "--no-error-summary"]
    command = [sys.executable, "-m", "mypy", *options, "--no-warn-unused-ignores", *package_options]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(command, cwd=COPY_DIR, env=environment, capture_output=True, text=True, check=False)
    if result.returncode not in (0, 1):
        raise SystemExit(f"error: mypy cannot read the mutated modules: {result.stdout}{result.stderr}")
    errors = _parse_errors(result.stdout)
    originals = {mutant.name: errors[f"{mutant.function}__mutmut_orig"] for mutant in mutants}
    return {mutant.name for mutant in mutants if errors[mutant.name] - originals[mutant.name]}


def _write_copy() -> None:
    """Create a copy of the source tree, with the mutated modules and the mutmut modules that they import."""
    shutil.rmtree(COPY_DIR, ignore_errors=True)
    shutil.copytree(Path(mutmut.__file__).parent, COPY_DIR / "mutmut")
    for package in PACKAGES:
        shutil.copytree(ROOT / package, COPY_DIR / package, ignore=shutil.ignore_patterns("__pycache__"))
        for file in (MUTANTS_DIR / package).rglob("*.py"):
            shutil.copy(file, COPY_DIR / file.relative_to(MUTANTS_DIR))


def _parse_errors(output: str) -> defaultdict[str, set[str]]:
    """Return a map from mutant or original function to mypy's errors about it, without the function names in them."""
    errors_by_mutant, functions = defaultdict(set), {}
    for match in MYPY_ERROR_PATTERN.finditer(output):
        file = match["file"]
        if file not in functions:
            functions[file] = _map_lines_to_mutants(COPY_DIR / file)
        if name := functions[file].get(int(match["line"])):
            errors_by_mutant[name].add(match["text"].replace(name.rpartition(".")[2], ""))
    return errors_by_mutant


def _map_lines_to_mutants(file: Path) -> dict[int, str]:
    """Return a map from line number to the mutant or original function in this file that contains the line."""
    mutants_by_line, name = {}, ""
    module = ".".join(file.relative_to(COPY_DIR).with_suffix("").parts)
    for line_number, line in enumerate(file.read_text().splitlines(), start=1):
        if TOP_LEVEL_PATTERN.match(line) or "# mutmut generated" in line:
            match = MUTANT_HEAD_PATTERN.match(line)
            name = f"{module}.{match[1]}" if match else ""
        if name:
            mutants_by_line[line_number] = name
    return mutants_by_line
