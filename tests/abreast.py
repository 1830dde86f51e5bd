"""Runs tests of a file side by side, each in a thread of its own: those that wait for most of their time.

`@pytest.mark.abreast` is for a test that shares the product of its scene with others as nodes share it in the field: it
judges only what it made itself. Its arguments are parameters, and fixtures that live longer than one test. All those of
a file run during the call of the first, and each tells then how it went.
"""

from __future__ import annotations

import inspect
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

MARK = "abreast"
AT_ONCE = 8
"""So many drains at a time, which wait for most of it, leave a function time for its answer."""
RUNS = pytest.StashKey[Future[None]]()
"""How a test went that ran with others."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test that runs beside others of its file."""
    if not is_abreast(pyfuncitem):
        return None
    run_abreast(pyfuncitem)
    return True


def is_abreast(item: pytest.Item) -> bool:
    """Tell whether a test runs beside others of its file."""
    return isinstance(item, pytest.Function) and item.get_closest_marker(MARK) is not None


def run_abreast(first: pytest.Function) -> None:
    """Have the test run with all others like it in its file, if it has not yet; raise what it raised."""
    if RUNS not in first.stash:
        others = [item for item in first.session.items if item.path == first.path and is_abreast(item)]
        with ThreadPoolExecutor(AT_ONCE, thread_name_prefix=MARK) as threads:
            for item in others:
                assert isinstance(item, pytest.Function)
                item.stash[RUNS] = threads.submit(item.obj, **_arguments(item, first))
            wait([item.stash[RUNS] for item in others])
    first.stash[RUNS].result()


def _arguments(item: pytest.Function, first: pytest.Function) -> dict[str, Any]:
    """What a test is called with: its parameters, and of the first one's fixtures those that they share."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return {name: parameters.get(name, first.funcargs.get(name)) for name in inspect.signature(item.obj).parameters}
