"""A pytest plugin: one session, one cluster, and many changes of the code, each judged by the tests that reach it.

In: `--work`, a JSON file (`Work`). Out: lines in its file of outcomes.
A test that fails under changes of a function must pass without any right after: else a change, or the machine, has
spoiled the session, which ends; a fresh one judges them anew.
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

from tests.mutation import changes
from tests.mutation.outcomes import Outcomes

changes.install()  # before any conftest imports what is changed

RUNS = 1500
"""So many tests in one session with a cluster: each leaves a node or two on it."""
MOST = 30
"""So many tests with a cluster judge a change at most beside its own: what hundreds reach would take hours."""
EXAMPLES = 30
"""Of each property; what survives so few is listed, and may be asked again."""
SERVERS = frozenset({"cluster", "quiet"})
"""The fixtures that start one; all others that have one ask for these."""
LINES: set[tuple[str, int]] = set()
"""Files and lines that a test has reached."""


@dataclass(frozen=True)
class Work:
    """What a session has to do.

    Attributes:
        outcomes: the file to append to.
        names: the changes to judge; none: to find out which tests reach which lines.
        reached: change → tests that reach its line.
        seconds: test → how long it takes.
        pure: whether tests that need a cluster are left out.
        share, shares: which of so many parts of the test files is listed.
    """

    outcomes: str
    names: list[str]
    reached: dict[str, list[str]]
    seconds: dict[str, float]
    pure: bool
    share: int
    shares: int

    def write(self, file: Path) -> None:
        """Write it for a session."""
        file.write_text(json.dumps(asdict(self)))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Take the file."""
    parser.addoption("--work", type=Path, required=True)


def pytest_configure(config: pytest.Config) -> None:
    """Read it, and keep hypothesis from making the most of a failure."""
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
    """Leave out what asks for a server, on request; what runs beside others, and what measures, in any case."""
    servers = SERVERS if config.stash[WORK].pure else frozenset()
    items[:] = [
        item
        for item in items
        if not servers & set(getattr(item, "fixturenames", ()))
        and not any(item.get_closest_marker(name) for name in ("abreast", "alone"))
    ]


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool:
    """Judge, instead of running each test once."""
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
    """Run each test, and note the lines of changed modules that it reaches; one that fails has another try."""
    top = _above(items)
    for item in items:
        LINES.clear()
        reports = _run(item, "", top)
        if any(report.failed for report in reports):
            reports = _run(item, "", top)
        reached: dict[str, list[int]] = {}
        for file, line in sorted(LINES):
            reached.setdefault(changes.module_of(file), []).append(line)
        said = "".join(report.longreprtext for report in reports if report.failed)
        seconds = sum(report.duration for report in reports)
        outcomes.add(listed=item.nodeid, seconds=seconds, reached=reached, failed=said)


def _trace(frame: FrameType, _event: str, _argument: object) -> Any:
    """Trace the functions of changed modules, and no others."""
    return _trace_line if frame.f_code.co_filename.startswith(f"{changes.FOLDER}/") else None


def _trace_line(frame: FrameType, event: str, _argument: object) -> Any:
    if event == "line":
        LINES.add((frame.f_code.co_filename, frame.f_lineno))
    return _trace_line


def _run(item: pytest.Item, name: str, top: pytest.Item) -> list[pytest.TestReport]:
    """Run one test under a change, "" for none; what lives longer than it stays up to `top`."""
    _forget()
    set_mutant_under_test(name)
    try:
        return runtestprotocol(item, log=False, nextitem=top)
    finally:
        set_mutant_under_test("")


def _forget() -> None:
    """Empty the caches of what is changed."""
    for name, module in list(sys.modules.items()):
        if name.startswith(("kube.", "functions.maintenance.")):
            for value in vars(module).values():
                if hasattr(value, "cache_clear"):
                    value.cache_clear()


def _above(items: Iterable[pytest.Item]) -> Any:
    """The lowest node above all of these tests."""
    chains = [item.listchain()[:-1] for item in items]
    return [nodes[0] for nodes in zip(*chains, strict=False) if len(set(nodes)) == 1][-1]


class Judge:
    """Judges changes by the tests of this session."""

    def __init__(self, items: list[pytest.Item], work: Work) -> None:
        self._items = {item.nodeid: item for item in items}
        self._top = _above(items)
        self._work = work
        self._outcomes = Outcomes(Path(work.outcomes))
        self._runs, self._most = 0, math.inf if work.pure else RUNS
        for item in items:  # no test hangs for long: a change may have made it
            limit = 6 + 4 * work.seconds.get(item.nodeid, 0)
            item.add_marker(pytest.mark.timeout(limit, func_only=True), append=False)

    def judge(self, names: Sequence[str]) -> None:
        """Judge these, function by function, until all are judged or this session has lasted or is spoiled."""
        suspects = self._outcomes.suspects()
        for _, group in groupby(names, changes.function_of):
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
        """The test that fails under a change, "" for none; what noticed others of its function is asked first.

        Not asked is what fails here without any change.
        """
        seconds = self._work.seconds
        mine = f"/test_{name.split('.')[-2]}"
        tests = sorted(self._work.reached[name], key=lambda test: (mine not in test, seconds[test]))
        trusted, own = list(filter(None, first)), sum(mine in test for test in tests)
        chosen = dict.fromkeys([*trusted, *tests[: None if self._work.pure else own + MOST]])
        asked = (test for test in chosen if test not in spoiled)
        return next((test for test in asked if self._fails(test, name, sure=test in trusted)), "")

    def _fails(self, test: str, name: str, *, sure: bool) -> bool:
        """Whether a test fails under a change; twice, lest a busy machine be taken for it, unless it is known to."""
        return not self._passes(test, name) and (sure or not self._passes(test, name))

    def _confirmed(self, noticed: Mapping[str, str], sure: Mapping[str, Set[str]]) -> bool:
        """Note what came of each change; whether all tests that failed pass without one.

        Who failed in two sessions in both of which it passed at first is taken at its word.
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
        self._outcomes.add(asked=test)  # a session that writes no line hangs
        return all(not report.failed for report in _run(self._items[test], name, self._top))
