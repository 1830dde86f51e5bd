"""Tests for collecting the warnings in the API server's response headers."""

from __future__ import annotations

import pytest

from kube.client.decoding import collect_warnings, record_warnings


@pytest.mark.parametrize(
    ("headers", "warnings"),
    [
        ([], []),
        (['299 - "pods will be gone"'], ["pods will be gone"]),
        (['299 - "a"', '299 - "b", 299 kube "c"', '299 - "a"'], ["a", "b", "c"]),
        (['299 - "say \\"no\\" to \\\\"'], ['say "no" to \\']),
        (["", "110 - stale", '199 - "x"', "299 - unquoted"], []),
    ],
)
def test_each_api_server_warning_is_collected_once(headers: list[str], warnings: list[str]) -> None:
    with collect_warnings() as collected:
        record_warnings(headers)

    assert collected == warnings


def test_api_server_warnings_outside_block_are_dropped() -> None:
    record_warnings(['299 - "lost"'])

    with collect_warnings() as warnings:
        pass

    assert warnings == []
