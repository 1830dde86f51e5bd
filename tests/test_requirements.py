"""Every requirement that is claimed is named by the test that proves it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

CLAIMED = [
    *(f"X-{number}" for number in range(1, 8)),
    *(f"NMO-{number}" for number in range(1, 23)),
    "NMO-25",
    "NMO-27",
    *(f"KNM-{number}" for number in range(1, 7)),
    *(f"DRN-{number}" for number in (1, 2, 3, 4, 5, 6, 12, 13)),
    *(f"OSV-{number}" for number in (1, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)),
    *("C1", "C3", "C4", "C7", "C31", "C32"),
]
LIST = re.compile(r"\b(X|NMO|KNM|DRN|OSV)-(\d+)((?:(?:, | and | to )\d+)*)")


def named(text: str) -> set[str]:
    """The ids in a text; `NMO-3, 4 and 6` and `NMO-3 to 5` name three each."""
    found = set(re.findall(r"\bC\d+\b", text))
    for prefix, first, rest in LIST.findall(text):
        last = int(first)
        found.add(f"{prefix}-{last}")
        for word, number in re.findall(r"(, | and | to )(\d+)", rest):
            numbers = range(last + 1, int(number) + 1) if word == " to " else [int(number)]
            found |= {f"{prefix}-{item}" for item in numbers}
            last = int(number)
    return found


TESTED = set().union(
    *(named(path.read_text()) for path in Path(__file__).parent.rglob("test_*.py") if path.name != Path(__file__).name)
)


@pytest.mark.parametrize("requirement", CLAIMED)
def test_a_claimed_requirement_is_named_by_a_test(requirement: str) -> None:
    """The id stands in the docstring or name of a test."""
    assert requirement in TESTED


def test_lists_of_ids_are_read_whole() -> None:
    """`NMO-3, 4, 6 to 8 and KNM-1` names six requirements."""
    assert named("NMO-3, 4, 6 to 8 and KNM-1; C7") == {"NMO-3", "NMO-4", "NMO-6", "NMO-7", "NMO-8", "KNM-1", "C7"}
