"""Tests of counts with a noun, and of truncated texts and lists."""

from __future__ import annotations

from kube.text_limits import counted, fitting, shortened


def test_one_is_no_plural() -> None:
    assert [counted(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


def test_a_long_text_says_how_much_of_it_is_left_out() -> None:
    """Keep a text if the note about the omitted characters would be longer than they are.

    A text that was truncated before is also kept.
    """
    long = "abcde" * 10
    assert shortened("abcde" * 6, 5) == "abcde" * 6
    assert shortened(long, 5) == "abcde… (45 more characters)" == shortened(shortened(long, 5), 5)


def test_a_list_is_cut_to_what_it_takes_in_the_json_that_is_meant() -> None:
    """Stop at the first item that exceeds the limit.

    The first item takes 11 bytes in UTF-8, and 15 bytes with the escapes of event data.
    """
    items = [{"a": "ü"}, {"a": "ü" * 9}, {"a": ""}]

    assert fitting(items, 11) == fitting(items, 15, escaped=True) == items[:1]
    assert fitting(items, 10) == fitting(items, 14, escaped=True) == []
    assert fitting(items, 100) == items
