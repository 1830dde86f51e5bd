"""Tests that at least one test proves each claimed requirement, and that docs/requirements.md lists these tests."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.proofs import (
    COLLECTION_KEY,
    NOT_IN_MAKE_TEST,
    PAGE,
    REQUIREMENTS,
    ROOT,
    Collection,
    collects_all_tests,
    proves,
    render_page,
)


@pytest.fixture(scope="module")
def generated_page(pytestconfig: pytest.Config) -> str:
    """Return the up-to-date page, based on the tests that this run has collected if it has collected all of them.

    Otherwise, a separate process collects the tests, because pytest cannot collect within a run.
    """
    collection = pytestconfig.stash.get(COLLECTION_KEY, None)
    if collection is not None:
        return render_page(collection)
    command = [sys.executable, "-m", "tests.proofs"]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


@pytest.fixture
def row_by_requirement(generated_page: str) -> dict[str, str]:
    """Return the page's row for each requirement; a requirement without exactly one row fails the test."""
    rows = {
        requirement: [line for line in generated_page.splitlines() if line.startswith(f"| {requirement} | ")]
        for requirement in REQUIREMENTS
    }
    assert {requirement: lines for requirement, lines in rows.items() if len(lines) != 1} == {}
    return {requirement: line for requirement, (line,) in rows.items()}


def test_each_requirement_is_proved_by_a_test(row_by_requirement: dict[str, str]) -> None:
    """Check that at least one collected test has the requirement's mark."""
    assert row_by_requirement
    assert {requirement for requirement, row in row_by_requirement.items() if "](../tests/" not in row} == set()


def test_make_test_proves_each_requirement_unless_exempted_with_reason(row_by_requirement: dict[str, str]) -> None:
    proved = {requirement: bool(row.split(" | ")[2]) for requirement, row in row_by_requirement.items()}

    assert proved
    assert {name for name, is_proved in proved.items() if is_proved == (name in NOT_IN_MAKE_TEST)} == set()


def test_requirements_page_is_up_to_date(generated_page: str) -> None:
    """Check that docs/requirements.md is up to date; `make requirements` updates it."""
    assert PAGE.read_text() == generated_page


def test_page_is_generated_only_by_run_of_whole_test_suite(
    pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Check that only a run of the whole test suite provides the page's content."""
    options = {"args": ["tests"], "lf": False, "ignore": None}
    cases: tuple[dict[str, object], ...] = (
        {},
        {"args": ["tests/kube"]},
        {"args": ["tests", "tests/kube"]},
        {"lf": True},
        {"ignore": ["tests/e2e"]},
    )
    results = []
    monkeypatch.chdir(ROOT)
    for case in cases:
        for name, value in {**options, **case}.items():
            monkeypatch.setattr(pytestconfig if name == "args" else pytestconfig.option, name, value)
        results.append(collects_all_tests(pytestconfig))

    assert results == [True, False, False, False, False]


def test_requirements_page_lists_proofs_by_make_target_and_tests_outside_make_test() -> None:
    proofs: dict[str, list[str]] = {requirement: [] for requirement in REQUIREMENTS}
    proofs["X-1"] = ["tests/test_a.py::test_b", "tests/test_a.py::test_c"]
    targets = {"tests/test_a.py::test_b": "test", "tests/test_a.py::test_c": "test-all"}

    rows = render_page(Collection(proofs, targets)).splitlines()

    (row,) = [line for line in rows if line.startswith("| X-1 | ")]
    assert row.endswith(" | [test_b](../tests/test_a.py) | [test_c](../tests/test_a.py) |")
    assert "| [tests/test_a.py](../tests/test_a.py) | test-all | test_c |" in rows


def test_requirements_page_has_row_for_every_requirement() -> None:
    """Check that each requirement belongs to a chapter, so that the page has a row for it."""
    rows = render_page(Collection({requirement: [] for requirement in REQUIREMENTS}, {})).splitlines()

    requirement_rows = [row for row in rows if row.startswith("| ") and not row.startswith(("| id ", "| file "))]
    assert [row.split(" | ")[0][2:] for row in requirement_rows] == [*REQUIREMENTS]


@pytest.mark.parametrize("ids", [(), ("NMO-999",), ("NMO-1", "nmo-2")])
def test_unknown_or_missing_requirement_id_is_rejected(ids: tuple[str, ...]) -> None:
    """Check that an unknown or missing requirement id is an error when the tests are collected."""
    with pytest.raises(ValueError, match="requirement ids"):
        proves(*ids)
