"""Counts, cut texts and cut lists."""

from __future__ import annotations

from kube.words import counted, fitting, shortened


def test_one_is_no_plural() -> None:
    assert [counted(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


def test_a_long_text_says_how_much_of_it_is_left_out() -> None:
    """One that fits is left as it is, with as many more as that takes, and so is one that was cut before."""
    long = "abcde" * 10
    assert shortened("abcde" * 6, 5) == "abcde" * 6
    assert shortened(long, 5) == "abcde… (45 more characters)" == shortened(shortened(long, 5), 5)


def test_a_list_is_cut_to_what_it_takes_in_the_json_that_is_meant() -> None:
    """`{"a": "ü"}` has 11 bytes in UTF-8, 15 where an event escapes it; what is behind one too long is not taken."""
    items = [{"a": "ü"}, {"a": "ü" * 9}, {"a": ""}]

    assert fitting(items, 11) == fitting(items, 15, escaped=True) == items[:1]
    assert fitting(items, 10) == fitting(items, 14, escaped=True) == []
    assert fitting(items, 100) == items
