"""Tests run concurrently, each group in one worker, except for tests that need the machine exclusively."""

from __future__ import annotations

import threading
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.scheduling import ENGINES, GROUPS, Machine, group_of
from tests.sources import ROOT


class Guest:
    """A holder of the lock in its own thread, which holds it until `leave` is called."""

    def __init__(self, entrance: AbstractContextManager[None]) -> None:
        self.inside, self._done = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(entrance,), daemon=True)
        self._thread.start()

    def _stay(self, entrance: AbstractContextManager[None]) -> None:
        with entrance:
            self.inside.set()
            self._done.wait(10)

    def leave(self) -> None:
        self._done.set()
        self._thread.join(10)


def test_many_are_there_side_by_side(tmp_path: Path) -> None:
    first, second = (Guest(Machine(tmp_path).shared()) for _ in range(2))

    assert first.inside.wait(5)
    assert second.inside.wait(5)
    first.leave()
    second.leave()


def test_one_who_wants_to_be_alone_waits_for_those_inside_and_comes_before_those_who_came_later(tmp_path: Path) -> None:
    inside = Guest(Machine(tmp_path).shared())
    assert inside.inside.wait(5)
    alone = Guest(Machine(tmp_path).alone())
    assert not alone.inside.wait(0.1)
    later = Guest(Machine(tmp_path).shared())
    assert not later.inside.wait(0.1)

    inside.leave()

    assert alone.inside.wait(5)
    assert not later.inside.wait(0.1)
    alone.leave()
    assert later.inside.wait(5)
    later.leave()


def test_every_test_file_has_a_group_and_every_group_a_test() -> None:
    """Check that every test file belongs to a group, every group has a test, and every path in `GROUPS` exists.

    Otherwise the tests of a renamed file would silently move to another group.
    """
    files = [str(file.relative_to(ROOT)) for file in (ROOT / "tests").rglob("test_*.py")]
    ids = [f"{file}::test{where}" for file in files for where in ("", *(f"[{engine}-a]" for engine in ENGINES))]

    assert {group_of(test) for test in ids} == set(range(len(GROUPS)))
    assert all((ROOT / name.partition("[")[0]).exists() for names in GROUPS for name in names)


def test_the_first_group_that_names_a_file_takes_it() -> None:
    assert "tests/chain/test_audit.py" in GROUPS[group_of("tests/chain/test_audit.py::test_a")]
    assert GROUPS[group_of("tests/chain/test_speed.py::test_a")] == ("tests/chain",)
    assert GROUPS[group_of("tests/test_package_structure.py::test_a")] == ("tests",)


@pytest.mark.parametrize("engine", ENGINES)
def test_what_an_engine_does_end_to_end_is_one_workers(engine: str) -> None:
    """Check that an engine's end-to-end tests belong to one group; elsewhere, an engine's name has no effect."""
    names = ("test_rights.py", "test_drains.py")
    (group,) = {group_of(f"tests/e2e/{name}::test_a[{words}]") for name in names for words in (engine, f"a b-{engine}")}

    assert GROUPS[group] == (f"tests/e2e[{engine}]",)
    assert GROUPS[group_of(f"tests/manifests/test_overlays.py::test_a[{engine}]")] == ("tests/manifests",)
    assert GROUPS[group_of(f"tests/e2e/test_{engine}.py::test_a")] == ("tests/e2e",)


def test_an_install_for_an_engine_is_judged_without_that_engine() -> None:
    (group,) = {
        group_of(f"tests/e2e/test_admission.py::test_an_install{where}") for where in ("", "[base]", "[knative]")
    }

    assert GROUPS[group] == ("tests/e2e/test_admission.py",)
