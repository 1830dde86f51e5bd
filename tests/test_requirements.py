"""Every claimed requirement is proved by a test, and docs/requirements.md lists the tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.proofs import (
    COLLECTED,
    NOT_IN_MAKE_TEST,
    PAGE,
    REQUIREMENTS,
    ROOT,
    Collection,
    collects_all,
    page,
    proves,
)


@pytest.fixture(scope="module")
def fresh(pytestconfig: pytest.Config) -> str:
    """Return the up-to-date page, from this run's collected tests if it has collected all of them.

    Otherwise a separate process collects them, since pytest cannot collect within a run.
    """
    found = pytestconfig.stash.get(COLLECTED, None)
    if found is not None:
        return page(found)
    command = [sys.executable, "-m", "tests.proofs"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_a_claimed_requirement_is_proved_by_a_test(fresh: str, requirement: str) -> None:
    """Check that at least one collected test has the requirement's mark."""
    (row,) = [line for line in fresh.splitlines() if line.startswith(f"| {requirement} | ")]

    assert "](../tests/" in row


@pytest.mark.parametrize("requirement", REQUIREMENTS)
def test_make_test_proves_each_requirement_unless_a_reason_is_given(fresh: str, requirement: str) -> None:
    (row,) = [line for line in fresh.splitlines() if line.startswith(f"| {requirement} | ")]

    assert bool(row.split(" | ")[2]) != (requirement in NOT_IN_MAKE_TEST)


def test_the_page_is_up_to_date(fresh: str) -> None:
    """docs/requirements.md is up to date; `make requirements` updates it."""
    assert PAGE.read_text() == fresh


def test_a_run_of_a_part_does_not_pass_for_the_whole(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that only a run of the whole test suite provides the page's content."""
    told = {"args": ["tests"], "lf": False, "ignore": None}
    cases: tuple[dict[str, object], ...] = (
        {},
        {"args": ["tests/kube"]},
        {"args": ["tests", "tests/kube"]},
        {"lf": True},
        {"ignore": ["tests/e2e"]},
    )
    answers = []
    monkeypatch.chdir(ROOT)
    for case in cases:
        for name, value in {**told, **case}.items():
            monkeypatch.setattr(pytestconfig if name == "args" else pytestconfig.option, name, value)
        answers.append(collects_all(pytestconfig))

    assert answers == [True, False, False, False, False]


def test_a_proof_stands_in_the_column_of_its_target_and_a_test_left_out_by_make_test_is_listed() -> None:
    proofs: dict[str, list[str]] = {each: [] for each in REQUIREMENTS}
    proofs["X-1"] = ["tests/test_a.py::test_b", "tests/test_a.py::test_c"]
    targets = {"tests/test_a.py::test_b": "test", "tests/test_a.py::test_c": "test-all"}

    rows = page(Collection(proofs, targets)).splitlines()

    (row,) = [line for line in rows if line.startswith("| X-1 | ")]
    assert row.endswith(" | [test_b](../tests/test_a.py) | [test_c](../tests/test_a.py) |")
    assert "| [tests/test_a.py](../tests/test_a.py) | test-all | test_c |" in rows


def test_every_requirement_has_its_row() -> None:
    """Check that each id belongs to a chapter, so that the page has its row."""
    rows = page(Collection({each: [] for each in REQUIREMENTS}, {})).splitlines()

    listed = [row for row in rows if row.startswith("| ") and not row.startswith(("| id ", "| file "))]
    assert [row.split(" | ")[0][2:] for row in listed] == [*REQUIREMENTS]


@pytest.mark.parametrize("ids", [(), ("NMO-999",), ("NMO-1", "nmo-2")])
def test_an_id_that_nobody_claims_cannot_be_proved(ids: tuple[str, ...]) -> None:
    """Raise an error for an unknown or missing id when the tests are collected."""
    with pytest.raises(ValueError, match="no requirement: "):
        proves(*ids)
