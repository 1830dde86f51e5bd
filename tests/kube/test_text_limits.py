"""Tests for formatting counts with a noun, and for truncating texts and lists."""

from __future__ import annotations

from kube.text_limits import format_count, format_first_names, take_within_bytes, truncate


def test_noun_after_count_of_one_is_singular() -> None:
    assert [format_count(number, "pod") for number in (0, 1, 2)] == ["0 pods", "1 pod", "2 pods"]


def test_truncated_text_states_number_of_omitted_characters() -> None:
    """Check that a truncated text states the number of omitted characters, unless that note is longer than they are.

    A text that is already truncated is also kept.
    """
    long_text = "abcde" * 10
    assert truncate("abcde" * 6, 5) == "abcde" * 6
    assert truncate(long_text, 5) == "abcde… (45 more characters)" == truncate(truncate(long_text, 5), 5)


def test_list_is_truncated_by_size_of_its_json() -> None:
    """Check that a truncated list ends before the first item that exceeds the size limit.

    The first item takes 11 bytes in UTF-8, and 15 bytes with the escapes of event data.
    """
    items = [{"a": "ü"}, {"a": "ü" * 9}, {"a": ""}]

    assert take_within_bytes(items, 11) == take_within_bytes(items, 15, ascii_only=True) == items[:1]
    assert take_within_bytes(items, 10) == take_within_bytes(items, 14, ascii_only=True) == []
    assert take_within_bytes(items, 100) == items


def test_names_beyond_maximum_are_counted() -> None:
    joined = [format_first_names(["a", "b", "c"], count) for count in (1, 2, 3)]

    assert joined == ["a and 2 more", "a, b and 1 more", "a, b, c"]
    assert format_first_names([], 1) == ""
