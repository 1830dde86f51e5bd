"""Pytest hook that runs the marked tests of a file concurrently, each in its own thread.

`@pytest.mark.abreast` marks a test that mostly waits. Such a test shares the running product with other tests, and
checks only objects that it created itself. Its arguments are parameters, and fixtures with a scope wider than one test.
The first marked test of a file runs all marked tests; each test then reports its own result.
"""

from __future__ import annotations

import inspect
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

import pytest

MARK = "abreast"
MAX_CONCURRENT_TESTS = 8
"""Maximum number of concurrent tests; with this many drains in progress, a function still responds in time."""
RESULT_KEY = pytest.StashKey[Future[None]]()
"""Stash key of the result of a test that was run concurrently with other tests."""


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Call a test; if the test is marked as concurrent, call the other such tests of its file concurrently."""
    if not is_concurrent(pyfuncitem):
        return None
    run_concurrently(pyfuncitem)
    return True


def is_concurrent(item: pytest.Item) -> bool:
    """Return whether a test is marked to run concurrently with other tests of its file."""
    return isinstance(item, pytest.Function) and item.get_closest_marker(MARK) is not None


def run_concurrently(requested_item: pytest.Function) -> None:
    """Run all marked tests of the file unless they have already run, and raise the exception of `requested_item`."""
    if RESULT_KEY not in requested_item.stash:
        concurrent_items = [
            item for item in requested_item.session.items if item.path == requested_item.path and is_concurrent(item)
        ]
        with ThreadPoolExecutor(MAX_CONCURRENT_TESTS, thread_name_prefix=MARK) as threads:
            for item in concurrent_items:
                assert isinstance(item, pytest.Function)
                item.stash[RESULT_KEY] = threads.submit(item.obj, **_build_arguments(item, requested_item))
            wait([item.stash[RESULT_KEY] for item in concurrent_items])
    requested_item.stash[RESULT_KEY].result()


def _build_arguments(item: pytest.Function, requested_item: pytest.Function) -> dict[str, Any]:
    """Return the arguments of a test call: the test's parameters, and the fixtures of `requested_item`."""
    parameters = item.callspec.params if hasattr(item, "callspec") else {}
    return {
        name: parameters.get(name, requested_item.funcargs.get(name)) for name in inspect.signature(item.obj).parameters
    }
