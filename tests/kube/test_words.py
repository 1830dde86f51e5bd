"""Counts and cut texts."""

from __future__ import annotations

from kube.words import counted, shortened


def test_one_is_no_plural() -> None:
    assert [counted(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


def test_a_long_text_says_how_much_of_it_is_left_out() -> None:
    """One that fits is left as it is."""
    assert shortened("abcde", 5) == "abcde"
    assert shortened("abcdefg", 5) == "abcde… (2 more characters)"
