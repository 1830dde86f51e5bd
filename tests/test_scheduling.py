"""Tests for the assignment of tests to groups, and for the lock of tests that need the machine exclusively."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.scheduling import ENGINES, GROUPS, MachineLock, find_group_index
from tests.sources import ROOT


class LockHolder:
    """A thread that holds the lock until `release` is called."""

    def __init__(self, lock: AbstractContextManager[None]) -> None:
        self.acquired, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._hold, args=(lock,), daemon=True)
        self._thread.start()

    def _hold(self, lock: AbstractContextManager[None]) -> None:
        with lock:
            self.acquired.set()
            self._done.wait(10)

    def release(self) -> None:
        self._done.set()
        self._thread.join(10)


def test_machine_lock_can_have_several_shared_holders(tmp_path: Path) -> None:
    first_holder, second_holder = (LockHolder(MachineLock(tmp_path).hold_shared_lock()) for _ in range(2))

    assert first_holder.acquired.wait(5)
    assert second_holder.acquired.wait(5)
    first_holder.release()
    second_holder.release()


def test_exclusive_holder_waits_for_earlier_and_precedes_later_shared_holders(tmp_path: Path) -> None:
    shared_holder = LockHolder(MachineLock(tmp_path).hold_shared_lock())
    assert shared_holder.acquired.wait(5)
    exclusive_holder = LockHolder(MachineLock(tmp_path).hold_exclusive_lock())
    assert not exclusive_holder.acquired.wait(0.1)
    later_holder = LockHolder(MachineLock(tmp_path).hold_shared_lock())
    assert not later_holder.acquired.wait(0.1)

    shared_holder.release()

    assert exclusive_holder.acquired.wait(5)
    assert not later_holder.acquired.wait(0.1)
    exclusive_holder.release()
    assert later_holder.acquired.wait(5)
    later_holder.release()


def test_every_test_file_has_group_and_every_group_has_test() -> None:
    """Check that every test file belongs to a group, every group has a test, and every path in `GROUPS` exists.

    Otherwise, the tests in a renamed file would silently move to another group.
    """
    files = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")]
    ids = [
        f"{file}::test{parameters}" for file in files for parameters in ("", *(f"[{engine}-a]" for engine in ENGINES))
    ]

    assert {find_group_index(test) for test in ids} == set(range(len(GROUPS)))
    assert all((ROOT / name.partition("[")[0]).exists() for names in GROUPS for name in names)


def test_file_belongs_to_group_of_file_or_nearest_directory() -> None:
    assert "tests/chain/test_audit.py" in GROUPS[find_group_index("tests/chain/test_audit.py::test_a")]
    assert GROUPS[find_group_index("tests/chain/test_speed.py::test_a")] == ("tests/chain",)
    assert GROUPS[find_group_index("tests/test_package_structure.py::test_a")] == ("tests",)


@pytest.mark.parametrize("engine", ENGINES)
def test_e2e_tests_of_one_engine_form_one_group(engine: str) -> None:
    """Check that an engine's end-to-end tests belong to one group, and that other tests are not grouped by engine."""
    names = ("test_permissions.py", "test_drains.py")
    (group,) = {
        find_group_index(f"tests/e2e/{name}::test_a[{parameters}]")
        for name in names
        for parameters in (engine, f"a b-{engine}")
    }

    assert GROUPS[group] == (f"tests/e2e[{engine}]",)
    assert GROUPS[find_group_index(f"tests/manifests/test_overlays.py::test_a[{engine}]")] == ("tests/manifests",)
    assert GROUPS[find_group_index(f"tests/e2e/test_{engine}.py::test_a")] == ("tests/e2e",)


def test_admission_e2e_tests_form_one_group() -> None:
    (group,) = {
        find_group_index(f"tests/e2e/test_admission.py::test_an_install{parameters}")
        for parameters in ("", "[base]", "[knative]")
    }

    assert GROUPS[group] == ("tests/e2e/test_admission.py",)
