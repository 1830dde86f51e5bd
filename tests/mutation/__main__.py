"""Mutation tests: `python -m tests.mutation [MODULE...]` mutates the rules and functions, and lists survivors.

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
from tests.mutation.mutant_list import MUTANTS_DIR, ROOT, Mutant
from tests.mutation.results import ResultsFile
from tests.mutation.session import SessionInput

SESSION_COUNT = 2
TYPE_DETECTED_FILE = MUTANTS_DIR / "types.json"
HANG_SECONDS = 120.0
"""Seconds after which a session counts as hanging if its results file gets no new line."""
SLOW_TESTS = (
    "test_request_count_is_independent_of_succeeded_maintenances",
    "test_new_pod_on_drained_node_is_found_by_rotation",
)
EXCLUSION_OPTIONS = [
    "--ignore=tests/functions/maintenance/test_faults.py",
    *(f"--deselect=tests/functions/maintenance/test_resync_limits.py::{name}" for name in SLOW_TESTS),
]
HANG_RESULT = "hangs"
ENVIRONMENT = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}


STEP_TESTS = (
    "tests/functions/maintenance",
    "tests/functions/test_work_queue.py",
    "tests/functions/admission/test_quorum.py",
    "tests/functions/test_installs.py",
)


@dataclass(frozen=True)
class MutationPart:
    """Modules that are covered by the same tests; if `pure` is set, only the tests that need no cluster run."""

    name: str
    paths: Sequence[Path]
    tests: Sequence[str]
    pure: bool


PARTS = (
    MutationPart("rules", mutant_list.list_rule_modules(), ("tests/kube", "tests/functions/maintenance"), pure=True),
    MutationPart("steps", mutant_list.list_step_modules(), STEP_TESTS, pure=False),
)


def _divide_among_sessions(mutants: Sequence[Mutant]) -> list[list[Mutant]]:
    """Divide the mutants among the sessions; mutants of one function stay together."""
    shares: list[list[Mutant]] = [[] for _ in range(SESSION_COUNT)]
    for _, group in groupby(mutants, lambda mutant: mutant.function):
        min(shares, key=len).extend(group)
    return shares


class PartRun:
    """Runs the pytest sessions that test a part's mutants."""

    def __init__(self, part: MutationPart, mutants: Sequence[Mutant]) -> None:
        self._part, self._mutants = part, mutants
        self._reached_lines = [
            ResultsFile(MUTANTS_DIR / f"{part.name}-tests-{number}.jsonl") for number in range(SESSION_COUNT)
        ]
        self.outcomes = [ResultsFile(MUTANTS_DIR / f"{part.name}-{number}.jsonl") for number in range(SESSION_COUNT)]

    def test_mutants(self) -> None:
        """List the lines that each test reaches, unless the existing list is up to date, and test each mutant."""
        if not self._mutants:
            return
        print(
            f"{self._part.name}: {len(self._mutants)} mutants to test; listing the lines that each test reaches",
            flush=True,
        )
        with ThreadPoolExecutor(SESSION_COUNT) as threads:
            if self._is_stale():
                list(threads.map(self._list_reached_lines, range(SESSION_COUNT)))
            failed = [line["failed"] for line in self._read_reached_lines() if line["failed"]]
            if failed or self._is_stale():
                raise SystemExit(
                    "\n".join(["error: tests fail without a mutant: see the logs in the directory mutants", *failed])
                )
            list(threads.map(self._test_mutants, range(SESSION_COUNT), _divide_among_sessions(self._mutants)))

    def delete_results_of_survivors(self) -> None:
        """Delete the results of all mutants that no test killed, so that these mutants are tested again."""
        for outcomes in self.outcomes:
            killed = [line for line in outcomes.read_lines("tested") if line["by"]]
            outcomes.file.write_text("".join(json.dumps(line) + "\n" for line in killed))

    def read_results(self) -> dict[str, str]:
        """Return a map from mutant to the test that killed it, or "" if the mutant survived."""
        return {name: test for outcomes in self.outcomes for name, test in outcomes.read_results().items()}

    def _is_stale(self) -> bool:
        """Return whether the list of the lines that tests reach is missing, or older than the tests."""
        files = [file for name in self._part.tests for file in (ROOT / name, *(ROOT / name).rglob("*.py"))]
        newest = max(file.stat().st_mtime for file in files)
        return any(not tests.file.exists() or tests.file.stat().st_mtime < newest for tests in self._reached_lines)

    def _read_reached_lines(self) -> list[dict[str, Any]]:
        return [line for tests in self._reached_lines for line in tests.read_lines("listed")]

    def _list_reached_lines(self, session_number: int) -> None:
        """List the lines that this session's share of the tests reaches."""
        self._reached_lines[session_number].file.unlink(missing_ok=True)
        session_input = SessionInput(
            str(self._reached_lines[session_number].file), [], {}, {}, self._part.pure, session_number, SESSION_COUNT
        )
        if not self._run_session(session_number, session_input):
            log_path = f"mutants/{self._part.name}-{session_number}.log"
            raise SystemExit(f"error: could not list the lines that the tests reach: see {log_path}")

    def _test_mutants(self, session_number: int, mutants: Sequence[Mutant]) -> None:
        """Run pytest sessions one after another until all of these mutants are tested."""
        outcomes, test_records = self.outcomes[session_number], self._read_reached_lines()
        seconds = {record["listed"]: record["seconds"] for record in test_records}
        tests_by_mutant = {mutant.name: _find_tests(mutant, test_records) for mutant in mutants}
        while remaining := [mutant.name for mutant in mutants if mutant.name not in outcomes.read_results()]:
            print(f"{self._part.name} {session_number}: {len(remaining)} left, {time.strftime('%H:%M:%S')}", flush=True)
            session_input = SessionInput(str(outcomes.file), remaining, tests_by_mutant, seconds, self._part.pure, 0, 1)
            if self._run_session(session_number, session_input):
                continue
            name = outcomes.find_unfinished()
            outcomes.append(stalled=name)
            if not name or outcomes.count_hangs()[name] > 2:
                log_path = f"mutants/{self._part.name}-{session_number}.log"
                raise SystemExit(f"error: sessions make no progress: see {log_path}")
            if outcomes.count_hangs()[name] == 2:
                outcomes.append(tested=name, by=HANG_RESULT)

    def _run_session(self, session_number: int, session_input: SessionInput) -> bool:
        """Run one pytest process, and return whether it exited normally."""
        file = MUTANTS_DIR / f"{self._part.name}-{session_number}-work.json"
        session_input.write(file)
        options = [
            "-q",
            "-p",
            "tests.mutation.session",
            f"--work={file}",
            f"--basetemp={MUTANTS_DIR / f'tmp-{session_number}'}",
        ]
        command = [sys.executable, "-m", "pytest", *options, *EXCLUSION_OPTIONS, *self._part.tests]
        with (MUTANTS_DIR / f"{self._part.name}-{session_number}.log").open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log, cwd=ROOT, env=ENVIRONMENT)
            return _wait_for_exit(process, Path(session_input.results_file)) in (0, 5)


def _find_tests(mutant: Mutant, test_records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the tests that reach the mutated line or, if there are none, the mutated function."""
    lines = {record["listed"]: set(record["reached"].get(mutant.module, ())) for record in test_records}
    function_lines = set(range(mutant.first, mutant.last + 1))
    tests_of_line = [test for test, reached in lines.items() if mutant.line in reached]
    return tests_of_line or [test for test, reached in lines.items() if function_lines & reached]


def _wait_for_exit(process: subprocess.Popen[bytes], results_file: Path) -> int:
    """Wait until a session's process exits, and return the exit status; kill a process that writes no results."""
    size, since = -1, time.monotonic()
    while True:
        try:
            return process.wait(5)
        except subprocess.TimeoutExpired:
            new_size = results_file.stat().st_size if results_file.exists() else 0
            if new_size != size:
                size, since = new_size, time.monotonic()
            elif time.monotonic() - since > HANG_SECONDS:
                process.kill()
                return process.wait()


def print_report(mutants: Sequence[Mutant], type_detected: Set[str], results: Mapping[str, str]) -> None:
    """Print the surviving mutants, and the numbers of killed and surviving mutants in each module."""
    survivors = [mutant for mutant in mutants if mutant.name not in type_detected and not results[mutant.name]]
    for mutant in survivors:
        print(f"{mutant.name}\n{mutant.diff}\n")
    total, surviving = (Counter(mutant.module for mutant in group) for group in (mutants, survivors))
    type_checks = Counter(mutant.module for mutant in mutants if mutant.name in type_detected)
    print(f"{'module':36} mutants   types   tests    none detected")
    for module in [*total, "all"]:
        count_all, type_count, survivor_count = (
            count[module] if module != "all" else count.total() for count in (total, type_checks, surviving)
        )
        test_count, detected = count_all - type_count - survivor_count, 1 - survivor_count / count_all
        print(f"{module:36} {count_all:7} {type_count:7} {test_count:7} {survivor_count:7} {detected:8.1%}")


def main() -> None:
    """Run the mutation tests that the command line selects."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutation", description=__doc__)
    parser.add_argument("modules", nargs="*", help="prefixes of dotted module names; default: all")
    parser.add_argument("--again", action="store_true", help="test only the mutants that survived the last run")
    arguments = parser.parse_args()
    mutants, type_detected = _load_mutants() if arguments.again else _generate_mutants()
    mutants = [mutant for mutant in mutants if mutant.module.startswith(tuple(arguments.modules) or ("",))]
    results: dict[str, str] = {}
    for part in PARTS:
        modules = {".".join(path.with_suffix("").parts) for path in part.paths}
        run = PartRun(
            part, [mutant for mutant in mutants if mutant.module in modules and mutant.name not in type_detected]
        )
        if arguments.again:
            run.delete_results_of_survivors()
        run.test_mutants()
        results |= run.read_results()
    print_report(mutants, type_detected, results)


def _generate_mutants() -> tuple[list[Mutant], set[str]]:
    """Generate all mutants; return them, and the names of those that mypy detects."""
    shutil.rmtree(MUTANTS_DIR, ignore_errors=True)
    MUTANTS_DIR.mkdir()
    mutants = mutant_list.write_mutants([path for part in PARTS for path in part.paths])
    print(f"{len(mutants)} mutants; checking them with mypy", flush=True)
    type_detected = type_checks.find_detected_mutants(mutants)
    TYPE_DETECTED_FILE.write_text(json.dumps(sorted(type_detected)))
    return mutants, type_detected


def _load_mutants() -> tuple[list[Mutant], set[str]]:
    """Return the mutants of the last run, and the names of those that mypy detected."""
    return mutant_list.read_mutants(), set(json.loads(TYPE_DETECTED_FILE.read_text()))


if __name__ == "__main__":
    main()
