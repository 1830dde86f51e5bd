"""`python -m tests.mutation [MODULE...]` mutates each line of the rules and steps, and lists the surviving mutants.

Two pytest sessions run concurrently, each with its own cluster if the tests need one. `--again` tests only the mutants
that survived the last run.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any

from tests.mutation import mutant_list, type_checks
from tests.mutation.mutant_list import FOLDER, ROOT, Change
from tests.mutation.results import Outcomes
from tests.mutation.session import Work

SESSIONS = 2
TYPED = FOLDER / "types.json"
STILL_SECONDS = 120.0
"""Seconds without a new line after which a session counts as hanging, if no test's timeout stopped it."""
HUNDREDS = ("test_what_a_tick_costs_does_not_grow_with_what_rests", "test_everybodys_turn_comes")
LEFT_OUT = [
    "--ignore=tests/functions/maintenance/test_faults.py",
    *(f"--deselect=tests/functions/maintenance/test_resync_limits.py::{name}" for name in HUNDREDS),
]
HANGS = "it hangs"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


STEPS = (
    "tests/functions/maintenance",
    "tests/functions/serving/test_pass_queue.py",
    "tests/functions/admission/test_quorum.py",
    "tests/functions/test_installs.py",
)


@dataclass(frozen=True)
class Part:
    """Modules that are tested by the same tests; with `pure`, only by tests that need no cluster."""

    name: str
    paths: Sequence[Path]
    tests: Sequence[str]
    pure: bool


PARTS = (
    Part("rules", mutant_list.rules(), ("tests/kube", "tests/functions/maintenance"), pure=True),
    Part("steps", mutant_list.steps(), STEPS, pure=False),
)


def _shares(changed: Sequence[Change]) -> list[list[Change]]:
    """Divide the mutants among the sessions; those of the same function stay together."""
    shares: list[list[Change]] = [[] for _ in range(SESSIONS)]
    for _, group in groupby(changed, lambda change: change.function):
        min(shares, key=len).extend(group)
    return shares


class Run:
    """The pytest sessions of one part."""

    def __init__(self, part: Part, changed: Sequence[Change]) -> None:
        self._part, self._changed = part, changed
        self._tests = [Outcomes(FOLDER / f"{part.name}-tests-{number}.jsonl") for number in range(SESSIONS)]
        self.outcomes = [Outcomes(FOLDER / f"{part.name}-{number}.jsonl") for number in range(SESSIONS)]

    def run(self) -> None:
        """Find out which lines each test reaches, then test each mutant."""
        if not self._changed:
            return
        print(f"{self._part.name}: {len(self._changed)} changes for tests; looking what these reach", flush=True)
        with ThreadPoolExecutor(SESSIONS) as threads:
            if self._is_stale():
                list(threads.map(self._list, range(SESSIONS)))
            failed = [line["failed"] for line in self._listed() if line["failed"]]
            if failed or self._is_stale():
                raise SystemExit("\n".join(["error: tests fail without any change; see the folder mutants", *failed]))
            list(threads.map(self._judge, range(SESSIONS), _shares(self._changed)))

    def reopen(self) -> None:
        """Forget the mutants that survived, and all suspects."""
        for outcomes in self.outcomes:
            kept = [line for line in outcomes.lines("judged") if line["by"]]
            outcomes.file.write_text("".join(json.dumps(line) + "\n" for line in kept))

    def judged(self) -> dict[str, str]:
        """Return mutant → the test that killed it, "" for none."""
        return {name: by for outcomes in self.outcomes for name, by in outcomes.judged().items()}

    def _is_stale(self) -> bool:
        """Return whether the list of reached lines is missing or older than the tests."""
        files = [file for name in self._part.tests for file in (ROOT / name, *(ROOT / name).rglob("*.py"))]
        newest = max(file.stat().st_mtime for file in files)
        return any(not tests.file.exists() or tests.file.stat().st_mtime < newest for tests in self._tests)

    def _listed(self) -> list[dict[str, Any]]:
        return [line for tests in self._tests for line in tests.lines("listed")]

    def _list(self, number: int) -> None:
        """List the lines reached by one session's share of the tests."""
        self._tests[number].file.unlink(missing_ok=True)
        work = Work(str(self._tests[number].file), [], {}, {}, self._part.pure, number, SESSIONS)
        if not self._session(number, work):
            raise SystemExit(f"error: it is not known what all tests reach; see mutants/{self._part.name}-{number}.log")

    def _judge(self, number: int, changed: Sequence[Change]) -> None:
        """Run sessions one after another until all these mutants are tested."""
        outcomes, listed = self.outcomes[number], self._listed()
        seconds = {line["listed"]: line["seconds"] for line in listed}
        reached = {change.name: _reaching(change, listed) for change in changed}
        while left := [change.name for change in changed if change.name not in outcomes.judged()]:
            print(f"{self._part.name} {number}: {len(left)} left, {time.strftime('%H:%M:%S')}", flush=True)
            if self._session(number, Work(str(outcomes.file), left, reached, seconds, self._part.pure, 0, 1)):
                continue
            name = outcomes.under_way()
            outcomes.add(stalled=name)
            if not name or outcomes.stalled()[name] > 2:
                raise SystemExit(f"error: no session gets on; see mutants/{self._part.name}-{number}.log")
            if outcomes.stalled()[name] == 2:
                outcomes.add(judged=name, by=HANGS)

    def _session(self, number: int, work: Work) -> bool:
        """Run one pytest process; return whether it ended normally."""
        file = FOLDER / f"{self._part.name}-{number}-work.json"
        work.write(file)
        options = ["-q", "-p", "tests.mutation.session", f"--work={file}", f"--basetemp={FOLDER / f'tmp-{number}'}"]
        command = [sys.executable, "-m", "pytest", *options, *LEFT_OUT, *self._part.tests]
        with (FOLDER / f"{self._part.name}-{number}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=ENVIRONMENT)
            return _ended(process, Path(work.outcomes)) in (0, 5)


def _reaching(change: Change, listed: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tests that reach the mutated line or, if no test does, the function that contains it."""
    lines = {line["listed"]: set(line["reached"].get(change.module, ())) for line in listed}
    whole = set(range(change.first, change.last + 1))
    there = [test for test, reached in lines.items() if change.line in reached]
    return there or [test for test, reached in lines.items() if whole & reached]


def _ended(process: subprocess.Popen[bytes], file: Path) -> int:
    """Wait for the process and return its exit status; kill it if it hangs."""
    size, since = -1, time.monotonic()
    while True:
        try:
            return process.wait(5)
        except subprocess.TimeoutExpired:
            now = file.stat().st_size if file.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > STILL_SECONDS:
                process.kill()
                return process.wait()


def show(found: Sequence[Change], typed: Set[str], judged: Mapping[str, str]) -> None:
    """Print the surviving mutants, and the number of killed and surviving mutants of each module."""
    alive = [change for change in found if change.name not in typed and not judged[change.name]]
    for change in alive:
        print(f"{change.name}\n{change.said}\n")
    total, survived = (Counter(change.module for change in some) for some in (found, alive))
    type_checks = Counter(change.module for change in found if change.name in typed)
    print(f"{'module':36} changes   types   tests  nobody  noticed")
    for module in [*total, "all"]:
        many, by_types, left = (
            count[module] if module != "all" else count.total() for count in (total, type_checks, survived)
        )
        print(f"{module:36} {many:7} {by_types:7} {many - by_types - left:7} {left:7} {1 - left / many:8.1%}")


def main() -> None:
    """Run the mutation tests that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="the beginnings of dotted names; default: all")
    parser.add_argument("--again", action="store_true", help="judge those anew that no test noticed last time")
    arguments = parser.parse_args()
    found, typed = _known() if arguments.again else _made()
    found = [change for change in found if change.module.startswith(tuple(arguments.modules) or ("",))]
    judged: dict[str, str] = {}
    for part in PARTS:
        modules = {".".join(path.with_suffix("").parts) for path in part.paths}
        run = Run(part, [change for change in found if change.module in modules and change.name not in typed])
        if arguments.again:
            run.reopen()
        run.run()
        judged |= run.judged()
    show(found, typed, judged)


def _made() -> tuple[list[Change], set[str]]:
    """Generate all mutants; return them, and the names of those that mypy detects."""
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    found = mutant_list.write([path for part in PARTS for path in part.paths])
    print(f"{len(found)} changes; asking mypy", flush=True)
    typed = type_checks.noticed(found)
    TYPED.write_text(json.dumps(sorted(typed)))
    return found, typed


def _known() -> tuple[list[Change], set[str]]:
    """Return the mutants of the last run, and the names of those that mypy detected."""
    return mutant_list.listed(), set(json.loads(TYPED.read_text()))


if __name__ == "__main__":
    main()
