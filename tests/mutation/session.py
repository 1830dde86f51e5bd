"""Pytest plugin that tests many mutants in one session with one cluster, each with the tests that reach it.

The option `--work` names a JSON file with a `SessionInput`, whose `results_file` gets the results. A test that fails
with mutants of a function must pass afterwards without any mutant. Otherwise, a mutant or a problem of the machine has
corrupted the session. The session then ends, and a new session tests these mutants again.
"""

from __future__ import annotations

import json
import math
import sys
import threading
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from _pytest.runner import runtestprotocol
from hypothesis import HealthCheck, Phase, settings
from mutmut.mutation.trampoline import set_mutant_under_test

from tests.mutation import mutant_list
from tests.mutation.results import ResultsFile

mutant_list.install_finder()  # The finder must be installed before any conftest imports the product.

MAX_RUNS = 1500
"""Maximum number of test runs in a session with a cluster, because each run leaves one or two nodes."""
MAX_OTHER_TESTS = 30
"""Maximum number of other modules' cluster tests per mutant, because hundreds of tests reach some mutants."""
MAX_EXAMPLES = 30
"""Maximum number of Hypothesis examples per test; surviving mutants can be tested again."""
CLUSTER_FIXTURES = frozenset({"cluster", "idle_cluster"})
"""The fixtures that start a cluster; all other cluster fixtures depend on these fixtures."""
REACHED_LINES: set[tuple[str, int]] = set()
"""Files and lines that the current test has reached."""


@dataclass(frozen=True)
class SessionInput:
    """The input of a session.

    Attributes:
        results_file: The file to which results are appended.
        mutant_names: The mutants to test; if empty, the session lists the lines that each test reaches.
        tests_by_mutant: For each mutant, the tests that reach its line.
        seconds: The duration of each test.
        excludes_cluster_tests: Whether tests that need a cluster are excluded.
        share_index, share_count: The index of this session's share of the test files, and the number of shares.
    """

    results_file: str
    mutant_names: list[str]
    tests_by_mutant: dict[str, list[str]]
    seconds: dict[str, float]
    excludes_cluster_tests: bool
    share_index: int
    share_count: int

    def write(self, file: Path) -> None:
        """Write the input to a file, which the session reads."""
        file.write_text(json.dumps(asdict(self)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--work`."""
    parser.addoption("--work", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Read the input, and limit Hypothesis to a few deterministic examples without shrinking."""
    config.stash[INPUT_KEY] = SessionInput(**json.loads(config.getoption("--work").read_text()))
    settings.register_profile(
        "changes",
        deadline=None,
        max_examples=MAX_EXAMPLES,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("changes")


INPUT_KEY = pytest.StashKey[SessionInput]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `abreast` or `alone` and, if `excludes_cluster_tests` is set, tests that need a cluster."""
    excluded_fixtures = CLUSTER_FIXTURES if config.stash[INPUT_KEY].excludes_cluster_tests else frozenset()
    items[:] = [
        item
        for item in items
        if not excluded_fixtures & set(getattr(item, "fixturenames", ()))
        and not any(item.get_closest_marker(name) for name in ("abreast", "alone"))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Replace pytest's loop over the tests: test the mutants, or list the lines that each test reaches."""
    session_input = session.config.stash[INPUT_KEY]
    if session_input.mutant_names:
        MutantTester(session.items, session_input).test_mutants(session_input.mutant_names)
    else:
        threading.settrace(_trace_call)
        sys.settrace(_trace_call)
        files = list(dict.fromkeys(item.path for item in session.items))
        selected_items = [
            item
            for item in session.items
            if files.index(item.path) % session_input.share_count == session_input.share_index
        ]
        _list_reached_lines(selected_items, ResultsFile(Path(session_input.results_file)))
        sys.settrace(None)
        threading.settrace(None)
    return True


def _list_reached_lines(items: list[pytest.Item], outcomes: ResultsFile) -> None:
    """Run each test, and record the lines of mutated modules that it reaches; retry a failed test once."""
    common_node = _find_common_node(items)
    for item in items:
        REACHED_LINES.clear()
        reports = _run_test(item, "", common_node)
        if any(report.failed for report in reports):
            reports = _run_test(item, "", common_node)
        reached: dict[str, list[int]] = {}
        for file, line in sorted(REACHED_LINES):
            reached.setdefault(mutant_list.get_module_name(file), []).append(line)
        errors = "".join(report.longreprtext for report in reports if report.failed)
        seconds = sum(report.duration for report in reports)
        outcomes.append(listed=item.nodeid, seconds=seconds, reached=reached, failed=errors)


def _trace_call(frame: FrameType, _event: str, _argument: object) -> Any:
    """Return the line tracer for a function of a mutated module, or None for any other function."""
    return _trace_line if frame.f_code.co_filename.startswith(f"{mutant_list.MUTANTS_DIR}/") else None


def _trace_line(frame: FrameType, event: str, _argument: object) -> Any:
    if event == "line":
        REACHED_LINES.add((frame.f_code.co_filename, frame.f_lineno))
    return _trace_line


def _run_test(item: pytest.Item, name: str, next_item: pytest.Item) -> list[pytest.TestReport]:
    """Run a test with the mutant `name`, or unmutated if `name` is ""; keep fixtures that `next_item` also needs."""
    _clear_caches()
    set_mutant_under_test(name)
    try:
        return runtestprotocol(item, log=False, nextitem=next_item)
    finally:
        set_mutant_under_test("")


def _clear_caches() -> None:
    """Clear the `functools` caches of mutated modules."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("kube.", "functions.maintenance.")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _find_common_node(items: Iterable[pytest.Item]) -> Any:
    """Return the lowest node of the collection tree that contains all these tests."""
    chains = [item.listchain()[:-1] for item in items]
    return [nodes[0] for nodes in zip(*chains, strict=False) if len(set(nodes)) == 1][-1]


class MutantTester:
    """Tests mutants with the tests of this session."""

    def __init__(self, items: list[pytest.Item], session_input: SessionInput) -> None:
        self._items = {item.nodeid: item for item in items}
        self._common_node = _find_common_node(items)
        self._input = session_input
        self._outcomes = ResultsFile(Path(session_input.results_file))
        self._runs, self._max_runs = 0, math.inf if session_input.excludes_cluster_tests else MAX_RUNS
        for item in items:  # Each test gets a timeout, because a mutant may make the test hang.
            timeout_seconds = 6 + 4 * session_input.seconds.get(item.nodeid, 0)
            item.add_marker(pytest.mark.timeout(timeout_seconds, func_only=True), append=False)

    def test_mutants(self, names: Sequence[str]) -> None:
        """Test the mutants function by function; stop early if the session is corrupted or reaches `MAX_RUNS`."""
        suspects_by_mutant = self._outcomes.read_suspects()
        for _, group in groupby(names, mutant_list.get_function_name):
            killing_tests: dict[str, str] = {}
            confirmed: dict[str, set[str]] = {}
            for name in group:
                self._outcomes.append(started=name)
                suspects = dict.fromkeys(suspects_by_mutant.get(name, ()))
                confirmed[name] = {test for test in suspects if self._is_passing(test, "")}
                preferred_tests = [*confirmed[name], *reversed(killing_tests.values())]
                killing_tests[name] = self._find_killing_test(name, preferred_tests, suspects.keys() - confirmed[name])
                if self._runs > self._max_runs:
                    break
            if not self._record_results(killing_tests, confirmed) or self._runs > self._max_runs:
                return

    def _find_killing_test(self, name: str, preferred_tests: Iterable[str], skipped_tests: Set[str]) -> str:
        """Return the test that kills the mutant, or "" if it survives.

        Tests that killed other mutants of the function run first. Tests that fail in this session without any mutant
        are skipped.
        """
        seconds = self._input.seconds
        own_module = f"/test_{name.split('.')[-2]}"
        tests = sorted(self._input.tests_by_mutant[name], key=lambda test: (own_module not in test, seconds[test]))
        trusted, own_count = list(filter(None, preferred_tests)), sum(own_module in test for test in tests)
        selected = dict.fromkeys(
            [*trusted, *tests[: None if self._input.excludes_cluster_tests else own_count + MAX_OTHER_TESTS]]
        )
        runnable = (test for test in selected if test not in skipped_tests)
        return next((test for test in runnable if self._is_failing(test, name, is_known_to_fail=test in trusted)), "")

    def _is_failing(self, test: str, name: str, *, is_known_to_fail: bool) -> bool:
        """Return whether a test fails with this mutant.

        Unless the test is known to fail, it must fail twice, because other load on the machine can cause a failure.
        """
        return not self._is_passing(test, name) and (is_known_to_fail or not self._is_passing(test, name))

    def _record_results(self, killing_tests: Mapping[str, str], confirmed: Mapping[str, Set[str]]) -> bool:
        """Record the result of each mutant; return whether all failed tests pass without a mutant.

        A test that failed in two sessions, and passed at the start of both, counts as the test that killed the mutant.
        """
        passes = {test: self._is_passing(test, "") for test in dict.fromkeys(killing_tests.values()) if test}
        for name, test in killing_tests.items():
            if passes.get(test, True) or test in confirmed[name]:
                self._outcomes.append(tested=name, by=test)
            else:
                self._outcomes.append(suspect=name, by=test)
        return all(passes.values())

    def _is_passing(self, test: str, name: str) -> bool:
        self._runs += 1
        self._outcomes.append(test_started=test)  # A session that writes no lines counts as hanging.
        return all(not report.failed for report in _run_test(self._items[test], name, self._common_node))
