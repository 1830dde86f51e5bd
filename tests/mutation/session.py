"""A pytest plugin that tests many mutants in one session with one cluster, each with the tests that reach it.

The option `--work` names a JSON file (`Work`). The results are appended to that file's results file. A test that fails
with mutants of a function must pass afterwards without any mutant. Otherwise a mutant or the machine has corrupted the
session. The session then ends, and a new one repeats these mutants.
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
from tests.mutation.results import Outcomes

mutant_list.install()  # before any conftest imports the product

RUNS = 1500
"""Maximum number of test runs in a session with a cluster; each leaves a node or two on it."""
MOST = 30
"""Maximum number of other modules' tests with a cluster per mutant; some mutants are reached by hundreds of tests."""
EXAMPLES = 30
"""Maximum number of examples per property; survivors are listed and can be tested again."""
SERVERS = frozenset({"cluster", "quiet"})
"""The fixtures that start a cluster; all other cluster fixtures depend on them."""
LINES: set[tuple[str, int]] = set()
"""Files and lines that the current test has reached."""


@dataclass(frozen=True)
class Work:
    """The input of a session.

    Attributes:
        outcomes: The file to which results are appended.
        names: The mutants to test; if empty, the session lists the lines that each test reaches.
        reached: Mutant → tests that reach its line.
        seconds: Test → its duration.
        pure: Whether tests that need a cluster are excluded.
        share, shares: The index of this session's share of the test files, and the number of shares.
    """

    outcomes: str
    names: list[str]
    reached: dict[str, list[str]]
    seconds: dict[str, float]
    pure: bool
    share: int
    shares: int

    def write(self, file: Path) -> None:
        """Write the input for a session."""
        file.write_text(json.dumps(asdict(self)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option `--work`."""
    parser.addoption("--work", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Read the input, and limit Hypothesis to a few deterministic examples without shrinking."""
    config.stash[WORK] = Work(**json.loads(config.getoption("--work").read_text()))
    settings.register_profile(
        "changes",
        deadline=None,
        max_examples=EXAMPLES,
        database=None,
        derandomize=True,
        phases=(Phase.explicit, Phase.generate),
        suppress_health_check=list(HealthCheck),
    )
    settings.load_profile("changes")


WORK = pytest.StashKey[Work]()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect tests marked `abreast` or `alone` and, with `pure`, tests that need a cluster."""
    servers = SERVERS if config.stash[WORK].pure else frozenset()
    items[:] = [
        item
        for item in items
        if not servers & set(getattr(item, "fixturenames", ()))
        and not any(item.get_closest_marker(name) for name in ("abreast", "alone"))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Test the mutants, instead of running each test once."""
    work = session.config.stash[WORK]
    if work.names:
        Judge(session.items, work).judge(work.names)
    else:
        threading.settrace(_trace)
        sys.settrace(_trace)
        files = list(dict.fromkeys(item.path for item in session.items))
        mine = [item for item in session.items if files.index(item.path) % work.shares == work.share]
        _list(mine, Outcomes(Path(work.outcomes)))
        sys.settrace(None)
        threading.settrace(None)
    return True


def _list(items: list[pytest.Item], outcomes: Outcomes) -> None:
    """Run each test, and record the lines of mutated modules that it reaches; run a failed test a second time."""
    top = _above(items)
    for item in items:
        LINES.clear()
        reports = _run(item, "", top)
        if any(report.failed for report in reports):
            reports = _run(item, "", top)
        reached: dict[str, list[int]] = {}
        for file, line in sorted(LINES):
            reached.setdefault(mutant_list.module_of(file), []).append(line)
        said = "".join(report.longreprtext for report in reports if report.failed)
        seconds = sum(report.duration for report in reports)
        outcomes.add(listed=item.nodeid, seconds=seconds, reached=reached, failed=said)


def _trace(frame: FrameType, _event: str, _argument: object) -> Any:
    """Trace only functions of mutated modules."""
    return _trace_line if frame.f_code.co_filename.startswith(f"{mutant_list.FOLDER}/") else None


def _trace_line(frame: FrameType, event: str, _argument: object) -> Any:
    if event == "line":
        LINES.add((frame.f_code.co_filename, frame.f_lineno))
    return _trace_line


def _run(item: pytest.Item, name: str, top: pytest.Item) -> list[pytest.TestReport]:
    """Run one test with a mutant, "" for none; fixtures with a wider scope stay set up until `top`."""
    _forget()
    set_mutant_under_test(name)
    try:
        return runtestprotocol(item, log=False, nextitem=top)
    finally:
        set_mutant_under_test("")


def _forget() -> None:
    """Clear the caches of mutated modules."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("kube.", "functions.maintenance.")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _above(items: Iterable[pytest.Item]) -> Any:
    """Return the lowest collection node that contains all these tests."""
    chains = [item.listchain()[:-1] for item in items]
    return [nodes[0] for nodes in zip(*chains, strict=False) if len(set(nodes)) == 1][-1]


class Judge:
    """A tester of mutants with the tests of this session."""

    def __init__(self, items: list[pytest.Item], work: Work) -> None:
        self._items = {item.nodeid: item for item in items}
        self._top = _above(items)
        self._work = work
        self._outcomes = Outcomes(Path(work.outcomes))
        self._runs, self._most = 0, math.inf if work.pure else RUNS
        for item in items:  # limits the time of each test, since a mutant may make it hang
            limit = 6 + 4 * work.seconds.get(item.nodeid, 0)
            item.add_marker(pytest.mark.timeout(limit, func_only=True), append=False)

    def judge(self, names: Sequence[str]) -> None:
        """Test the mutants by function, until all are done, or until the session is full or corrupted."""
        suspects = self._outcomes.suspects()
        for _, group in groupby(names, mutant_list.function_of):
            noticed: dict[str, str] = {}
            sure: dict[str, set[str]] = {}
            for name in group:
                self._outcomes.add(begun=name)
                suspected = dict.fromkeys(suspects.get(name, ()))
                sure[name] = {test for test in suspected if self._passes(test, "")}
                first = [*sure[name], *reversed(noticed.values())]
                noticed[name] = self._noticed_by(name, first, suspected.keys() - sure[name])
                if self._runs > self._most:
                    break
            if not self._confirmed(noticed, sure) or self._runs > self._most:
                return

    def _noticed_by(self, name: str, first: Iterable[str], spoiled: Set[str]) -> str:
        """Return the test that kills the mutant, "" for none.

        Tests that killed other mutants of the function run first. Tests that fail in this session without any mutant
        are skipped.
        """
        seconds = self._work.seconds
        mine = f"/test_{name.split('.')[-2]}"
        tests = sorted(self._work.reached[name], key=lambda test: (mine not in test, seconds[test]))
        trusted, own = list(filter(None, first)), sum(mine in test for test in tests)
        chosen = dict.fromkeys([*trusted, *tests[: None if self._work.pure else own + MOST]])
        asked = (test for test in chosen if test not in spoiled)
        return next((test for test in asked if self._fails(test, name, sure=test in trusted)), "")

    def _fails(self, test: str, name: str, *, sure: bool) -> bool:
        """Return whether a test fails with a mutant.

        Unless the test is known to fail, it must fail twice, because a busy machine can cause a failure.
        """
        return not self._passes(test, name) and (sure or not self._passes(test, name))

    def _confirmed(self, noticed: Mapping[str, str], sure: Mapping[str, Set[str]]) -> bool:
        """Record the result of each mutant; return whether all tests that failed pass without a mutant.

        A test that failed in two sessions, and passed at the start of both, counts as killing the mutant.
        """
        good = {test: self._passes(test, "") for test in dict.fromkeys(noticed.values()) if test}
        for name, test in noticed.items():
            if good.get(test, True) or test in sure[name]:
                self._outcomes.add(judged=name, by=test)
            else:
                self._outcomes.add(suspect=name, by=test)
        return all(good.values())

    def _passes(self, test: str, name: str) -> bool:
        self._runs += 1
        self._outcomes.add(asked=test)  # a session that writes no line counts as hanging
        return all(not report.failed for report in _run(self._items[test], name, self._top))
