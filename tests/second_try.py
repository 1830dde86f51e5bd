"""Runs the tests of make targets for `.ci/run`; retries each failed test once, and reports and counts the retries.

`python -m tests.second_try TARGET...` ends with 1 if a test fails twice or a run is incomplete. It also does if more
tests needed a second try than `MOST_OF_TEST` and `MOST` allow. build/second-tries.txt has a line for each such test.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.failure_report import VARIABLE

MOST_OF_TEST, MOST = 3, 10
"""Maximum number of tests that may need a second try: of `make test`, and in total."""
REPORT = Path("build/second-tries.txt")
FAILURES = Path("build/failures.json")
CHOOSING = ("ARGS", "PYTEST_ADDOPTS")
"""Environment variables that select tests; removed, so that a run includes all tests."""


@dataclass(frozen=True)
class Try:
    """One test that failed at first.

    Attributes:
        test: The test's id.
        first: The reason of its first failure.
        second: The reason of its second failure, "" if it passed.
        is_of_test: Whether `make test` runs it.
    """

    test: str
    first: str
    second: str
    is_of_test: bool

    def line(self) -> str:
        """Return the test's line in the report."""
        target = "make test" if self.is_of_test else "another target"
        return f"{self.test} ({target}): first failed ({self.first}), then {self.outcome()}"

    def outcome(self) -> str:
        """Return how the second try ended."""
        return f"failed again ({self.second})" if self.second else "passed"


def verdict(tries: Collection[Try]) -> str:
    """Return why these second tries fail the run, "" if they do not."""
    again = [each.test for each in tries if each.second]
    of_test = sum(each.is_of_test for each in tries)
    if again:
        return f"failed twice: {', '.join(again)}"
    if of_test > MOST_OF_TEST:
        return f"{of_test} tests of make test needed a second try, at most {MOST_OF_TEST} may"
    if len(tries) > MOST:
        return f"{len(tries)} tests needed a second try, at most {MOST} may"
    return ""


def main(targets: Collection[str]) -> int:
    """Run the targets in turn, stop at the first one that fails, and print the report."""
    FAILURES.parent.mkdir(exist_ok=True)
    REPORT.unlink(missing_ok=True)
    tries: list[Try] = []
    why = ""
    for target in targets:
        why = _run(target, tries) or verdict(tries)
        if why:
            break
    REPORT.write_text("".join(f"{each.line()}\n" for each in tries))
    print(f"tests that needed a second try: {len(tries) or 'none'}\n{REPORT.read_text()}", end="", flush=True)
    if why:
        print(f"error: {why}", file=sys.stderr)
    return 1 if why else 0


def _run(target: str, tries: list[Try]) -> str:
    """Run one target and retry its failed tests; add the second tries to `tries`.

    Return why the run fails, "" if it does not.
    """
    failures = _make(target)
    if failures is None:
        return f"make {target} ended before its tests did"
    if not failures:
        return ""
    if len(tries) + len(failures) > MOST:
        return f"{len(failures)} tests of make {target} failed, too many for a second try"
    print(f"second try: {', '.join(failures)}", flush=True)
    again = _make(target, "ARGS=--last-failed")
    if again is None:
        return f"the second try of make {target} ended before its tests did"
    if others := again.keys() - failures.keys():
        return f"other tests of make {target} failed at the second try: {', '.join(sorted(others))}"
    of_test = _of_make_test()
    tries += [Try(test, first, again.get(test, ""), test in of_test) for test, first in failures.items()]
    return ""


def _make(*words: str) -> Mapping[str, str] | None:
    """Run make; return the failed tests with the reason of each, or None if not all tests ran."""
    FAILURES.unlink(missing_ok=True)
    environment = {name: value for name, value in os.environ.items() if name not in CHOOSING}
    environment[VARIABLE] = str(FAILURES.resolve())
    status = subprocess.run(["make", *words], env=environment, check=False).returncode
    if not FAILURES.exists():
        return None
    failures: dict[str, str] = json.loads(FAILURES.read_text())
    return failures if bool(failures) == bool(status) else None


def _of_make_test() -> set[str]:
    """Return the ids of the tests that `make test` runs."""
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "--no-header"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return {line for line in listed.splitlines() if "::" in line}


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
