"""Which cases are measured."""

from __future__ import annotations

import pytest

from bench.cases import CASES, chosen


def test_without_a_word_all_are_chosen_or_the_quick_ones() -> None:
    assert chosen("") == CASES
    assert {case.name for case in chosen("", quick=True)} < {case.name for case in CASES}


def test_words_choose_in_their_order_and_none_twice() -> None:
    assert [case.name for case in chosen("100, budget of 1,100")] == [
        "100 pods",
        "30 pods behind a budget of 10",
        "30 pods behind a budget of 1",
    ]


def test_a_word_that_no_case_has_is_refused_with_the_cases() -> None:
    with pytest.raises(ValueError, match="no case has 'pigeon' in its name: 10 pods; "):
        chosen("10 pods,pigeon")
