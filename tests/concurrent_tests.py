"""Runs the marked tests of one file concurrently, each in its own thread.

`@pytest.mark.abreast` marks a test that waits most of the time. It shares the running product with other tests and
checks only objects that it created itself. Its arguments are parameters, and fixtures with a scope wider than one test.
All marked tests of a file run during the call of the first one; each test then reports its own result.
"""

from __future__ import annotations

import inspect
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

MARK = "abreast"
MAX_CONCURRENT_TESTS = 8
"""Maximum number of concurrent tests; with so many drains in progress, a function still answers in time."""
RESULT_KEY = pytest.StashKey[Future[None]]()
"""Stash key of the result of a test that ran concurrently with others."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test, together with the other tests of its file if it is marked."""
    if not is_concurrent(pyfuncitem):
        return None
    run_concurrently(pyfuncitem)
    return True


def is_concurrent(item: pytest.Item) -> bool:
    """Return whether the test runs concurrently with others of its file."""
    return isinstance(item, pytest.Function) and item.get_closest_marker(MARK) is not None


def run_concurrently(first: pytest.Function) -> None:
    """Run all marked tests of the file unless this was done already, and raise the exception that `first` raised."""
    if RESULT_KEY not in first.stash:
        concurrent_items = [item for item in first.session.items if item.path == first.path and is_concurrent(item)]
        with ThreadPoolExecutor(MAX_CONCURRENT_TESTS, thread_name_prefix=MARK) as threads:
            for item in concurrent_items:
                assert isinstance(item, pytest.Function)
                item.stash[RESULT_KEY] = threads.submit(item.obj, **_build_arguments(item, first))
            wait([item.stash[RESULT_KEY] for item in concurrent_items])
    first.stash[RESULT_KEY].result()


def _build_arguments(item: pytest.Function, first: pytest.Function) -> dict[str, Any]:
    """Return the arguments of a test call: the test's parameters, and the fixtures that `first` has set up."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return {name: parameters.get(name, first.funcargs.get(name)) for name in inspect.signature(item.obj).parameters}
