"""Runs the tests of make targets for `.ci/run`, retries each failed test once, and reports the retries.

`python -m tests.second_try --started SECONDS TARGET...` exits with status 1 if a test fails twice, or if a run is
incomplete. It also exits with status 1 if more tests needed a second try than `MAX_SECOND_TRIES_OF_MAKE_TEST` and
`MAX_SECOND_TRIES` allow. The file build/second-tries.txt has a line for each test that needed a second try. A target
that would probably end later than `MAX_RUN_MINUTES` after SECONDS, a time since the epoch, is left out, and the last
lines name it; with `--all`, all targets run.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.failure_report import REPORT_VARIABLE
from tests.machine_speed import measure_slowdown

MAX_SECOND_TRIES_OF_MAKE_TEST, MAX_SECOND_TRIES = 3, 10
"""Maximum number of tests that may need a retry, among the tests of `make test`, and among all tests."""
MAX_RUN_MINUTES = 80
"""Minutes within which a run should end; it may take 90 minutes, and a target may take longer than estimated."""
REFERENCE_MINUTES = {"e2e-real": 18, "test-slow": 14}
"""Map from make target to the minutes that it takes on the reference machine, including its builds."""
REPORT_FILE = Path("build/second-tries.txt")
FAILURES_FILE = Path("build/failures.json")
SELECTION_VARIABLES = ("ARGS", "PYTEST_ADDOPTS")
"""Environment variables that select tests; they are unset, so that a run includes all tests."""


@dataclass(frozen=True)
class RetriedTest:
    """A retry of a test whose first run failed.

    Attributes:
        test: The test's id.
        first_reason: The reason for the first failure.
        second_reason: The reason for the second failure, or "" if the second try passed.
        is_in_make_test: Whether `make test` runs it.
    """

    test: str
    first_reason: str
    second_reason: str
    is_in_make_test: bool

    def format_line(self) -> str:
        """Return the report's line about the test."""
        target = "make test" if self.is_in_make_test else "another target"
        return f"{self.test} ({target}): first failed ({self.first_reason}), then {self.format_outcome()}"

    def format_outcome(self) -> str:
        """Return the outcome of the retry."""
        return f"failed again ({self.second_reason})" if self.second_reason else "passed"


def find_failure_reason(tries: Collection[RetriedTest]) -> str:
    """Return the reason why a run with these retries fails, or "" if it passes."""
    failed_twice = [second_try.test for second_try in tries if second_try.second_reason]
    make_test_count = sum(second_try.is_in_make_test for second_try in tries)
    if failed_twice:
        return f"failed twice: {', '.join(failed_twice)}"
    if make_test_count > MAX_SECOND_TRIES_OF_MAKE_TEST:
        return f"{make_test_count} tests of make test needed a second try, at most {MAX_SECOND_TRIES_OF_MAKE_TEST} may"
    if len(tries) > MAX_SECOND_TRIES:
        return f"{len(tries)} tests needed a second try, at most {MAX_SECOND_TRIES} may"
    return ""


def run_targets(targets: Collection[str], started: float, run_all: bool = False) -> int:
    """Run the targets one after another until one fails, print the report, and return the exit status.

    Args:
        targets: The names of make targets.
        started: When the whole run began, in seconds since the epoch.
        run_all: Whether targets also run that would probably end later than `MAX_RUN_MINUTES`.
    """
    FAILURES_FILE.parent.mkdir(exist_ok=True)
    REPORT_FILE.unlink(missing_ok=True)
    tries: list[RetriedTest] = []
    notices: list[str] = []
    reason = ""
    for target in targets:
        if not run_all and target in REFERENCE_MINUTES:
            passed, needed = (time.time() - started) / 60, REFERENCE_MINUTES[target] * measure_slowdown()
            if passed + needed > MAX_RUN_MINUTES:
                notices.append(
                    f"not run: make {target}, because {passed:.0f} minutes had passed, and it takes about "
                    f"{needed:.0f} on this machine, more than {MAX_RUN_MINUTES} together: run `.ci/run --all` for it\n"
                )
                continue
        reason = _run_target(target, tries) or find_failure_reason(tries)
        if reason:
            break
    REPORT_FILE.write_text("".join(f"{second_try.format_line()}\n" for second_try in tries))
    report = f"tests that needed a second try: {len(tries) or 'none'}\n{REPORT_FILE.read_text()}{''.join(notices)}"
    print(report, end="", flush=True)
    if reason:
        print(f"error: {reason}", file=sys.stderr)
    return 1 if reason else 0


def _run_target(target: str, tries: list[RetriedTest]) -> str:
    """Run one target, retry its failed tests, and append the retries to `tries`.

    Return the reason why the target fails, or "" if it passes.
    """
    failures = _run_make(target)
    if failures is None:
        return f"make {target} ended before all of its tests had run"
    if not failures:
        return ""
    if len(tries) + len(failures) > MAX_SECOND_TRIES:
        return f"{len(failures)} tests of make {target} failed, too many for a second try"
    print(f"second try: {', '.join(failures)}", flush=True)
    second_failures = _run_make(target, "ARGS=--last-failed")
    if second_failures is None:
        return f"the second try of make {target} ended before all of its tests had run"
    if other_failures := second_failures.keys() - failures.keys():
        return f"other tests of make {target} failed at the second try: {', '.join(sorted(other_failures))}"
    make_test_ids = _list_make_test_ids()
    tries += [
        RetriedTest(test, first_reason, second_failures.get(test, ""), test in make_test_ids)
        for test, first_reason in failures.items()
    ]
    return ""


def _run_make(*args: str) -> Mapping[str, str] | None:
    """Run make, and return a map from test to reason for each failed test, or None if not all tests ran."""
    FAILURES_FILE.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in SELECTION_VARIABLES}
    environment[REPORT_VARIABLE] = str(FAILURES_FILE.resolve())
    status = subprocess.run(["make", *args], env=environment, check=False).returncode
    if not FAILURES_FILE.exists():
        return None
    failures: dict[str, str] = json.loads(FAILURES_FILE.read_text())
    return failures if bool(failures) == bool(status) else None


def _list_make_test_ids() -> set[str]:
    """Return the ids of the tests that `make test` runs."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header"]
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line for line in output.splitlines() if "::" in line}


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog=".ci/run")
    parser.add_argument("--all", action="store_true", help="run all targets, even if that takes more than 90 minutes")
    parser.add_argument("--started", type=float, default=time.time(), help=argparse.SUPPRESS)
    parser.add_argument("targets", nargs="+", help=argparse.SUPPRESS)
    return parser.parse_args()


if __name__ == "__main__":
    arguments = _parse_arguments()
    raise SystemExit(run_targets(arguments.targets, arguments.started, arguments.all))
